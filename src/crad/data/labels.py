"""Labels in a file as people write them: texts, or numbers from 1 on. What they say stays the name of the class.

`number_labels` is for a file that is divided here. In one organisation's own file (`number_texts`) texts are names too,
but numbers are as the federation agreed, or have names that their owner gives: there a first class that is missing must
not become another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crad.data.dataset import MAX_CLASSES, Splits
from crad.data.readers.arrays import encode_labels, flat_labels
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


def number_texts(splits: Splits, *, classes: Sequence[str] | None, where: str) -> Splits:
    """Return what a reader found with texts as places in its class names; labels that are numbers as they are.

    The names are the file's, else `classes` as the owner says them, else the texts that occur, sorted.
    """
    labels = {"train_labels": splits.train_labels, "test_labels": splits.test_labels}
    if splits.validation_labels is not None:
        labels["val_labels"] = splits.validation_labels
    texts = [key for key, part in labels.items() if part.dtype.kind in "US"]
    if not texts:
        return splits
    if numbers := [key for key in labels if key not in texts]:
        raise DataError(f"{where}: {texts[0]} are texts and {numbers[0]} are not: write all labels in one form")
    try:
        flat = {key: flat_labels(part, where=key) for key, part in labels.items()}
        named = splits.class_names or classes
        both, test, names = encode_labels(
            np.concatenate([flat["train_labels"], flat.get("val_labels", flat["train_labels"][:0])]),
            flat["test_labels"],
            named,
        )
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    train, validation = np.split(both, [len(flat["train_labels"])])
    return replace(
        splits,
        train_labels=train,
        test_labels=test,
        validation_labels=None if splits.validation_labels is None else validation,
        class_names=names,
    )


def _highest_from_one(splits: Splits) -> int | None:
    """Return C where labels are 1..C; None where they are anything else."""
    parts = (splits.train_labels, splits.test_labels)
    if not all(part.dtype.kind in "iu" and part.size for part in parts):
        return None
    lowest, highest = min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)
    return highest if lowest == 1 and 1 < highest <= MAX_CLASSES else None
