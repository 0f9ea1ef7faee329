"""Labels in a file as people write them: texts, or numbers from 1 on. What they say stays the name of the class.

Only for a file that is divided here. One organisation's own file is numbered as the federation agreed, or by names that
its owner gives: there a first class that is missing must not become another one.
"""

from __future__ import annotations

from dataclasses import replace

from crad.data.dataset import MAX_CLASSES, Splits
from crad.data.readers.arrays import encode_labels
from crad.errors import DataError


def number_labels(splits: Splits, *, where: str) -> Splits:
    """Return what a reader found with labels from 0 on; anything that is neither is left for the checks to refuse."""
    names = splits.class_names
    if splits.train_labels.dtype.kind not in "US" or splits.test_labels.dtype.kind not in "US":
        highest = _highest_from_one(splits)
        if highest is None or (names is not None and len(names) != highest):  # or class 0 has a name as well
            return splits
        names = names or tuple(str(label) for label in range(1, highest + 1))
    try:
        train, test, names = encode_labels(splits.train_labels, splits.test_labels, names)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    return replace(splits, train_labels=train, test_labels=test, class_names=names)


def _highest_from_one(splits: Splits) -> int | None:
    """Return C where labels are 1..C; None where they are anything else."""
    parts = (splits.train_labels, splits.test_labels)
    if not all(part.dtype.kind in "iu" and part.size for part in parts):
        return None
    lowest, highest = min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)
    return highest if lowest == 1 and 1 < highest <= MAX_CLASSES else None
