"""A member's own table under the agreed columns, whatever names, units and codes of its own peer.toml says it has.

Whatever does not fit is refused in one line with the column's name and the line to write into peer.toml. N rows.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from crad.config import TextLine
from crad.data.checks.table_check import ColumnReport, shown_values, stands_apart
from crad.data.columns import Column
from crad.data.dataset import Dataset
from crad.data.kinds.table import raw_table_of
from crad.data.partition import MIN_SAMPLES, split_shard
from crad.data.readers.table_file import (
    SUFFIXES,
    RawTable,
    filled,
    number_of,
    outside_range,
    plain_code,
    shown_names,
    values_of,
    with_gaps,
)
from crad.data.site_data import AS_AGREED, OwnData
from crad.errors import ConfigError, DataError, printable

if TYPE_CHECKING:
    from crad.data.agreed.data_schema import OwnFile

SHOWN = 8  # of many values in one line
Values = NDArray[np.float64]  # [N]


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
        where = f"columns.{_key(column.name)} in peer.toml"
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
            agreed = _listed(column.categories or ())
            raise ConfigError(f"{where}: categories name {_quoted(unknown[0])}, the agreed ones are {agreed}")


class LabelMapping(BaseModel):
    """How the label stands in a member's own file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: TextLine | None = None  # what its column is called here; None: as agreed
    classes: Mapped = Field(default_factory=dict)  # our values to agreed classes

    @property
    def is_said(self) -> bool:
        """Return whether peer.toml says anything of it."""
        return self != LabelMapping()


def load_own_table(own: OwnFile, agreed: Dataset, *, label: str, held_out: float, rng: np.random.Generator) -> OwnData:
    """Read a member's table as rows of the agreed columns and classes, which an empty data set has.

    Its rows are divided as those of a client in a simulation: the same `rng` over as many rows gives the same parts.
    """
    if not own.source.lower().endswith(SUFFIXES):
        raise DataError(
            f"{own.source}: the federation agreed on a table: name a {', '.join(SUFFIXES)} file as data in peer.toml"
        )
    table = raw_table_of(own.source)
    _check_mapping(own, agreed.columns)
    names = {own.label.name or label, *(_own_name(column, own.columns) for column in agreed.columns)}
    free = tuple(name for name in table.names if name not in names)
    labels = _labels(table, own, free, label=label, classes=agreed.class_names)
    read = [_column(table, column, own, free, label=label) for column in agreed.columns]
    if len(table) < MIN_SAMPLES:
        raise DataError(f"{table.where}: has {len(table)} rows; a member needs at least {MIN_SAMPLES}")
    rows = np.stack([values for values, _ in read], axis=1).astype(np.float32)
    dataset = Dataset(
        name=agreed.name,
        train_samples=rows,
        train_labels=labels,
        test_samples=rows[:0],
        test_labels=labels[:0],
        class_names=agreed.class_names,
        kind="table",
        columns=agreed.columns,
    )
    return OwnData(
        dataset,
        split_shard(np.arange(len(table)), held_out=held_out, rng=rng),
        columns=tuple(report for _, report in read),
        passed_over=free,
        warnings=tuple(_warnings(agreed.columns, rows)),
    )


def _check_mapping(own: OwnFile, columns: Sequence[Column]) -> None:
    known = {column.name: column for column in columns}
    for name, mapping in own.columns.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"columns.{_key(name)} in peer.toml: the federation has no such column.{hint} Agreed: "
                f"{shown_names(list(known))}"
            )
        mapping.check(known[name])


def _own_name(column: Column, mappings: Mapping[str, ColumnMapping]) -> str | None:
    mapping = mappings.get(column.name, ColumnMapping())
    return None if mapping.absent else mapping.name or column.name


