"""Tables between organisations: columns, categories, codes for gaps, units and ranges that all have agreed on.

The schema is a text that somebody else may have written: lengths and numbers are bounded before anything is built.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from crad.config import TextLine
from crad.data.agreed.data_schema import Draft, OwnFile, WrittenSchema
from crad.data.agreed.own_data import OwnData
from crad.data.agreed.own_table import load_own_table
from crad.data.columns import Column, check_standardize, columns_to_json
from crad.data.dataset import Dataset
from crad.data.kinds import ReadOptions
from crad.data.kinds.kind import OF_TABLES, refuse_options
from crad.data.kinds.table import TablePreprocessor, options_for, raw_table_of
from crad.data.readers.table_file import labels_of, understand
from crad.errors import ConfigError

MAX_COLUMNS = 10_000
MAX_CATEGORIES = 1000  # of a column
MAX_VALUES = 100_000  # that a row becomes: a number, a gap and each category are one
MAX_NUMBER = 1e30
End = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]


class AgreedColumn(BaseModel):
    """One column: numbers, perhaps with a unit and a range, or one of these categories."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: TextLine
    kind: Literal["number", "category"]
    categories: Annotated[tuple[TextLine, ...], Field(min_length=1, max_length=MAX_CATEGORIES, strict=False)] | None = (
        None
    )
    missing: TextLine | None = None
    range: Annotated[tuple[End, End], Field(strict=False)] | None = None
    unit: TextLine | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.kind == "category") != (self.categories is not None):
            raise ValueError(f"column {self.name!r}: a category has categories, and a number has none")
        if self.categories is not None and len(set(self.categories)) < len(self.categories):
            raise ValueError(f"column {self.name!r}: a category is named twice")
        if self.categories is not None and (self.range is not None or self.unit is not None):
            raise ValueError(f"column {self.name!r}: range and unit are for numbers")
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"column {self.name!r}: range = {list(self.range)}: expected the lower end first")
        return self

    def to_column(self) -> Column:
        """Return it as readers and networks know it."""
        return Column(self.name, self.categories, self.missing, self.range, self.unit)


class TableSchema(WrittenSchema):
    """The columns that everybody has, in this order, and which one is the label."""

    kind: Literal["table"] = "table"
    label: TextLine
    columns: Annotated[tuple[AgreedColumn, ...], Field(min_length=1, max_length=MAX_COLUMNS, strict=False)]

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> Self:
        """Check plain values of a file; pydantic's ValidationError says what is wrong."""
        found = given.get("columns")
        if isinstance(found, list | tuple) and len(found) > MAX_COLUMNS:
            raise ValueError(f"columns: {len(found)} of them, at most {MAX_COLUMNS} can be agreed on")
        return super().from_plain(given)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            [(twice, _)] = Counter(names).most_common(1)
            raise ValueError(f"columns: {twice!r} stands there twice")
        if self.label in names:
            raise ValueError(f"label = {self.label!r}: is among the columns too; nobody may learn from the label")
        values = sum(2 if one.categories is None else 2 + len(one.categories) for one in self.columns)
        if values > MAX_VALUES:
            raise ValueError(f"columns: a row would become {values} values, at most {MAX_VALUES} can be agreed on")
        return self

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """Return the columns as readers and networks know them."""
        return tuple(column.to_column() for column in self.columns)

    @property
    def augmentation(self) -> str:
        """Return "none": nothing is changed at random."""
        return "none"

    def describe(self) -> str:
        """Return it in a few words."""
        categories = sum(one.categories is not None for one in self.columns)
        kinds = f" ({len(self.columns) - categories} numbers, {categories} categories)" if categories else ""
        return f"rows of {len(self.columns)} columns{kinds}, label {self.label!r}"

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse to standardise by ranges where a column has none."""
        check_standardize(settings.get("standardize", "own"), self.all_columns)

    def travels_along(self, settings: Mapping[str, Any]) -> str:
        """Return the statistics in the first layer, unless they are those of the agreed ranges."""
        if settings.get("standardize", "own") == "schema":
            return ""
        return "mean and deviation of every column of the training rows and which categories and gaps occur in them"

    def empty_dataset(self, classes: Sequence[str]) -> Dataset:
        """Return no rows of these columns."""
        rows, labels = np.empty((0, len(self.columns)), np.float32), np.empty(0, np.int64)
        return Dataset("agreed", rows, labels, rows, labels, tuple(classes), kind="table", columns=self.all_columns)

    def preprocessor(self, device: str) -> TablePreprocessor:
        """Return one that changes nothing: the first layer of a network prepares rows."""
        return TablePreprocessor(torch.device(device))

    def load(self, own: OwnFile, *, classes: Sequence[str], held_out: float, rng: np.random.Generator) -> OwnData:
        """Read a table's file, with the names, units and codes that peer.toml says it has."""
        return load_own_table(own, self.empty_dataset(classes), label=self.label, held_out=held_out, rng=rng)


def draft_table(own: OwnFile, said: ReadOptions) -> Draft:
    """Take columns, categories and classes from the own file, and wide ranges around what occurs in it.

    What peer.toml says of the own file is not looked at: the file as it lies there is the draft.
    """
    refuse_options(said, "table", own.source, allowed=OF_TABLES)
    options = options_for(own.source, said.table)
    if options.site is not None:
        raise ConfigError("site is for simulations: between organisations every member has a file of its own")
    table = raw_table_of(own.source)
    labels, understood = labels_of(table, options), understand(table, options)
    columns = [
        {**plain, **({} if column.categories is not None else {"range": _agreed_range(column, values)})}
        for plain, column, values in zip(
            columns_to_json(understood.columns), understood.columns, understood.rows.T, strict=True
        )
    ]
    return Draft(tuple(sorted(set(labels))), {"data": {"kind": "table", "label": options.label, "columns": columns}})


def _agreed_range(column: Column, values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> list[float]:
    if column.range is not None:
        return list(column.range)
    known = values[~np.isnan(values)].astype(np.float64)
    return list(wide_range(float(known.min()), float(known.max())))


def wide_range(low: float, high: float) -> tuple[float, float]:
    """Return a range that other members' values are likely to be in and another unit's are not.

    From half the smallest to twice the largest value, or as far again below zero, outwards to one digit: so that it
    tells little of anybody's rows.
    """
    spread = max(high - low, abs(high), abs(low), 1e-6)
    bottom = low / 2 if low > 0 else low - spread
    top = high * 2 if high > 0 else high + spread
    return _one_digit(bottom, up=False), _one_digit(top, up=True)


def _one_digit(number: float, *, up: bool) -> float:
    if number == 0:
        return 0.0
    power = math.floor(math.log10(abs(number)))
    digit = number / 10.0**power
    return float(f"{math.ceil(digit) if up else math.floor(digit)}e{power}")
