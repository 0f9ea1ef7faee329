"""How a name becomes an object: a built-in, an entry point of another package, or an import path.

Models, rules, methods all resolve their names here, so that a user's own part is named the same way everywhere.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from crad.errors import ConfigError, unknown_name


def resolve(kind: str, name: str, *, known: Mapping[str, Any], group: str) -> Any:  # noqa: ANN401  # any plugin
    """The object behind `name`: in `known`, an entry point of `group`, or `package.module:attribute`."""
    if name in known:
        return known[name]
    for entry in metadata.entry_points(group=group):
        if entry.name == name:
            return _load(kind, name, entry.load)
    if ":" in name:
        return _load(kind, name, lambda: _import_path(name))
    others = {entry.name for entry in metadata.entry_points(group=group)}
    raise unknown_name(kind, name, {*known, *others})


def _load(kind: str, name: str, load: Any) -> Any:  # noqa: ANN401  # any plugin
    try:
        with _current_directory_importable():
            return load()
    except ConfigError:
        raise
    except Exception as error:  # a plugin may fail in any way; the user gets one line
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{kind} {name!r} cannot be imported ({reason}); write it as package.module:name") from error


def _import_path(path: str) -> Any:  # noqa: ANN401  # any plugin
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{path!r} is no import path; write it as package.module:name")
    return getattr(importlib.import_module(module_name), attribute)


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    # A script installed as a command does not see the folder it is called from; users expect it to.
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
