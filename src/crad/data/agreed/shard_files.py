"""Writes one client's shard of a divided data set as a file that a member reads back to the same samples.

Images, series and recordings say in their file what is for training, validation and test. Rows and texts are divided
again when they are read, into the same parts where seed and place in the list are those of the simulation.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.config import Experiment
from crad.data.columns import Column
from crad.data.dataset import Dataset
from crad.data.kinds.table import raw_table_of, split_off_test
from crad.data.partition import Shard
from crad.data.readers.npz import RATE
from crad.data.readers.table_file import FLOAT32_MAX, RawTable, labels_of, options_of, sites_of
from crad.data.subsets import balanced_subset
from crad.randomness import stream

SUFFIX = {"table": "csv", "text": "csv"}  # of the file, by kind; others have npz


@dataclass(frozen=True)
class TrainingTexts:
    """The table that training texts came from, since ids alone are kept of them, and the row of each."""

    table: RawTable
    rows: NDArray[np.int64]
    columns: Sequence[str]


def training_texts(experiment: Experiment, dataset: Dataset) -> TrainingTexts | None:
    """Find the rows of a data set of texts again, as it was read and limited; None for samples of another kind."""
    if dataset.kind != "text":
        return None
    options = options_of(experiment)
    table = raw_table_of(experiment.dataset)
    labels = labels_of(table, options)
    rows = np.arange(len(table))
    if options.test_data is None:
        rows, _ = split_off_test(labels, sites_of(table, options), where=table.where)
    numbers = np.array([dataset.class_names.index(labels[row]) for row in rows], dtype=np.int64)
    if experiment.train_limit is not None:
        rng = stream(experiment.seed, "subset", "train")
        kept = balanced_subset(numbers, size=experiment.train_limit, rng=rng)
        rows, numbers = rows[kept], numbers[kept]
    assert np.array_equal(numbers, dataset.train_labels), "the rows of the training texts, in their order"
    return TrainingTexts(table, rows, options.text)


def write_shard(
    dataset: Dataset, shard: Shard, path: Path, *, label: str = "label", texts: TrainingTexts | None = None
) -> None:
    """Write one client's shard; `label` is what the last column of a table is called, `texts` are those of ids."""
    if dataset.kind == "table":
        write_table(dataset, shard.indices, path, label=label)
        return
    if dataset.kind == "text":
        assert texts is not None, "ids cannot be turned back"
        _write_texts(texts, shard.indices, path, label=label)
        return
    parts = {"train": shard.train, "val": shard.validation, "test": shard.test}
    several = "images" if dataset.kind == "image" else "samples"
    arrays: dict[str, NDArray[Any]] = {"class_names": np.array(dataset.class_names)}
    if dataset.rate is not None:
        arrays[RATE] = np.array(dataset.rate)
    for name, where in parts.items():
        arrays |= {f"{name}_{several}": dataset.train_samples[where], f"{name}_labels": dataset.train_labels[where]}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # its flags come after any number of arrays


def write_table(dataset: Dataset, where: NDArray[np.int64], path: Path, *, label: str) -> None:
    """Write training rows as a CSV file that a member reads back to the same values, in the same order."""
    labels = (dataset.class_names[number] for number in dataset.train_labels[where])
    rows = zip(dataset.train_samples[where], labels, strict=True)
    header = [*(column.name for column in dataset.columns), label]
    _write_csv(path, header, ([*(map(_cell, dataset.columns, row)), name] for row, name in rows))


def _write_texts(texts: TrainingTexts, where: NDArray[np.int64], path: Path, *, label: str) -> None:
    header = [*texts.columns, label]
    columns = [texts.table.column(name) for name in header]
    _write_csv(path, header, ([column[row] for column in columns] for row in texts.rows[where].tolist()))


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _cell(column: Column, value: np.float32) -> str:
    if np.isnan(value):
        return ""
    if column.categories is not None:
        return column.categories[int(value)]
    short = str(value).removesuffix(".0")
    is_exact = abs(float(short)) <= FLOAT32_MAX and np.float32(float(short)) == value
    return short if is_exact else repr(float(value))
