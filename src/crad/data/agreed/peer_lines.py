"""What a member's peer.toml may say of its own file, and the very lines that a refusal tells it to write there."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from crad.config import TextLine
from crad.data.columns import Column
from crad.data.readers.table_file import shown_names
from crad.errors import ConfigError, printable

SHOWN = 8  # of many values in one line


def _text(value: object) -> object:
    """Return a code as the text that a file has: people write 0 and "0"."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.17g}" if is_number else value


def _texts(value: object) -> object:
    return tuple(map(_text, value)) if isinstance(value, list | tuple) else (_text(value),)


def _text_values(value: object) -> object:
    return {key: _text(one) for key, one in value.items()} if isinstance(value, Mapping) else value


Codes = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Mapped = Annotated[dict[str, str], BeforeValidator(_text_values)]


class ColumnMapping(BaseModel):
    """How one agreed column stands in a member's own file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: TextLine | None = None  # what it is called here; None: as agreed
    absent: bool = False  # it is not there: a gap in every row
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1.0  # the agreed value is ours times this
    offset: Annotated[float, Field(allow_inf_nan=False)] = 0.0  # and plus this
    missing: Codes | None = None  # what means a gap here, in place of the agreed code; before factor and offset
    categories: Mapped = Field(default_factory=dict)  # ours to agreed
    outside: Literal["refuse", "gap"] = "refuse"  # what is done with values outside the agreed range

    def check(self, column: Column) -> None:
        """Refuse what cannot be said of this column."""
        where = f"columns.{toml_key(column.name)} in peer.toml"
        if self.absent and self != ColumnMapping(absent=True):
            raise ConfigError(f"{where}: is absent, and something else is said of it too: remove one")
        if self.factor == 0:
            raise ConfigError(f"{where}: factor = 0 would make one number of all")
        if column.categories is not None and (self.factor, self.offset, self.outside) != (1.0, 0.0, "refuse"):
            raise ConfigError(f"{where}: factor, offset and outside are for numbers, and this is a category")
        if column.categories is None and self.categories:
            raise ConfigError(f"{where}: categories are for categories, and this is a number")
        unknown = [one for one in self.categories.values() if one not in (column.categories or ())]
        if unknown:
            agreed = listed(column.categories or ())
            raise ConfigError(f"{where}: categories name {quoted(unknown[0])}, the agreed ones are {agreed}")


class LabelMapping(BaseModel):
    """How the label stands in a member's own file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: TextLine | None = None  # what its column is called here; None: as agreed
    classes: Mapped = Field(default_factory=dict)  # our values to agreed classes

    @property
    def is_said(self) -> bool:
        """Return whether peer.toml says anything of it."""
        return self != LabelMapping()


def check_known(said: Iterable[str], agreed: Sequence[str]) -> None:
    """Refuse what peer.toml says of a column that nobody has agreed on."""
    for name in said:
        if name not in agreed:
            near = difflib.get_close_matches(name, agreed, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"columns.{toml_key(name)} in peer.toml: the federation has no such column.{hint} Agreed: "
                f"{shown_names(list(agreed))}"
            )


def other_columns(free: Sequence[str]) -> str:
    """Say which columns of a file are none of the agreed ones: one of them may be what is lacking."""
    return f"not agreed on are {printable(shown_names(free))}" if free else "all its columns are other agreed ones"


def nearest(name: str, names: Sequence[str]) -> str:
    """Return the name that is most like this one, or dots where none is."""
    near = difflib.get_close_matches(name.lower(), [one.lower() for one in names], n=1, cutoff=0.4)
    return names[[one.lower() for one in names].index(near[0])] if near else "..."


def quoted(text: str) -> str:
    """Return a text of somebody's file for a line."""
    return f"'{printable(text)}'"


def listed(values: Collection[str]) -> str:
    """Return the first of several values for a line."""
    rest = len(values) - SHOWN
    return ", ".join(map(quoted, list(values)[:SHOWN])) + (f" and {rest} more" if rest > 0 else "")


def toml_line(*keys: str, **last: Any) -> str:  # noqa: ANN401  # plain values of TOML
    """Return a line of peer.toml: `columns.chol.missing = "0"`; it stands above any [table] of the file."""
    [(name, value)] = last.items()
    return f"{'.'.join(map(toml_key, (*keys, name)))} = {_toml(value)}"


def toml_key(name: str) -> str:
    """Return a name as it stands before an equals sign."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(printable(name), ensure_ascii=False)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(printable(value), ensure_ascii=False)
