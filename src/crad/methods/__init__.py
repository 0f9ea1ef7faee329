"""The methods by name: one file per family. A method of your own is an entry point in `crad.methods` or an
import path `package.module:METHOD`.
"""

from __future__ import annotations

from crad.aggregation import RULES
from crad.errors import ConfigError
from crad.federation.method import Method
from crad.methods.alone import CENTRALIZED, LOCAL
from crad.methods.distillation import distillation_method
from crad.plugins import resolve

METHODS: dict[str, Method] = {
    **{name: distillation_method(name) for name in RULES},
    "local": LOCAL,
    "centralized": CENTRALIZED,
}


def resolve_method(name: str) -> Method:
    """The method behind a name, an entry point or an import path."""
    found = resolve("method", name, known=METHODS, group="crad.methods")
    if not isinstance(found, Method):
        raise ConfigError(f"method {name!r} is a {type(found).__name__}, expected a crad.federation.method.Method")
    return found
