"""How a name becomes an object: a built-in, an entry point of another package, or an import path.

Models, rules and methods all resolve their names here, so that a user's own part is named the same way everywhere.
The last two import code: never resolve a name that came from a peer.
"""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from crad.errors import ConfigError, unknown_name


def resolve(kind: str, name: str, *, known: Mapping[str, Any], group: str) -> Any:  # noqa: ANN401  # any plugin
    """Return the object behind `name`: in `known`, an entry point of `group`, or `package.module:attribute`."""
    if name in known:
        return known[name]
    installed = {entry.name: entry for entry in metadata.entry_points(group=group)}
    if name in installed:
        return _import(kind, name, installed[name].module, installed[name].attr)
    if ":" in name:
        return _import(kind, name, *name.split(":", maxsplit=1))
    raise unknown_name(kind, name, {*known, *installed})


def call_foreign(kind: str, name: str, what: str, function: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
    """Call a user's code with the current directory importable; whatever it raises becomes one line."""
    try:
        with _current_directory_importable():
            return function(*args)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{kind} {name!r}: {what} failed with {reason}") from error


def _import(kind: str, name: str, module_name: str, attribute: str) -> Any:  # noqa: ANN401  # any plugin
    if not module_name or not attribute:
        raise ConfigError(f"{kind} {name!r}: expected an import path 'package.module:name'")
    module = call_foreign(kind, name, f"importing {module_name!r}", importlib.import_module, module_name)
    return call_foreign(kind, name, f"finding {attribute!r}", operator.attrgetter(attribute), module)


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    # An installed command does not see the folder it is called from; users expect it to.
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)
