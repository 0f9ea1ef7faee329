"""The schema of a table: its columns, in order, and what their values may be. Agreed on, and no statistic.

A row is float32 [F], one value per column: a number as it is, a category as its place in the schema's list (one after
the last: a category that the schema does not know), a gap as NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.errors import ConfigError

Rows = NDArray[np.float32]  # [N, F]


@dataclass(frozen=True)
class Column:
    """A column: numbers, or one of these categories."""

    name: str
    categories: tuple[str, ...] | None = None  # None: it holds numbers
    missing: str | None = None  # a code that means a gap, beside the usual words for it
    range: tuple[float, float] | None = None  # of numbers: what is expected, both ends included
    unit: str | None = None  # of numbers, for people

    @property
    def kind(self) -> str:
        """Return what people call it."""
        return "number" if self.categories is None else "category"

    @property
    def size(self) -> int:
        """Return how many categories it has, 0 for numbers."""
        return len(self.categories or ())

    def shown(self, value: float) -> str:
        """Return a value of a row as a person wrote it."""
        if np.isnan(value):
            return "gap"
        if self.categories is None:
            return f"{value:g}"
        return self.categories[int(value)] if 0 <= value < self.size else "unknown"


def numeric_columns(names: Sequence[str]) -> tuple[Column, ...]:
    """Return a schema of numbers alone."""
    return tuple(Column(name) for name in names)


def columns_to_json(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Return a schema as plain values."""
    return [
        {
            "name": one.name,
            "kind": one.kind,
            **({} if one.categories is None else {"categories": list(one.categories)}),
            **({} if one.missing is None else {"missing": one.missing}),
            **({} if one.range is None else {"range": list(one.range)}),
            **({} if one.unit is None else {"unit": one.unit}),
        }
        for one in columns
    ]


def columns_from_json(entries: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Read what `columns_to_json` wrote."""
    return tuple(
        Column(
            str(one["name"]),
            tuple(map(str, one["categories"])) if one["kind"] == "category" else None,
            None if one.get("missing") is None else str(one["missing"]),
            _range_of(one.get("range")),
            None if one.get("unit") is None else str(one["unit"]),
        )
        for one in entries
    )


def check_standardize(how: str, columns: Sequence[Column], *, is_private: bool = False) -> None:
    """Refuse to standardise by agreed ranges what has none: samples of another kind, or a column of numbers.

    In private training refuse own statistics: they travel with the network, and nothing noises them.
    """
    if how == "own":
        if is_private and any(one.categories is None for one in columns):
            raise ConfigError(
                "private_training: means and deviations of own rows would travel with the network: set "
                "standardize = 'schema', and a range for every column of numbers, such as ranges=age=0:120"
            )
        return
    if not columns:
        raise ConfigError(f"standardize is {how!r}, which is for tables: leave it out")
    without = next((one.name for one in columns if one.categories is None and one.range is None), None)
    if without is not None:
        raise ConfigError(
            f"standardize is {how!r}, but column {without!r} has no range: agree on one, such as ranges={without}=0:100"
        )


def _range_of(pair: Sequence[float] | None) -> tuple[float, float] | None:
    if pair is None:
        return None
    low, high = pair
    return float(low), float(high)
