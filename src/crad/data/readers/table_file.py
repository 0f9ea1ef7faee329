"""Reads tables: CSV in every dialect people save it in, and Parquet. What is not understood is refused by its column.

A reader ends in a `RawTable`, texts as they stand there; `understand` makes numbers and categories of it. N rows, F
columns that are inputs.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.config import Experiment
from crad.data.columns import Column, Rows
from crad.data.readers.packed_texts import PackedTexts
from crad.errors import ConfigError, DataError, install_hint, unknown_name

SUFFIXES = (".csv", ".tsv", ".parquet")
DELIMITERS = ",;\t|"
GAPS = frozenset({"", "NA", "N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A", "?"})
MAX_CATEGORIES = 100
FEW = 20  # so many categories are plausible however short the table is
MOSTLY = 0.9  # of a column's values: the rest is a slip and no other kind
MAX_FIELD = 1 << 24  # letters: a long document, and not the whole file behind an open quote
ROWS_PER_BLOCK = 10_000  # that are packed together
HEAD_LETTERS = 1 << 22  # of a text in which its header ends
SHOWN_COLUMNS = 12  # of many in one line
FLOAT32_MAX = float(np.finfo(np.float32).max)

_DATE = re.compile(r"(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2}))([ T].*)?")
_COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")


@dataclass(frozen=True)
class TableOptions:
    """What a person says of a table's columns: settings of the same names, or arguments."""

    label: str | None = None
    site: str | None = None
    ignore: tuple[str, ...] = ()  # columns that are no input
    categories: tuple[str, ...] = ()  # columns of numbers that are codes
    missing: Mapping[str, str] = field(default_factory=dict, hash=False)  # a code that means a gap, by column
    text: tuple[str, ...] = ()  # columns that hold texts; none: it is a table of numbers and categories
    vocabulary: int = 8192  # ids that the words of a text are hashed to
    text_length: int = 64  # words of a text that are read
    test_data: str | None = None  # another file with the test rows; None: some are split off
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)  # of numbers, by column


def options_of(settings: Experiment) -> TableOptions:
    """Return what an experiment's settings say of a table's columns."""
    return TableOptions(
        label=settings.label,
        site=settings.site,
        ignore=_names(settings.ignore),
        categories=_names(settings.categories),
        missing=dict(_code_of(entry) for entry in _names(settings.missing)),
        ranges=dict(_range_of(entry) for entry in _names(settings.ranges)),
        text=_names(settings.text),
        vocabulary=settings.vocabulary,
        text_length=settings.text_length,
        test_data=settings.test_data,
    )


@dataclass(frozen=True)
class RawTable:
    """Columns of texts as a file has them; `lines` says where each row stands."""

    where: str
    names: tuple[str, ...]
    texts: tuple[Sequence[str], ...]  # one sequence of N texts per column
    lines: Sequence[int]
    has_comma_fields: bool = True  # fields are divided by commas, so that a comma in a number divides thousands

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, name: str) -> Sequence[str]:
        """Return the texts of a column; refuse a name that is not there."""
        if name not in self.names:
            raise DataError(f"{self.where}: {unknown_name('column', name, self.names)}")
        return self.texts[self.names.index(name)]


@dataclass(frozen=True)
class Understood:
    """What a table means: its inputs, and why some columns are none."""

    columns: tuple[Column, ...]
    rows: Rows  # [N, F]
    left_out: Mapping[str, str]


FileVersion = tuple[int, int]


def file_version(path: Path) -> FileVersion:
    """Return by what a table's file is known to be the one that was read before."""
    try:
        stat = path.stat()
    except OSError:
        raise DataError(f"{path}: no such file, expected a table: {', '.join(SUFFIXES)}") from None
    return stat.st_mtime_ns, stat.st_size


def read_raw_table(path: Path, *, least_columns: int = 2) -> RawTable:
    """Read a .csv, .tsv or .parquet file; one with fewer columns is taken for something else."""
    if not path.is_file():
        raise DataError(f"{path}: no such file, expected a table: .csv, .tsv or .parquet")
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return parse_csv(content, where=str(path), least_columns=least_columns)


