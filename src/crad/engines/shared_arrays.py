"""A data set's arrays as raw bytes that several processes look into without copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from crad.data.dataset import Dataset

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
ALIGNMENT = 64


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return everything of a data set but its arrays."""
    return {name: value for name, value in vars(dataset).items() if name not in ARRAYS}


def write_arrays(dataset: Dataset, file: BinaryIO) -> list[dict[str, Any]]:
    """Write the arrays one after the other, and say where each one lies."""
    places = []
    for name in ARRAYS:
        array = np.ascontiguousarray(getattr(dataset, name))
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
