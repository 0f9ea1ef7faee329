"""A data set's arrays as raw bytes that several processes look into without copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from crad.data.columns import columns_from_json, columns_to_json
from crad.data.dataset import Dataset

ARRAYS = ("train_samples", "train_labels", "test_samples", "test_labels", "train_sites")
ALIGNMENT = 64


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return everything of a data set but its arrays, as plain values; texts are only for people to look at."""
    rest = {name: value for name, value in vars(dataset).items() if name not in (*ARRAYS, "texts")}
    return {**rest, "columns": columns_to_json(dataset.columns)}


def arrays_of(dataset: Dataset) -> dict[str, NDArray[Any]]:
    """Return the arrays that a data set has, by name."""
    arrays = {name: getattr(dataset, name) for name in ARRAYS}
    return {name: array for name, array in arrays.items() if array is not None}


def assemble_dataset(described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Dataset:
    """Put a data set together again from its arrays and the rest, which may have been JSON."""
    rest = {
        "class_names": tuple(described["class_names"]),
        "site_names": tuple(described["site_names"]),
        "columns": columns_from_json(described["columns"]),
    }
    return Dataset(**{**described, **rest, **arrays})


def write_arrays(dataset: Dataset, file: BinaryIO) -> list[dict[str, Any]]:
    """Write the arrays one after the other, and say where each one lies."""
    places = []
    for name, given in arrays_of(dataset).items():
        array = np.ascontiguousarray(given)
        file.write(bytes(-file.tell() % ALIGNMENT))
        places.append({"name": name, "shape": array.shape, "dtype": array.dtype.str, "offset": file.tell()})
        file.write(array.data)
    file.flush()
    return places


def map_arrays(content: memoryview, places: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays in these bytes, read-only."""
    return {
        place["name"]: np.frombuffer(
            content, dtype=place["dtype"], count=int(np.prod(place["shape"])), offset=place["offset"]
        ).reshape(place["shape"])
        for place in places
    }