def parse_csv(content: bytes, *, where: str, least_columns: int = 2) -> RawTable:
    """Read a CSV file's bytes; the delimiter is found, quoted fields may hold anything."""
    encoding, head = _checked_text(content, where=where)
    delimiter = _delimiter_of(head, where=where, least_columns=least_columns)
    header: list[str] = []
    columns: list[PackedTexts] = []
    lines, rows = array("q"), list[list[str]]()
    for line, record in _records(content, encoding, delimiter, where=where):
        if not header:
            header, columns = [cell.strip() for cell in record], [PackedTexts() for _ in record]
            continue
        if len(record) != len(header):
            raise DataError(f"{where}: line {line} has {len(record)} fields, the header {len(header)}")
        rows.append(record)
        lines.append(line)
        if len(rows) == ROWS_PER_BLOCK:
            _pack(rows, columns)
    _pack(rows, columns)
    if not lines:
        raise DataError(f"{where}: has no rows below its header")
    return _named(where, header, columns, lines, has_comma_fields=delimiter == ",")


def _records(content: bytes, encoding: str, delimiter: str, *, where: str) -> Iterator[tuple[int, list[str]]]:
    """Return the lines on which records end, and their fields; empty ones are passed over."""
    # Not a StringIO, which takes four bytes for every letter.
    text = io.TextIOWrapper(io.BytesIO(content), encoding=encoding, newline="")
    csv.field_size_limit(MAX_FIELD)  # the module's own, an eighth of a million, is less than a long text
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        for record in reader:
            if any(cell.strip() for cell in record):
                yield reader.line_num, record
    except csv.Error as error:
        raise DataError(f"{where}: line {reader.line_num} is no CSV ({error}): is a quote open?") from error


def _pack(rows: list[list[str]], columns: Sequence[PackedTexts]) -> None:
    """Put rows behind the columns so far, and forget them as rows."""
    for column, cells in zip(columns, zip(*rows, strict=True), strict=True) if rows else ():
        column.append_block([cell.strip() for cell in cells])
    rows.clear()


def raw_table_of_frame(frame: Any, *, where: str) -> RawTable:  # noqa: ANN401  # pandas is no dependency
    """Read a pandas DataFrame, or whatever has its `columns` and gives a column by its name."""
    names = [str(name) for name in frame.columns]
    columns = [_texts_of(frame[name]) for name in frame.columns] if len(set(names)) == len(names) else [[]] * len(names)
    return _named(where, names, columns, range(1, len(frame) + 1), has_comma_fields=False)


def understand(table: RawTable, options: TableOptions) -> Understood:
    """Make numbers and categories of every column that is an input; refuse with its name what is neither."""
    for name in (*options.ignore, *options.categories, *options.missing, *options.ranges):
        table.column(name)
    apart = {options.label, options.site}
    columns, values, left_out = [], [], {}
    for name, texts in zip(table.names, table.texts, strict=True):
        if name in apart:
            continue
        if name in options.ignore:
            left_out[name] = "ignored, as asked"
            continue
        cells = with_gaps(texts, options.missing.get(name))
        known = [cell for cell in cells if cell is not None]
        if not known:
            left_out[name] = "empty"
        elif len(set(known)) == 1 and len(known) == len(cells):
            left_out[name] = f"constant: always {known[0]!r}"
        else:
            column = _column_of(table, name, cells, is_category=name in options.categories)
            column = replace(column, missing=options.missing.get(name), range=_agreed_range(column, options))
            columns.append(column)
            found = values_of(table, column, cells)
            _check_range(table, column, found)
            values.append(found.astype(np.float32))
    if not columns:
        raise DataError(
            f"{table.where}: no column is left to learn from: all are empty, constant, ignored or the label"
        )
    return Understood(tuple(columns), np.stack(values, axis=1), left_out)


