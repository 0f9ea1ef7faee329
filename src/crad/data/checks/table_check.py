"""What was understood of a table's file, column by column: `crad data check FILE`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crad.data.columns import Column
from crad.data.partition import MIN_SAMPLES
from crad.data.readers.table_file import (
    RawTable,
    TableOptions,
    Understood,
    gaps_in,
    labels_of,
    sites_of,
    understand,
)

SHOWN_VALUES = 8


@dataclass(frozen=True)
class ColumnReport:
    """One column: what it holds, how many rows say nothing there, and which values occur."""

    name: str
    holds: str  # number, category, label, site, or left out
    gaps: int
    values: str


@dataclass(frozen=True)
class TableReport:
    """A table as a run would read it; without a label only its columns."""

    path: str
    rows: int
    inputs: int  # columns that a network learns from
    classes: dict[str, int] | None  # rows of each; None: nobody said which column is the label
    sites: dict[str, int] | None
    columns: tuple[ColumnReport, ...]
    warnings: tuple[str, ...]


def check_table(table: RawTable, options: TableOptions) -> TableReport:
    """Say what was understood of a table; what a run would refuse is refused here."""
    understood = understand(table, options)
    classes = None if options.label is None else dict(sorted(Counter(labels_of(table, options)).items()))
    found = sites_of(table, options)
    sites = None if found is None else dict(sorted(Counter(found).items()))
    return TableReport(
        path=table.where,
        rows=len(table),
        inputs=len(understood.columns),
        classes=classes,
        sites=sites,
        columns=tuple(_column(table, name, options, understood) for name in table.names),
        warnings=tuple(_warnings(table, options, understood, sites)),
    )


def _column(table: RawTable, name: str, options: TableOptions, understood: Understood) -> ColumnReport:
    texts = table.column(name)
    gaps = gaps_in(texts, options.missing.get(name))
    if name == options.label:
        return ColumnReport(name, "label", gaps, _listed(sorted(set(texts))))
    if name == options.site:
        return ColumnReport(name, "site", gaps, _listed(sorted(set(texts))))
    if name in understood.left_out:
        return ColumnReport(name, "left out", gaps, understood.left_out[name])
    place = next(place for place, column in enumerate(understood.columns) if column.name == name)
    column = understood.columns[place]
    return ColumnReport(name, column.kind, gaps, shown_values(column, understood.rows[:, place]))


def shown_values(column: Column, values: NDArray[np.float32]) -> str:
    """Return which values a column has, in a few words."""
    if column.categories is not None:
        return _listed(column.categories)
    known = values[~np.isnan(values)].astype(np.float64)
    if not len(known):
        return "gaps only"
    return f"{known.min():g} to {known.max():g}, median {np.median(known):g}"


def _warnings(
    table: RawTable, options: TableOptions, understood: Understood, sites: dict[str, int] | None
) -> list[str]:
    found = []
    if options.label is None:
        found.append(f"no column is the label yet: a run needs label, such as label={table.names[-1]}")
    for place, column in enumerate(understood.columns):
        values = understood.rows[:, place]
        if column.categories is None and stands_apart(values):
            zeros, least = int((values == 0).sum()), values[values > 0].min()
            found.append(
                f"column {column.name!r} is 0 in {zeros} rows and {least:g} or more in all others: if 0 means "
                f"a gap, say missing={column.name}=0"
            )
    return found + too_small_sites(sites)


def too_small_sites(sites: Mapping[str, int] | None) -> list[str]:
    """Say which sites have too few rows."""
    few = [(site, count) for site, count in (sites or {}).items() if count < MIN_SAMPLES + 2]
    return [f"site {site!r} has {count} rows: too few for a client of its own" for site, count in few]


def stands_apart(values: NDArray[np.float32]) -> bool:
    """Return whether zeros stand alone: further below all others than those spread."""
    others = values[(values != 0) & ~np.isnan(values)].astype(np.float64)
    if not (values == 0).any() or not len(others):
        return False
    return bool(others.min() > others.std() and others.min() > 10)


def _listed(values: list[str] | tuple[str, ...]) -> str:
    rest = len(values) - SHOWN_VALUES
    return ", ".join(values[:SHOWN_VALUES]) + (f" and {rest} more" if rest > 0 else "")