def _labels(
    table: RawTable, own: OwnFile, free: Sequence[str], *, label: str, classes: Sequence[str]
) -> NDArray[np.int64]:
    """Return the agreed number of every row's class."""
    name = own.label.name or label
    if name not in table.names:
        which = f"the label {name!r} of peer.toml" if own.label.name else f"the agreed label {label!r}"
        raise DataError(
            f"{table.where}: lacks {which}; {_others(free)}: write {_line('label', name=_nearest(name, free))} into "
            "peer.toml, with its name here"
        )
    cells = filled(table, name, with_gaps(table.column(name), None))
    means = {**_numbered(own, classes), **own.label.classes}
    for value, agreed_class in means.items():
        if agreed_class not in classes:
            raise ConfigError(
                f"classes in peer.toml: label {_quoted(value)} means {_quoted(agreed_class)} there, the agreed classes "
                f"are {_listed(classes)}"
            )
    places = {one: place for place, one in enumerate(classes)}
    said = [means.get(cell, means.get(plain_code(cell), cell)) for cell in cells]
    unknown = list(dict.fromkeys(cell for cell, one in zip(cells, said, strict=True) if one not in places))
    if unknown:
        raise DataError(
            f"{table.where}: label column {name!r} holds {_listed(unknown)}, the agreed classes are "
            f"{_listed(classes)}: write {_line('label', classes=dict.fromkeys(unknown[:SHOWN], '...'))} into peer.toml"
        )
    return np.array([places[one] for one in said], dtype=np.int64)


def _numbered(own: OwnFile, classes: Sequence[str]) -> dict[str, str]:
    """Return what labels 0, 1, 2, ... mean where peer.toml has a list of classes, or says that it is the agreed one."""
    names = classes if own.classes == AS_AGREED else own.classes or ()
    return {str(number): name for number, name in enumerate(names)}


def _column(
    table: RawTable, column: Column, own: OwnFile, free: Sequence[str], *, label: str
) -> tuple[Values, ColumnReport]:
    """Return one agreed column's values, and what was understood of it."""
    mapping = own.columns.get(column.name, ColumnMapping())
    if mapping.absent:
        return np.full(len(table), np.nan), ColumnReport(column.name, column.kind, len(table), "absent here: all gaps")
    name = mapping.name or column.name
    if name == (own.label.name or label):
        raise ConfigError(
            f"columns.{_key(column.name)} in peer.toml: {name!r} is the label here, and nobody may learn from it"
        )
    if name not in table.names:
        _refuse_lacking(table, column, name, free)
    cells: list[str | None] = list(table.column(name))
    for code in (column.missing,) if mapping.missing is None else (None, *mapping.missing):
        cells = with_gaps([cell or "" for cell in cells], code)
    place = _place(table, column, name)
    values = (_categories if column.categories is not None else _numbers)(table, column, mapping, cells, place)
    said = [f"here {name!r}"] if name != column.name else []
    said += [f"times {mapping.factor:g}"] if mapping.factor != 1 else []
    said += [f"plus {mapping.offset:g}"] if mapping.offset else []
    note = f" ({', '.join(said)})" if said else ""
    return values, ColumnReport(
        column.name, column.kind, int(np.isnan(values).sum()), shown_values(column, values.astype(np.float32)) + note
    )


def _refuse_lacking(table: RawTable, column: Column, name: str, free: Sequence[str]) -> NoReturn:
    said = f"the column {name!r} of peer.toml" if name != column.name else f"the agreed column {name!r}"
    raise DataError(
        f"{table.where}: lacks {said} ({_agreed(column)}); {_others(free)}: write "
        f"{_line('columns', column.name, name=_nearest(name, free))} into peer.toml, with its name here, or "
        f"{_line('columns', column.name, absent=True)} if it is not measured here"
    )


def _categories(
    table: RawTable, column: Column, mapping: ColumnMapping, cells: Sequence[str | None], place: str
) -> Values:
    assert column.categories is not None, "a category"
    known, means = set(column.categories), mapping.categories
    said = [None if cell is None else means.get(cell, means.get(plain_code(cell), cell)) for cell in cells]
    unknown = list(dict.fromkeys(one for one in said if one is not None and not {one, plain_code(one)} & known))
    if unknown:
        line, wanted = table.lines[said.index(unknown[0])], dict.fromkeys(unknown[:SHOWN], "...")
        raise DataError(
            f"{place} holds {_listed(unknown)} (line {line}), the agreed categories are {_listed(column.categories)}: "
            f"write {_line('columns', column.name, categories=wanted)} into peer.toml, or "
            f"{_line('columns', column.name, missing=unknown[0])} if it means a gap"
        )
    return values_of(table, column, said)


