"""A data set in memory, and what makes one acceptable. Every reader ends in `build_dataset`.

N images, H height, W width, C channels (1 or 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.errors import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

MIN_SIDE = 8  # three 2x2 poolings must leave a pixel
MAX_CLASSES = 10_000  # above this a label column is almost surely something else, such as an id


@dataclass(frozen=True, eq=False)
class Splits:
    """What a reader found in a file: four raw arrays, and the class names where the file has them."""

    train_images: NDArray[Any]
    train_labels: NDArray[Any]
    test_images: NDArray[Any]
    test_labels: NDArray[Any]
    class_names: tuple[str, ...] | None = None
    validation_images: NDArray[Any] | None = None  # only where they were asked for and are there
    validation_labels: NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images [N, H, W, C] with their labels [N], and how to augment and pad them."""

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    class_names: tuple[str, ...]
    augmentation: str  # "crop-flip", "flips" or "none"
    pad_to: int | None  # zero pad both sides to this many pixels; None leaves the images as they are

    @property
    def num_classes(self) -> int:
        """Return how many classes the labels may name, seen or not."""
        return len(self.class_names)

    @property
    def in_channels(self) -> int:
        """Return 1 for grayscale, 3 for colour."""
        return int(self.train_images.shape[3])

    @property
    def image_size(self) -> tuple[int, int]:
        """Return height and width after padding, as a model sees them."""
        height, width = self.train_images.shape[1:3]
        return (self.pad_to or int(height), self.pad_to or int(width))


def build_dataset(
    splits: Splits,
    *,
    name: str,
    where: str,
    augmentation: str | None = None,
    pad_to: int | None = None,
) -> Dataset:
    """Bring raw arrays into shape and check them; `where` (a path, say) opens every error message.

    Without an augmentation, colour images get "crop-flip" and grayscale ones "none": a digit or a letter
    must not be mirrored, and a user's grayscale data may well be that.
    """
    train_images = _with_channels(splits.train_images)
    train_labels = _flat_labels(splits.train_labels, where=where, split="train")
    test_labels = _flat_labels(splits.test_labels, where=where, split="test")
    is_colour = train_images.ndim == 4 and train_images.shape[3] == 3
    dataset = Dataset(
        name=name,
        train_images=train_images,
        train_labels=train_labels,
        test_images=_with_channels(splits.test_images),
        test_labels=test_labels,
        class_names=splits.class_names or _numbered_classes(train_labels, test_labels, where=where),
        augmentation=augmentation or ("crop-flip" if is_colour else "none"),
        pad_to=pad_to,
    )
    check_dataset(dataset, where=where)
    return dataset


def check_dataset(dataset: Dataset, *, where: str | None = None) -> None:
    """Refuse, with a `DataError`, arrays that no run could use."""
    where = where or dataset.name
    if dataset.num_classes < 2:
        raise DataError(f"{where}: {dataset.num_classes} class, expected at least 2 to tell apart")
    for split, images, labels in (
        ("train", dataset.train_images, dataset.train_labels),
        ("test", dataset.test_images, dataset.test_labels),
    ):
        _check_images(images, where=f"{where}: {split}_images")
        _check_labels(labels, num_classes=dataset.num_classes, where=f"{where}: {split}_labels")
        if len(images) != len(labels):
            raise DataError(f"{where}: {len(images)} {split} images but {len(labels)} {split} labels")
    train_shape, test_shape = dataset.train_images.shape[1:], dataset.test_images.shape[1:]
    if train_shape != test_shape:
        raise DataError(
            f"{where}: train images are {_shape(train_shape)} but test images {_shape(test_shape)}:"
            " resize them to one shape"
        )
    if dataset.pad_to is not None and max(train_shape[:2]) > dataset.pad_to:
        raise DataError(f"{where}: images are {_shape(train_shape)}, too large to pad to {dataset.pad_to} pixels")


def _check_images(images: NDArray[Any], *, where: str) -> None:
    if images.dtype != np.uint8:
        raise DataError(f"{where} has dtype {images.dtype}, expected uint8: save the pixels as 0..255")
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise DataError(
            f"{where} has shape {images.shape}, expected [N, H, W] or [N, H, W, channels] with 1 or 3 channels"
        )
    if len(images) == 0:
        raise DataError(f"{where} is empty, expected at least one image")
    if min(images.shape[1:3]) < MIN_SIDE:
        raise DataError(f"{where}: images are {_shape(images.shape[1:])}, expected sides of {MIN_SIDE} or more")


def _check_labels(labels: NDArray[Any], *, num_classes: int, where: str) -> None:
    if labels.dtype != np.int64 or labels.ndim != 1:
        raise DataError(f"{where} is {labels.dtype} of shape {labels.shape}, expected int64 of shape [N]")
    outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if outside.size:
        index = int(outside[0])
        raise DataError(f"{where}: label {labels[index]} at index {index} is outside 0..{num_classes - 1}")


def _with_channels(images: NDArray[Any]) -> NDArray[Any]:
    """Give grayscale [N, H, W] its channel axis; leave anything else for the check."""
    return images[..., np.newaxis] if images.ndim == 3 else images


def _flat_labels(labels: NDArray[Any], *, where: str, split: str) -> Labels:
    """Return labels [N] or [N, 1] of any integer type as int64 [N]."""
    if labels.dtype.kind not in "iu":
        raise DataError(f"{where}: {split}_labels has dtype {labels.dtype}, expected whole numbers")
    if labels.size and int(labels.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{where}: {split}_labels holds {int(labels.max())}, expected classes numbered from 0 on")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(
            f"{where}: {split}_labels has shape {labels.shape}, expected [N] or [N, 1]: one class per image"
        )
    return labels.astype(np.int64)


def _numbered_classes(*labels: Labels, where: str) -> tuple[str, ...]:
    """Return names "0", "1", ... up to the highest label."""
    highest = max((int(part.max()) for part in labels if part.size), default=-1)
    if highest >= MAX_CLASSES:
        raise DataError(f"{where}: label {highest} would mean {highest + 1} classes: number them from 0 on")
    return tuple(str(label) for label in range(highest + 1))


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(side) for side in shape)
