"""Class-balanced choices among labelled samples: limits, the proxy set, and a test set where none is given."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crad.errors import DataError

Indices = NDArray[np.int64]

TEST_SHARE = 0.2  # where a data set comes without test images
SPLIT_SEED = 1024  # fixed: the test set is part of the data set, not of a run


def balanced_subset(labels: NDArray[np.int64], *, size: int, rng: np.random.Generator) -> Indices:
    """Return sorted indices of `size` samples, as equally many of each class as there are.

    All draws are made before `size` is looked at, so a smaller subset lies within a larger one.
    """
    if not 0 <= size <= len(labels):
        raise DataError(f"cannot choose {size} samples among {len(labels)}: ask for 0 to {len(labels)}")
    per_class = _shuffled_classes(labels, rng=rng)
    quotas = _quotas([len(members) for members in per_class], size=size)
    chosen = [members[:quota] for members, quota in zip(per_class, quotas, strict=True)]
    return _sorted_union(chosen)


def split_proxy(labels: NDArray[np.int64], *, size: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split off a class-balanced proxy set of `size` samples, and return the remaining indices too; both sorted."""
    proxy = balanced_subset(labels, size=size, rng=rng)
    return proxy, _others(proxy, total=len(labels))


def stratified_split(labels: NDArray[np.int64], *, share: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Take `share` of every class, at least one sample but never its last; the taken and the remaining."""
    taken = []
    for members in _shuffled_classes(labels, rng=rng):
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        taken.append(members[:count])
    first = _sorted_union(taken)
    return first, _others(first, total=len(labels))


def _shuffled_classes(labels: NDArray[np.int64], *, rng: np.random.Generator) -> list[Indices]:
    """Return the indices of each class, shuffled, the classes themselves in random order."""
    classes = rng.permutation(np.unique(labels))
    return [rng.permutation(np.flatnonzero(labels == label)) for label in classes]


def _quotas(available: list[int], *, size: int) -> list[int]:
    """Return how many of each class: level by level, the first ones get the remainder, full ones drop out."""
    quotas = [0] * len(available)
    left = size
    while left:
        has_room = [i for i, count in enumerate(available) if quotas[i] < count]
        level = left // len(has_room)
        if level == 0:
            for i in has_room[:left]:
                quotas[i] += 1
            return quotas
        for i in has_room:
            given = min(level, available[i] - quotas[i])
            quotas[i] += given
            left -= given
    return quotas


def _sorted_union(parts: list[Indices]) -> Indices:
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))


def _others(chosen: Indices, *, total: int) -> Indices:
    return np.setdiff1d(np.arange(total, dtype=np.int64), chosen, assume_unique=True)