def _numbers(
    table: RawTable, column: Column, mapping: ColumnMapping, cells: Sequence[str | None], place: str
) -> Values:
    try:
        raw = values_of(table, column, cells)
    except DataError:
        _refuse_text(table, column, cells, place)
        raise
    values = raw if (mapping.factor, mapping.offset) == (1.0, 0.0) else raw * mapping.factor + mapping.offset
    outside = outside_range(values, column.range) | ~(np.abs(values) <= np.finfo(np.float32).max) & ~np.isnan(values)
    if outside.any() and mapping.outside == "refuse":
        _refuse_range(table, column, values, raw, outside, place)
    return np.where(outside, np.nan, values)


def _refuse_text(table: RawTable, column: Column, cells: Sequence[str | None], place: str) -> None:
    """Refuse the first cell that is no number, if there is one."""
    for cell, line in zip(cells, table.lines, strict=True):
        if cell is not None and number_of(cell, table) is None:
            raise DataError(
                f"{place} holds {_quoted(cell)} in line {line}, and numbers are agreed on: correct it, or write "
                f"{_line('columns', column.name, missing=cell)} into peer.toml if it means a gap"
            )


def _refuse_range(
    table: RawTable, column: Column, values: Values, raw: Values, outside: NDArray[np.bool_], place: str
) -> NoReturn:
    """Say what lies outside the agreed range, and what that may be: a code for a gap, another unit, or slips."""
    found, known = values[outside], values[~np.isnan(values)]
    low, high = column.range or (-np.inf, np.inf)
    lowest, highest = float(found.min()), float(found.max())
    what = f"{lowest:g}" if lowest == highest else f"{lowest:g} to {highest:g}"
    if len(np.unique(found)) == 1 and len(found) < len(known):
        advice = f"{_line('columns', column.name, missing=f'{raw[outside][0]:g}')} into peer.toml if it means a gap"
    elif 2 * len(found) > len(known):
        advice = f"columns.{_key(column.name)}.factor = ... into peer.toml if it has another unit here"
    else:
        advice = f"{_line('columns', column.name, outside='gap')} into peer.toml to have such values as gaps"
    line, unit = table.lines[int(outside.argmax())], f" {column.unit}" if column.unit else ""
    raise DataError(
        f"{place} has {what} in {len(found)} of {len(known)} rows (line {line}), the agreed range is {low:g} to "
        f"{high:g}{unit}: correct it, or write {advice}"
    )


def _warnings(columns: Sequence[Column], rows: NDArray[np.float32]) -> list[str]:
    """Name columns whose zeros are probably gaps, and those that say nothing here."""
    found = []
    for column, values in zip(columns, rows.T, strict=True):
        if column.categories is None and stands_apart(values):
            zeros = int((values == 0).sum())
            found.append(
                f"column {column.name!r} is 0 in {zeros} rows and far from it in all others: if 0 means a gap, write "
                f"{_line('columns', column.name, missing='0')} into peer.toml"
            )
    return found


def _place(table: RawTable, column: Column, name: str) -> str:
    """Return where a value stands, for the beginning of a refusal."""
    return f"{table.where}: column {name!r}" + (f" (agreed: {column.name!r})" if name != column.name else "")


def _agreed(column: Column) -> str:
    return column.kind + (f", {column.unit}" if column.unit else "")


def _others(free: Sequence[str]) -> str:
    """Say which columns of a file are none of the agreed ones: one of them may be what is lacking."""
    return f"not agreed on are {printable(shown_names(free))}" if free else "all its columns are other agreed ones"


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.lower(), [one.lower() for one in names], n=1, cutoff=0.4)
    return names[[one.lower() for one in names].index(near[0])] if near else "..."


def _quoted(text: str) -> str:
    return f"'{printable(text)}'"


def _listed(values: Collection[str]) -> str:
    rest = len(values) - SHOWN
    return ", ".join(map(_quoted, list(values)[:SHOWN])) + (f" and {rest} more" if rest > 0 else "")


def _line(*keys: str, **last: Any) -> str:  # noqa: ANN401  # plain values of TOML
    """Return a line of peer.toml: `columns.chol.missing = "0"`; it stands above any [table] of the file."""
    [(name, value)] = last.items()
    return f"{'.'.join(map(_key, (*keys, name)))} = {_toml(value)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(printable(name), ensure_ascii=False)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(printable(value), ensure_ascii=False)
