"""The exception tree. Every error a user can cause is one of these and reads as one clear line.

    CradError
    ├── ConfigError       a setting, name or combination of settings that cannot work
    ├── DataError         a data file that is missing, corrupt or not what was expected
    │   └── PartitionError    the data cannot be divided among the clients as asked
    ├── AggregationError  tensors or statistics that no rule may combine
    ├── SnapshotError     bytes from a peer that are refused
    ├── ExchangeError     too few members of a federation can be reached
    └── RunError          a run directory that cannot be used as asked
        └── BusyError         another process works on it

The command line prints the message of a `CradError` on one line and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the list of verbs, which needs no pydantic, imports this module
    from pydantic import ValidationError

MAX_QUOTED = 120  # characters of a peer's words in a message


class CradError(Exception):
    """Base of every error that is the input's fault, not the program's.

    Example:
        >>> import crad
        >>> try:
        ...     crad.Experiment(clients=0)
        ... except crad.CradError as error:
        ...     print(error)
        clients = 0: input should be greater than or equal to 1
    """


class ConfigError(CradError):
    """A setting, name or combination of settings that cannot work."""


class DataError(CradError):
    """A data file that is missing, corrupt or not what was expected."""


class PartitionError(DataError):
    """The data cannot be divided among the clients as asked."""


class AggregationError(CradError):
    """Tensors or statistics that no rule may combine."""


class SnapshotError(CradError):
    """Bytes from a peer that are refused."""


class ExchangeError(CradError):
    """Too few members of a federation can be reached."""


class RunError(CradError):
    """A run directory that cannot be used as asked."""


class BusyError(RunError):
    """A run directory that another process works on."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """Make the error for a name that is not in a registry: the known ones and the nearest match."""
    names, given = sorted(known), str(name)[:MAX_QUOTED]
    nearest = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return ConfigError(f"unknown {kind} {given!r}.{hint} Known: {', '.join(names)}")


def install_hint(extra: str) -> str:
    """Return how an extra is installed; the package is on no index yet, so it is from its source tree."""
    return f"pip install '.[{extra}]' in a clone of the project"


def with_article(noun: str) -> str:
    """Return a noun with "a" or "an" before it."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def printable(text: object) -> str:
    """Return a peer's words as one short printable line: no line breaks, terminal codes or floods reach a log."""
    words = str(text)[:MAX_QUOTED]
    return words if words.isprintable() else ascii(words)[1:-1]


def client_number(value: object, *, clients: int, argument: str = "client") -> int:
    """Return a number of Python's or numpy's as Python's own; what is none, also True, is refused by its argument."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{argument}: {shown(value)} is no client's number; choose 0 to {clients - 1}")
    return int(value)


def shown(value: object) -> str:
    """Return whatever was given as one short printable line, also a number that is too long for Python to write."""
    try:
        words = repr(value)
        return printable(words if len(words) <= 40 else f"{words[:40]}...")
    except ValueError:
        return "a number of thousands of digits"


def escaped(text: str) -> str:
    """Return a file's own words with terminal codes and line breaks written out, however long they are."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def first_fault(error: ValidationError, *, depth: int | None = None) -> str:
    """Return the first fault in what a user wrote: which key, its value and what is wrong with it.

    `depth`: how many steps into nested tables the key names.
    """
    fault = error.errors(include_url=False, include_context=False)[0]
    message = fault["msg"].removeprefix("Value error, ")
    place = printable(".".join(map(str, fault["loc"][:depth])))  # a key may be anybody's words too
    if not place:
        return message
    value = fault["input"]
    shown = repr(value[:MAX_QUOTED]) if isinstance(value, str) else printable(repr(value))
    said = "" if fault["type"] == "missing" else f" = {shown}"
    return f"{place}{said}: {message[0].lower()}{message[1:]}"


def first_foreign_fault(error: ValidationError) -> str:
    """Return the first fault in what a peer sent: where and what, in one printable line without the peer's words."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, fault["loc"])) or "the whole"
    return f"{printable(place)}: {printable(fault['msg'])}"
