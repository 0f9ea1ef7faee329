"""Tables: rows float32 [N, F] under a schema of columns, gaps as NaN.

Raw rows are what travels and what a network takes: standardisation, gaps and categories are its first layer's affair
(`crad.models.networks.table`), filled from its owner's own training rows. So nobody pools anything, and a teacher sees
a row as its owner would have prepared it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crad.data.columns import Column, Rows, columns_from_json, columns_to_json, numeric_columns
from crad.data.kinds.kind import (
    OF_TABLES,
    HasPadding,
    Kind,
    ReadOptions,
    SampleForm,
    Words,
    form_fields,
    refuse_options,
)
from crad.data.readers.embedded import DIAGNOSIS, breast_cancer_csv
from crad.data.readers.table_file import (
    SUFFIXES,
    FileVersion,
    RawTable,
    TableOptions,
    file_version,
    labels_of,
    parse_csv,
    raw_table_of_frame,
    read_raw_table,
    rows_as_agreed,
    shown_names,
    sites_of,
    understand,
)
from crad.data.subsets import SPLIT_SEED, TEST_SHARE, Indices, stratified_split
from crad.errors import ConfigError, DataError
from crad.randomness import stream

if TYPE_CHECKING:
    from crad.data.dataset import Dataset

# Inside a package, by name: the file, and the column that is the label.
EMBEDDED = {"breast-cancer": (breast_cancer_csv, DIAGNOSIS)}
OF_TEXTS, OF_ROWS = ("text_length", "vocabulary"), ("ignore", "categories", "missing", "ranges")  # settings
DROPPED = 0.3  # of a strongly changed row's values become gaps


@dataclass(frozen=True)
class TablePreprocessor:
    """Rows go into a network as they are; its first layer does the rest."""

    device: torch.device
    augmentation: str = "none"

    def inputs(self, images: Tensor) -> Tensor:
        """Return raw rows float32 [B,F], gaps as NaN."""
        return images.float()

    def augment(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return rows as they are: nothing can be done to a table that is certain to keep its label."""
        return images

    def mix(self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator) -> Tensor:
        """Take a share of the columns from one row and the rest from another: a mean of two codes means nothing."""
        is_own = torch.rand(inputs.shape, generator=generator).to(inputs.device) < share_B[:, None]
        return torch.where(is_own, inputs, others)

    def change_strongly(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Make gaps of some values."""
        is_dropped = torch.rand(inputs.shape, generator=generator).to(inputs.device) < DROPPED
        return torch.where(is_dropped, torch.nan, inputs)

    def cut(
        self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Mix rows: columns of one beside those of another are pieces already."""
        return self.mix(inputs, others, share_B, generator=generator), share_B

    def crop(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Make gaps of some values: a row has no places beside each other, so a part of it is some of its columns."""
        return self.change_strongly(inputs, generator=generator)


class TableKind(Kind):
    """Rows of numbers and categories."""

    name = "table"
    words = Words("row", "rows")
    models: tuple[str, ...] = ("mlp", "mlp-deep", "tab-transformer")
    input_name = "rows"
    dtype: np.dtype[Any] = np.dtype(np.float32)
    channel_axis = -1
    takes_arrays = True  # as `readers/arrays.py` makes them

    def is_source(self, name_or_path: str) -> bool:
        """Return whether a path ends as a table does, or it is one that comes with a package."""
        return name_or_path in EMBEDDED or name_or_path.lower().endswith(SUFFIXES)

    def read(self, name_or_path: str, options: ReadOptions) -> Dataset:
        """Read a .csv, .tsv or .parquet file, whose test rows are split off here: the same ones in every run."""
        is_array = not name_or_path.lower().endswith(SUFFIXES) and name_or_path not in EMBEDDED
        refuse_options(options, self.name, name_or_path, allowed=() if is_array else OF_TABLES)
        if is_array:
            return _read_arrays(Path(name_or_path).expanduser())
        table = options_for(name_or_path, options.table)
        check_columns_said(table, where=name_or_path)
        files = [name for name in (name_or_path, table.test_data) if name is not None and name not in EMBEDDED]
        versions = tuple(file_version(Path(name).expanduser()) for name in files)
        missing = tuple(sorted(table.missing.items()))
        return _read_once(name_or_path, versions, replace(table, missing={}), missing)

    def check(self, samples: NDArray[Any], dataset: Dataset, *, where: str) -> None:
        """Refuse an array that holds no rows of the schema."""
        if samples.dtype != np.float32 or samples.ndim != 2:
            raise DataError(f"{where} is {samples.dtype} of shape {samples.shape}, expected float32 [N, F]")
        if samples.shape[1] != len(dataset.columns):
            raise DataError(f"{where} has {samples.shape[1]} values per row for {len(dataset.columns)} columns")
        if len(samples) == 0:
            raise DataError(f"{where} is empty, expected at least one row")
        if np.isinf(samples).any():
            place = int(np.isinf(samples).any(axis=0).argmax())
            raise DataError(f"{where}: column {dataset.columns[place].name!r} has an infinite value; a gap is NaN")

    def to_tensor(self, samples: NDArray[Any], form: HasPadding) -> Tensor:
        """Return rows as a tensor of their own."""
        return torch.from_numpy(np.array(samples, dtype=np.float32, order="C"))

    def preprocessor(self, dataset: Dataset, *, is_augmented: bool, device: str) -> TablePreprocessor:
        """Return one that changes nothing."""
        return TablePreprocessor(torch.device(device))

    def picture(self, dataset: Dataset, sample: NDArray[Any]) -> dict[str, Any]:
        """Return the row as pairs of a column's name and what stands there."""
        return {"row": row_as_texts(sample, dataset.columns)}

    def batch(self, x: object, form: SampleForm) -> Rows:
        """Return rows under a model's schema: a frame by its columns' names, numbers [N, F] or [F] in its order."""
        columns = form.columns
        if hasattr(x, "columns") and hasattr(x, "iloc"):
            return rows_as_agreed(raw_table_of_frame(x, where="x"), columns)
        from crad.data.readers.arrays import to_rows

        array = np.asarray(x) if not hasattr(x, "detach") else x.detach().cpu().numpy()
        rows = to_rows(array[np.newaxis] if array.ndim == 1 else array, where="x")
        if rows.shape[1] != len(columns):
            names = shown_names([column.name for column in columns])
            raise DataError(f"x has {rows.shape[1]} values per row, this model takes {len(columns)}: {names}")
        return rows

    def read_inputs(self, path: Path, form: SampleForm, *, key: str | None) -> tuple[list[str], NDArray[Any]]:
        """Return the rows of a table's file under a model's schema; other columns are passed over."""
        if path.suffix.lower() in SUFFIXES:
            if key is not None:
                raise ConfigError(f"key names an array of a .npz, and {path} is a table: leave it out")
            return [], rows_as_agreed(read_raw_table(path), form.columns)
        if path.suffix.lower() not in (".npy", ".npz"):
            raise DataError(f"{path}: this model takes rows of a table: {', '.join(SUFFIXES)}, .npy or .npz")
        from crad.data.readers.input_files import read_array_file

        return [], read_array_file(path, key)

    def preprocessor_of(self, form: SampleForm) -> TablePreprocessor:
        """Return one that changes nothing."""
        return TablePreprocessor(torch.device("cpu"))

    def features(self, dataset: Dataset, samples: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Return the columns that are numbers, and the share of gaps in a row."""
        numbers = [(place, column) for place, column in enumerate(dataset.columns) if column.categories is None]
        columns = {column.name: samples[:, place].astype(np.float64) for place, column in numbers}
        return {"share of gaps": np.isnan(samples).mean(axis=1), **columns}

    def schema(self, dataset: Dataset) -> dict[str, Any]:
        """Return the columns and their categories."""
        return {"columns": columns_to_json(dataset.columns)}

    def card_metadata(self, form: SampleForm) -> dict[str, Any]:
        """Return the schema, and how gaps and categories are written."""
        return {
            "columns": columns_to_json(form.columns),
            "input": {
                "dtype": "float32",
                "layout": "NF",
                "columns": [column.name for column in form.columns],
                "gap": "NaN",
                "category": "its place in the column's categories from 0 on; their number: an unknown one",
            },
        }

    def card_form(self, about: Mapping[str, str]) -> dict[str, Any] | None:
        """Read that back; None: the file is about another kind of data."""
        if "columns" not in about:
            return None
        columns = columns_from_json(json.loads(about["columns"]))
        if not columns:
            raise ValueError("columns")
        return {**form_fields(self.name, (len(columns),)), "columns": columns}


def raw_table_of(name_or_path: str) -> RawTable:
    """Read a table as it lies there: one that comes with a package, or a file."""
    if name_or_path not in EMBEDDED:
        return read_raw_table(Path(name_or_path).expanduser())
    content, _ = EMBEDDED[name_or_path]
    return parse_csv(content(), where=name_or_path)


def options_for(name_or_path: str, options: TableOptions) -> TableOptions:
    """Return what is said of a table's columns; of one that comes with a package its label is known."""
    if name_or_path not in EMBEDDED:
        return options
    _, label = EMBEDDED[name_or_path]
    return replace(options, label=options.label or label)


def check_columns_said(options: TableOptions, *, where: str) -> None:
    """Refuse what is said of a table of texts and is not for one; and what is for texts, of a table without them."""
    said = [name for name, value in vars(options).items() if value != getattr(TableOptions(), name)]
    if not options.text:
        for name in (one for one in OF_TEXTS if one in said):
            raise ConfigError(f"{where}: {name} is for texts: name the column that holds them with text")
        return
    for name in (one for one in OF_ROWS if one in said):
        raise ConfigError(f"{where}: {name} is for tables without texts; of this one only text is read: leave it out")
    for column in options.text:
        if column in (options.label, options.site):
            also = "label" if column == options.label else "site"
            raise ConfigError(f"{where}: column {column!r} is both text and {also}: name another one")


def row_as_texts(row: NDArray[Any], columns: tuple[Column, ...]) -> list[list[str]]:
    """Return a row for a person: names and values."""
    return [[column.name, column.shown(float(value))] for column, value in zip(columns, row, strict=True)]


def dataset_of_tables(train: RawTable, test: RawTable | None, options: TableOptions, *, name: str) -> Dataset:
    """Make a data set of one table, or of two with the same columns; the schema is that of the first."""
    from crad.data.readers.arrays import encode_labels

    understood = understand(train, options)
    labels, sites = labels_of(train, options), sites_of(train, options)
    if test is None:
        return _split(understood.rows, labels, sites, understood.columns, name=name, where=train.where)
    train_labels, test_labels, classes = encode_labels(labels, labels_of(test, options))
    test_rows = rows_as_agreed(test, understood.columns)
    return make_table(
        understood.rows, train_labels, test_rows, test_labels, classes, understood.columns, sites, name=name
    )


def make_table(
    train: Rows,
    train_labels: NDArray[np.int64],
    test: Rows,
    test_labels: NDArray[np.int64],
    classes: tuple[str, ...],
    columns: tuple[Column, ...],
    sites: list[str] | None,
    *,
    name: str,
) -> Dataset:
    """Put a table's parts together and check them."""
    from crad.data.dataset import Dataset, check_dataset

    site_names = tuple(sorted(set(sites or ())))
    places = {site: place for place, site in enumerate(site_names)}
    dataset = Dataset(
        name=name,
        train_samples=train,
        train_labels=train_labels,
        test_samples=test,
        test_labels=test_labels,
        class_names=classes,
        kind="table",
        columns=columns,
        train_sites=None if sites is None else np.array([places[site] for site in sites], dtype=np.int64),
        site_names=site_names,
    )
    check_dataset(dataset)
    return dataset


def _read_arrays(path: Path) -> Dataset:
    """Read rows from a .npz file, where the setting `kind` says that they are rows."""
    from crad.data.dataset import numbered_labels
    from crad.data.labels import number_labels
    from crad.data.readers.arrays import to_rows
    from crad.data.readers.npz import read_npz

    splits = number_labels(read_npz(path), where=str(path))
    train_labels, test_labels, names = numbered_labels(
        splits.train_labels, splits.test_labels, splits.class_names, where=str(path)
    )
    train, test = (to_rows(part, where=str(path)) for part in (splits.train_images, splits.test_images))
    columns = numeric_columns([f"x{place}" for place in range(train.shape[1])])
    sites = None if splits.train_sites is None else list(splits.train_sites)
    return make_table(train, train_labels, test, test_labels, names, columns, sites, name=path.stem)


@lru_cache(maxsize=1)  # a comparison reads the same file for every run
def _read_once(
    source: str, versions: tuple[FileVersion, ...], options: TableOptions, missing: tuple[tuple[str, str], ...]
) -> Dataset:
    whole = replace(options, missing=dict(missing))
    test = None if whole.test_data is None else raw_table_of(whole.test_data)
    return dataset_of_tables(raw_table_of(source), test, whole, name=Path(source).stem)


def _split(
    rows: Rows, labels: list[str], sites: list[str] | None, columns: tuple[Column, ...], *, name: str, where: str
) -> Dataset:
    """Hold back a fifth of every class, of every site where there are some, for the common test."""
    from crad.data.readers.arrays import encode_labels

    numbers, _, classes = encode_labels(labels, labels)
    train, test = split_off_test(labels, sites, where=where)
    own = None if sites is None else [sites[place] for place in train]
    return make_table(rows[train], numbers[train], rows[test], numbers[test], classes, columns, own, name=name)


def split_off_test(labels: Sequence[str], sites: Sequence[str] | None, *, where: str) -> tuple[Indices, Indices]:
    """Return which rows of a table train and which are held back for the common test: the same ones in every run."""
    _, groups = np.unique(
        [f"{site}\0{label}" for site, label in zip(sites or labels, labels, strict=True)], return_inverse=True
    )
    test, train = stratified_split(groups.astype(np.int64), share=TEST_SHARE, rng=stream(SPLIT_SEED, "table"))
    if not len(test):
        raise DataError(f"{where}: {len(labels)} rows are too few to hold some back for a test")
    return train, test
