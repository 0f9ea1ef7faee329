"""A member's own table under the agreed columns, whatever names, units and codes of its own peer.toml says it has.

Whatever does not fit is refused in one line with the column's name and the line to write into peer.toml. N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from crad.data.agreed.own_data import OwnData
from crad.data.agreed.own_labels import free_columns, labels_of_table
from crad.data.agreed.peer_lines import (
    SHOWN,
    ColumnMapping,
    check_known,
    listed,
    nearest,
    other_columns,
    quoted,
    toml_key,
    toml_line,
)
from crad.data.checks.table_check import ColumnReport, shown_values, stands_apart
from crad.data.columns import Column
from crad.data.dataset import Dataset
from crad.data.kinds.table import raw_table_of
from crad.data.partition import MIN_SAMPLES, split_shard
from crad.data.readers.table_file import (
    SUFFIXES,
    RawTable,
    number_of,
    outside_range,
    plain_code,
    values_of,
    with_gaps,
)
from crad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from crad.data.agreed.data_schema import OwnFile

Values = NDArray[np.float64]  # [N]


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
    free = free_columns(table, own, [column.name for column in agreed.columns], label=label)
    labels = labels_of_table(table, own, free, label=label, classes=agreed.class_names)
    read = [_column(table, column, own, free, label=label) for column in agreed.columns]
    if len(table) < MIN_SAMPLES:
        raise DataError(f"{table.where}: has {len(table)} rows; a member needs at least {MIN_SAMPLES}")
    rows = np.stack([values.astype(np.float32) for values, _ in read], axis=1)
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
    check_known(own.columns, list(known))
    for name, mapping in own.columns.items():
        mapping.check(known[name])


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
            f"columns.{toml_key(column.name)} in peer.toml: {name!r} is the label here, and nobody may learn from it"
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
        f"{table.where}: lacks {said} ({_agreed(column)}); {other_columns(free)}: write "
        f"{toml_line('columns', column.name, name=nearest(name, free))} into peer.toml, with its name here, or "
        f"{toml_line('columns', column.name, absent=True)} if it is not measured here"
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
            f"{place} holds {listed(unknown)} (line {line}), the agreed categories are {listed(column.categories)}: "
            f"write {toml_line('columns', column.name, categories=wanted)} into peer.toml, or "
            f"{toml_line('columns', column.name, missing=unknown[0])} if it means a gap"
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
                f"{place} holds {quoted(cell)} in line {line}, and numbers are agreed on: correct it, or write "
                f"{toml_line('columns', column.name, missing=cell)} into peer.toml if it means a gap"
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
        advice = f"{toml_line('columns', column.name, missing=f'{raw[outside][0]:g}')} into peer.toml if it means a gap"
    elif 2 * len(found) > len(known):
        advice = f"columns.{toml_key(column.name)}.factor = ... into peer.toml if it has another unit here"
    else:
        advice = f"{toml_line('columns', column.name, outside='gap')} into peer.toml to have such values as gaps"
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
                f"{toml_line('columns', column.name, missing='0')} into peer.toml"
            )
    return found


def _place(table: RawTable, column: Column, name: str) -> str:
    """Return where a value stands, for the beginning of a refusal."""
    return f"{table.where}: column {name!r}" + (f" (agreed: {column.name!r})" if name != column.name else "")


def _agreed(column: Column) -> str:
    return column.kind + (f", {column.unit}" if column.unit else "")