def rows_as_agreed(table: RawTable, columns: Sequence[Column]) -> Rows:
    """Return the rows of another table under a schema: an unknown category gets its place, a lacking column is refused.

    Columns that the schema does not have are passed over: the label, perhaps.
    """
    lacking = [column.name for column in columns if column.name not in table.names]
    if lacking:
        raise DataError(
            f"{table.where}: lacks column {lacking[0]!r}{f' and {len(lacking) - 1} more' if lacking[1:] else ''}; has "
            f"{shown_names(table.names)}"
        )
    cells = (with_gaps(table.column(column.name), column.missing) for column in columns)
    values = [values_of(table, column, one).astype(np.float32) for column, one in zip(columns, cells, strict=True)]
    return np.stack(values, axis=1)


def labels_of(table: RawTable, options: TableOptions) -> list[str]:
    """Return the class of every row; refuse a column that is no label."""
    name, where = _label_name(table, options), table.where
    labels = filled(table, name, with_gaps(table.column(name), options.missing.get(name)))
    classes = set(labels)
    if len(classes) == 1:
        raise DataError(
            f"{where}: label column {name!r} has one class only, {labels[0]!r}: there is nothing to tell apart"
        )
    if len(classes) > FEW and 5 * len(classes) > len(labels):
        raise DataError(
            f"{where}: label column {name!r} has {len(classes)} different values in {len(labels)} rows, such as "
            f"{labels[0]!r}: is it the label? Classes are told apart here, numbers are not predicted"
        )
    return labels


def filled(table: RawTable, name: str, cells: Sequence[str | None]) -> list[str]:
    """Return the cells of a label column; refuse a row that has none."""
    for cell, line in zip(cells, table.lines, strict=True):
        if cell is None:
            raise DataError(
                f"{table.where}: {list(cells).count(None)} rows have no label in column {name!r}, the first in line "
                f"{line}: fill them in, or take the rows out"
            )
    return [str(cell) for cell in cells]


def sites_of(table: RawTable, options: TableOptions) -> list[str] | None:
    """Return whose row each one is; None where no column says so."""
    if options.site is None:
        return None
    if options.site == options.label:
        raise ConfigError(f"column {options.site!r} is both label and site: name another one")
    cells = with_gaps(table.column(options.site), options.missing.get(options.site))
    for cell, line in zip(cells, table.lines, strict=True):
        if cell is None:
            raise DataError(f"{table.where}: line {line} names no site in column {options.site!r}: fill it in")
    return [str(cell) for cell in cells]


def shown_names(names: Sequence[str]) -> str:
    """Return column names in a line, the first ones of many."""
    rest = len(names) - SHOWN_COLUMNS
    return ", ".join(names[:SHOWN_COLUMNS]) + (f" and {rest} more" if rest > 0 else "")


def gaps_in(texts: Sequence[str], code: str | None = None) -> int:
    """Return how many of a column's cells say nothing."""
    return with_gaps(texts, code).count(None)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _code_of(entry: str) -> tuple[str, str]:
    name, equals, code = (word.strip() for word in entry.rpartition("="))
    if not name or not equals or not code:
        raise ConfigError(f"missing has {entry!r}: expected column=code, such as chol=0")
    return name, code


def _range_of(entry: str) -> tuple[str, tuple[float, float]]:
    name, equals, ends = (word.strip() for word in entry.rpartition("="))
    low, high = (_plain_number(end) for end in (*ends.split(":", 1), "")[:2])
    if not name or not equals or low is None or high is None or not -np.inf < low < high < np.inf:
        raise ConfigError(f"ranges has {entry!r}: expected column=low:high, such as age=0:120")
    return name, (low, high)


def _agreed_range(column: Column, options: TableOptions) -> tuple[float, float] | None:
    if column.categories is not None and column.name in options.ranges:
        raise ConfigError(f"ranges names column {column.name!r}, which holds categories: leave it out there")
    return options.ranges.get(column.name)


