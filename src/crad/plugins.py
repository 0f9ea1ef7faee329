"""How a name becomes an object: a built-in, an entry point of another package, an import path, or passed in memory.

Models, rules and methods all resolve their names here, so that a user's own part is named the same way everywhere.
Entry points and import paths import code: never resolve a name that came from a peer.

What was passed to `crad.run` as an object is called `object:NAME` in settings and records; it is there as long as the
call lasts, and no file has it.
"""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from typing import Any

from crad.errors import ConfigError, unknown_name

OBJECT = "object:"
_KEYWORDS = {"data set": "data=...", "model": "models=[...]"}  # of crad.run; a rule is passed as a method's
_passed: ContextVar[Mapping[str, Any]] = ContextVar("passed", default={})  # noqa: B039  # nobody changes it


@contextmanager
def passing(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let the names `object:NAME` mean these objects inside the block, in this thread."""
    token = _passed.set({**_passed.get(), **objects})
    try:
        yield
    finally:
        _passed.reset(token)


def is_object(name: str) -> bool:
    """Return whether a name stands for something that was passed in memory."""
    return name.startswith(OBJECT)


def passed_object(kind: str, name: str) -> Any:  # noqa: ANN401  # whatever was passed
    """Return what was passed under this name; refuse one that was passed to an earlier call."""
    found = _passed.get()
    if name not in found:
        keyword = _KEYWORDS.get(kind, f"{kind}=...")
        raise ConfigError(
            f"{kind} {name.removeprefix(OBJECT)!r} was an object in Python's memory, which no file holds: pass it "
            f"again as {keyword} to crad.run(..., resume=True), crad.load or crad.compare"
        )
    return found[name]


def resolve(kind: str, name: str, *, known: Mapping[str, Any], group: str) -> Any:  # noqa: ANN401  # any plugin
    """Return the object behind `name`: in `known`, an entry point of `group`, or `package.module:attribute`."""
    if name in known:
        return known[name]
    if is_object(name):
        return passed_object(kind, name)
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