def _check_range(table: RawTable, column: Column, values: NDArray[np.float64]) -> None:
    outside = outside_range(values, column.range)
    if outside.any():
        place = int(outside.argmax())
        raise DataError(
            f"{table.where}: column {column.name!r} has {values[place]:g} in line {table.lines[place]}, outside its "
            f"range: correct it, say that it means a gap with missing={column.name}={values[place]:g}, or widen that"
        )


def outside_range(values: NDArray[np.float64], agreed: tuple[float, float] | None) -> NDArray[np.bool_]:
    """Return which values lie outside a range; a gap does not."""
    if agreed is None:
        return np.zeros(len(values), dtype=np.bool_)
    return (values < agreed[0]) | (values > agreed[1])


def _label_name(table: RawTable, options: TableOptions) -> str:
    if options.label is None:
        raise ConfigError(
            f"{table.where}: say which column is the label, such as label={table.names[-1]}; the columns are "
            f"{shown_names(table.names)}"
        )
    return options.label


def _checked_text(content: bytes, *, where: str) -> tuple[str, str]:
    """Return the encoding of a whole text, and its beginning, which has the header in it."""
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{where}: line {line} is not UTF-8 text: save the table as CSV UTF-8") from error
    if "\0" in text:
        raise DataError(f"{where}: holds zero bytes, so it is no text: save the table as CSV UTF-8")
    if not text.strip():
        raise DataError(f"{where}: is empty")
    return encoding, text[:HEAD_LETTERS]


def _delimiter_of(text: str, *, where: str, least_columns: int) -> str:
    """Return what divides the header's fields: whichever gives most of them."""
    counts = {}
    for delimiter in DELIMITERS:
        try:
            header = next(csv.reader(io.StringIO(text.lstrip("\r\n"), newline=""), delimiter=delimiter))
        except (csv.Error, StopIteration):
            header = []
        counts[delimiter] = len(header)
    best = max(counts, key=lambda one: counts[one])
    if counts[best] < least_columns:
        raise DataError(f"{where}: its header has one field only; expected columns divided by commas or semicolons")
    return best


def _named(
    where: str, names: list[str], columns: list[Any], lines: Sequence[int], *, has_comma_fields: bool
) -> RawTable:
    """Check the header; a first column without a name that just counts the rows is left out."""
    if names and not names[0] and _is_row_number(columns[0]):
        names, columns = names[1:], columns[1:]
    for place, name in enumerate(names):
        if not name:
            raise DataError(f"{where}: column {place + 1} has no name: give it one in the header")
        if names.index(name) != place:
            raise DataError(
                f"{where}: column {name!r} stands there twice, as columns {names.index(name) + 1} and {place + 1}: "
                "rename one"
            )
    return RawTable(where, tuple(names), tuple(columns), lines, has_comma_fields)


def _is_row_number(texts: Sequence[str]) -> bool:
    return any(all(text == str(start + place) for place, text in enumerate(texts)) for start in (0, 1))


def with_gaps(texts: Sequence[str], code: str | None) -> list[str | None]:
    """Return the cells, None where one says nothing: by the usual words, or by the column's own code."""
    number = None if code is None else _plain_number(code)
    if number is None:
        return [None if text in GAPS or text == code else text for text in texts]
    return [None if text in GAPS or _plain_number(text) == number else text for text in texts]


def _plain_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _column_of(table: RawTable, name: str, cells: Sequence[str | None], *, is_category: bool) -> Column:
    """Return what a column holds, from its values alone."""
    known = [cell for cell in cells if cell is not None]
    if not is_category:
        if _all_numbers(known) is not None:
            return Column(name)
        numbers = sum(number_of(cell, table) is not None for cell in known)
        if numbers >= MOSTLY * len(known):
            return Column(name)
        dates = sum(_DATE.fullmatch(cell) is not None for cell in known)
        if dates >= MOSTLY * len(known):
            raise DataError(
                f"{table.where}: column {name!r} holds dates such as {known[0]!r}: make a number of it, such as years "
                f"or days, or leave it out with ignore={name}"
            )
    found = sorted({plain_code(cell) for cell in known}, key=_by_number_then_text)
    is_too_many = len(found) > MAX_CATEGORIES or (len(found) > FEW and 2 * len(found) > len(known))
    if is_too_many:
        raise DataError(
            f"{table.where}: column {name!r} holds {len(found)} different texts in {len(known)} rows, such as "
            f"{known[0]!r}: is it an identifier or free text? Leave it out with ignore={name}, or learn from texts "
            f"alone with text={name}"
        )
    return Column(name, tuple(found))


def plain_code(text: str) -> str:
    """Return a category as it is compared: 1.0, as some programs save a code, is 1."""
    match = _WHOLE.fullmatch(text)
    return text if match is None else match[1]


def _by_number_then_text(text: str) -> tuple[float, str]:
    number = _plain_number(text)
    return (np.inf if number is None else number, text)


def values_of(table: RawTable, column: Column, cells: Sequence[str | None]) -> NDArray[np.float64]:
    """Return a column's values: numbers, or places in its list of categories, one after the last if it is not there."""
    if column.categories is not None:
        places = {name: place for place, name in enumerate(column.categories)}
        unknown = len(places)
        found = [None if cell is None else places.get(cell, places.get(plain_code(cell), unknown)) for cell in cells]
        return np.array([np.nan if place is None else place for place in found], dtype=np.float64)
    quick = _all_numbers(["nan" if cell is None else cell for cell in cells])
    if quick is not None and not (np.abs(quick) > FLOAT32_MAX).any():
        return quick
    values = np.empty(len(cells))
    for place, cell in enumerate(cells):
        number = np.nan if cell is None else number_of(cell, table)
        if number is None:
            raise DataError(
                f"{table.where}: column {column.name!r} holds numbers, but {cell!r} in line {table.lines[place]}: "
                f"correct it, or say that it means a gap with missing={column.name}={cell}"
            )
        if not abs(number) <= FLOAT32_MAX and not np.isnan(number):
            raise DataError(
                f"{table.where}: column {column.name!r} has {cell!r} in line {table.lines[place]}, which is no finite "
                "number"
            )
        values[place] = number
    return values


def _all_numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """Return a whole column as numbers where all of it is written plainly: most are, and this is quick."""
    try:
        return np.array(cells, dtype=object).astype(np.float64)
    except ValueError:
        return None


def number_of(text: str, table: RawTable) -> float | None:
    """Return a number as people write it: with a decimal point or comma, with thousands divided by commas."""
    if "," in text:
        if table.has_comma_fields and _THOUSANDS.fullmatch(text):
            text = text.replace(",", "")
        elif _COMMA_NUMBER.fullmatch(text):
            text = text.replace(",", ".")
    return _plain_number(text)


def _read_parquet(path: Path) -> RawTable:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: reading Parquet needs pyarrow: {install_hint('parquet')}") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except Exception as error:  # pyarrow has a kind of its own for each fault
        raise DataError(f"{path}: not a readable Parquet file ({' '.join(str(error).split())[:200]})") from error
    columns = [_texts_of(table.column(place).to_pylist()) for place in range(table.num_columns)]
    if not table.num_rows:
        raise DataError(f"{path}: has no rows")
    lines = range(1, table.num_rows + 1)
    return _named(str(path), list(table.column_names), columns, lines, has_comma_fields=False)


def _texts_of(values: Collection[Any]) -> list[str]:
    """Return values of any type as the texts a CSV would have; whole floats as whole numbers, nothing as a gap."""
    return list(_each_text(values))


def _each_text(values: Collection[Any]) -> Iterator[str]:
    for value in values:
        number = float(value) if isinstance(value, float | np.floating) else 0.5
        if number.is_integer() and abs(number) < 2**53:
            yield str(int(number))
        else:
            text = "" if value is None or number != number else str(value).strip()
            yield "" if text in ("NaT", "<NA>") else text
