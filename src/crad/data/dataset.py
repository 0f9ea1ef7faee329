"""A data set in memory, of any kind, and what makes one acceptable. Readers of images end in `build_dataset`.

What a kind of data is, and what only it knows, stands in `crad.data.kinds`. N samples; of images H height, W width, C
channels; of tables F columns; of series and recordings T steps in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crad.data.columns import Column
from crad.errors import DataError

if TYPE_CHECKING:
    from crad.data.kinds.kind import Kind

Images = NDArray[Any]  # uint8, uint16 or float32
Labels = NDArray[np.int64]

MIN_SIDE = 8  # three 2x2 poolings must leave a pixel
EIGHT_BITS, SIXTEEN_BITS = np.dtype(np.uint8), np.dtype(np.uint16)
PIXELS = (EIGHT_BITS, SIXTEEN_BITS, np.dtype(np.float32))
SHOWN_CLASSES = 3  # of many in one line
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
    train_sites: tuple[str, ...] | None = None  # whose training sample each one is, where that is known


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples with their labels [N], of one kind.

    Images [N, H, W, C] (uint8, uint16, float32), rows of a table float32 [N, F], texts as token ids int64 [N, L],
    series float32 [N, C, T], recordings int16 or float32 [N, C, T].

    From memory: `Dataset.from_arrays`, `Dataset.from_frame`, `Dataset.from_torch`, `Dataset.from_huggingface`; then
    `crad.run(experiment, data=dataset)`. Data sets with a name and files are settings: `crad.Experiment(dataset=...)`.

    Example:
        >>> import crad, numpy as np
        >>> x, y = np.zeros((20, 8, 8), np.uint8), ["cat", "dog"] * 10
        >>> crad.Dataset.from_arrays(x, y, x, y).class_names
        ('cat', 'dog')
    """

    name: str
    train_samples: NDArray[Any]
    train_labels: Labels
    test_samples: NDArray[Any]
    test_labels: Labels
    class_names: tuple[str, ...]
    augmentation: str = "none"  # of images "crop-flip", "flips"; of recordings and series "shift", "shift-gain-noise"
    pad_to: int | None = None  # zero pad both sides to this many pixels; None leaves the images as they are
    kind: str = "image"  # a name in crad.data.kinds.KINDS
    columns: tuple[Column, ...] = ()  # of a table: its schema
    train_sites: Labels | None = None  # whose training sample it is, places in `site_names`; None: nobody knows
    site_names: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)  # what else its kind must know, as plain values
    texts: Mapping[bytes, str] = field(default_factory=dict, repr=False)  # test texts as written, by their ids
    rate: int | None = None  # of recordings: samples a second

    @classmethod
    def from_arrays(
        cls,
        x_train: object,
        y_train: object,
        x_test: object,
        y_test: object,
        classes: Sequence[str] | None = None,
        site: Sequence[object] | None = None,
        *,
        name: str = "arrays",
        augmentation: str | None = None,
        columns: Sequence[str] | None = None,
        kind: str | None = None,
        rate: int | None = None,
        vocabulary: int | None = None,
        text_length: int | None = None,
    ) -> Dataset:
        """Make a data set of arrays in memory: numpy, torch, or anything that numpy understands.

        Images are [N, H, W], [N, H, W, C] or [N, C, H, W] of 8 or 16 bits or floats (floats in 0..1, as torchvision's
        ToTensor makes them of 8-bit pixels, are turned back exactly). Numbers [N, F] are the rows of a table, NaN a
        gap; `columns` names them. Series [N, T] or [N, C, T] are told by `kind="series"`, recordings by `kind="audio"`
        with their sampling rate. A list of str is one of texts; `vocabulary` and `text_length` are how many ids their
        words are hashed to (8192) and how many words are read (64).

        Labels are strings, or whole numbers: with `classes`, places in that list counted from 0, or from 1 where they
        are 1..C; without, every value that occurs is a class of that name. `name` is what records call the data, beside
        its hash. `augmentation` of images is "none", "crop-flip" or "flips"; by default colour images get "crop-flip";
        of recordings and series "none", "shift" or "shift-gain-noise", recordings have the last by default. `site` says
        of every training sample whose it is, for `Experiment(partition="natural")`.

        Example:
            >>> import crad, numpy as np
            >>> x = np.zeros((40, 3, 16, 16), np.uint8)  # channels first is fine
            >>> data = crad.Dataset.from_arrays(x, [1, 2] * 20, x, [1, 2] * 20, classes=["benign", "malignant"])
            >>> data.train_images.shape, data.train_labels[:2].tolist()
            ((40, 16, 16, 3), [0, 1])
        """
        from crad.data.readers.arrays import dataset_from_arrays

        return dataset_from_arrays(
            x_train,
            y_train,
            x_test,
            y_test,
            classes=classes,
            name=name,
            augmentation=augmentation,
            site=site,
            columns=columns,
            kind=kind,
            rate=rate,
            vocabulary=vocabulary,
            text_length=text_length,
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,  # noqa: ANN401  # pandas is no dependency
        label: str,
        site: str | None = None,
        *,
        test: Any = None,  # noqa: ANN401
        ignore: Sequence[str] = (),
        categories: Sequence[str] = (),
        missing: Mapping[str, object] | None = None,
        text: str | Sequence[str] = (),
        vocabulary: int | None = None,
        text_length: int | None = None,
        name: str = "frame",
    ) -> Dataset:
        """Read a pandas DataFrame as a table: one column is the label, one perhaps the site, the others are inputs.

        `test` is a second frame with the same columns; without it a fifth of every class (of every site) is held back
        for the common test. `ignore` names columns that are no input, `categories` columns of numbers that are codes,
        `missing` a code that means a gap: {"chol": 0}. `text` names the column or columns that hold texts, which are
        then all that is read; `vocabulary` and `text_length` as for `from_arrays`.

        Example:
            >>> import crad, pandas as pd
            >>> columns = {"age": range(40), "ward": ["a", "b"] * 20, "ill": ["no", "no", "yes", "yes"] * 10}
            >>> frame = pd.DataFrame(columns)
            >>> crad.Dataset.from_frame(frame, label="ill", site="ward").class_names
            ('no', 'yes')
        """
        from crad.data.kinds.table import check_columns_said, dataset_of_tables
        from crad.data.kinds.text import dataset_of_texts
        from crad.data.readers.table_file import TableOptions, raw_table_of_frame

        codes = {column: str(code) for column, code in (missing or {}).items()}
        usual = TableOptions()
        options = TableOptions(
            label,
            site,
            tuple(ignore),
            tuple(categories),
            codes,
            (text,) if isinstance(text, str) else tuple(text),
            usual.vocabulary if vocabulary is None else vocabulary,
            usual.text_length if text_length is None else text_length,
        )
        check_columns_said(options, where=name)
        second = None if test is None else raw_table_of_frame(test, where=f"{name} (test)")
        make = dataset_of_texts if options.text else dataset_of_tables
        return make(raw_table_of_frame(frame, where=name), second, options, name=name)

    @classmethod
    def from_torch(
        cls,
        train: Any,  # noqa: ANN401  # anything with a length and items
        test: Any,  # noqa: ANN401
        classes: Sequence[str] | None = None,
        *,
        name: str = "torch",
        augmentation: str | None = None,
    ) -> Dataset:
        """Read two map-style data sets, such as torchvision's, whose items are (image, label).

        An image is a Pillow image, an array or a tensor, as for `from_arrays`; class names are `train.classes` where
        it has them. Every item is read once, so a random transform would be frozen: leave it out.

        Example:
            >>> import crad, torch
            >>> x, y = torch.zeros(20, 1, 8, 8, dtype=torch.uint8), torch.arange(20) % 2
            >>> pairs = torch.utils.data.TensorDataset(x, y)
            >>> crad.Dataset.from_torch(pairs, pairs, classes=["zero", "one"]).num_classes
            2
        """
        from crad.data.readers.arrays import dataset_from_items

        return dataset_from_items(train, test, classes=classes, name=name, augmentation=augmentation)

    @classmethod
    def from_huggingface(
        cls,
        dataset_dict: Mapping[str, Any],
        image: str = "image",
        label: str = "label",
        *,
        train: str = "train",
        test: str = "test",
        classes: Sequence[str] | None = None,
        name: str = "huggingface",
        augmentation: str | None = None,
    ) -> Dataset:
        """Read a `datasets.DatasetDict`, or any mapping of splits to columns: one of images or texts, one of labels.

        Class names are those of the column's ClassLabel where it is one. `datasets` itself is not needed here.

        Example:
            >>> import crad, numpy as np
            >>> split = {"img": np.zeros((20, 8, 8), np.uint8), "kind": ["cat", "dog"] * 10}
            >>> crad.Dataset.from_huggingface({"train": split, "test": split}, image="img", label="kind").class_names
            ('cat', 'dog')
        """
        from crad.data.readers.arrays import dataset_from_columns

        return dataset_from_columns(
            dataset_dict,
            image=image,
            label=label,
            train=train,
            test=test,
            classes=classes,
            name=name,
            augmentation=augmentation,
        )

    def __repr__(self) -> str:
        words = self.kind_of_data.words
        sides = _shape(self.train_samples.shape[1:])
        sizes = f"{len(self.train_labels)} training and {len(self.test_labels)} test {words.several} {sides}"
        return f"<Dataset {self.name}: {sizes}, {self.num_classes} classes>"

    @property
    def train_images(self) -> NDArray[Any]:
        """Return the training samples, by the name that images have."""
        return self.train_samples

    @property
    def test_images(self) -> NDArray[Any]:
        """Return the test samples, by the name that images have."""
        return self.test_samples

    @property
    def kind_of_data(self) -> Kind:
        """Return what knows about samples of this kind."""
        from crad.data.kinds import KINDS

        return KINDS[self.kind]

    @property
    def num_classes(self) -> int:
        """Return how many classes the labels may name, seen or not."""
        return len(self.class_names)

    @property
    def untaught_classes(self) -> tuple[str, ...]:
        """Return the classes with test images and without a training image: nobody can learn them."""
        only = np.setdiff1d(self.test_labels, self.train_labels)
        return tuple(self.class_names[number] for number in only)

    @property
    def in_channels(self) -> int:
        """Return 1 for grayscale, 3 for colour; of a table how many columns it has, of texts how many tokens."""
        return int(self.train_samples.shape[1:][self.kind_of_data.channel_axis])

    @property
    def image_size(self) -> tuple[int, ...]:
        """Return height and width after padding, as a model sees them; of a series its length; a row has no sides."""
        sides = list(self.train_samples.shape[1:])
        del sides[self.kind_of_data.channel_axis]
        return tuple(self.pad_to or int(side) for side in sides)


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
    train_images = with_channels(splits.train_images)
    labels = numbered_labels(splits.train_labels, splits.test_labels, splits.class_names, where=where)
    train_labels, test_labels, class_names = labels
    is_colour = train_images.ndim == 4 and train_images.shape[3] == 3
    dataset = Dataset(
        name=name,
        train_samples=train_images,
        train_labels=train_labels,
        test_samples=with_channels(splits.test_images),
        test_labels=test_labels,
        class_names=class_names,
        augmentation=augmentation or ("crop-flip" if is_colour else "none"),
        pad_to=pad_to,
    )
    check_dataset(dataset, where=where)
    if splits.train_sites is None:
        return dataset
    from crad.data.readers.arrays import with_sites

    return with_sites(dataset, splits.train_sites)


def numbered_labels(
    train: NDArray[Any], test: NDArray[Any], names: tuple[str, ...] | None, *, where: str
) -> tuple[Labels, Labels, tuple[str, ...]]:
    """Return labels as int64 [N], and the names of their classes: "0", "1", ... where there are none."""
    train_labels = _flat_labels(train, where=where, split="train")
    test_labels = _flat_labels(test, where=where, split="test")
    return train_labels, test_labels, names or _numbered_classes(train_labels, test_labels, where=where)


def check_dataset(dataset: Dataset, *, where: str | None = None) -> None:
    """Refuse, with a `DataError`, arrays that no run could use."""
    where = where or dataset.name
    if dataset.num_classes < 2:
        lowest = min((int(part.min()) for part in (dataset.train_labels, dataset.test_labels) if part.size), default=0)
        if lowest < 0:
            raise DataError(f"{where}: label {lowest} is below 0: number the classes from 0 on, or name them")
        raise DataError(f"{where}: {dataset.num_classes} class, expected at least 2 to tell apart")
    words = dataset.kind_of_data.words
    for split, samples, labels in (
        ("train", dataset.train_samples, dataset.train_labels),
        ("test", dataset.test_samples, dataset.test_labels),
    ):
        dataset.kind_of_data.check(samples, dataset, where=f"{where}: {split}_{words.several}")
        _check_labels(labels, num_classes=dataset.num_classes, where=f"{where}: {split}_labels")
        if len(samples) != len(labels):
            raise DataError(f"{where}: {len(samples)} {split} {words.several} but {len(labels)} {split} labels")
    train_shape, test_shape = dataset.train_samples.shape[1:], dataset.test_samples.shape[1:]
    if train_shape != test_shape:
        raise DataError(
            f"{where}: train {words.several} are {_shape(train_shape)} but test {words.several} {_shape(test_shape)}:"
            " resize them to one shape"
        )
    if dataset.pad_to is not None and max(train_shape[:2]) > dataset.pad_to:
        raise DataError(f"{where}: images are {_shape(train_shape)}, too large to pad to {dataset.pad_to} pixels")
    sites = dataset.train_sites
    if sites is not None and sites.shape != dataset.train_labels.shape:
        raise DataError(f"{where}: {len(sites)} sites for {len(dataset.train_labels)} training {words.several}")


def check_images(images: NDArray[Any], *, where: str, is_small_allowed: bool = False) -> None:
    """Refuse, with a `DataError`, an array that holds no images; small ones too unless they will be made larger."""
    if images.dtype not in PIXELS:
        raise DataError(f"{where} has dtype {images.dtype}, expected pixels as {', '.join(map(str, PIXELS))}")
    if images.ndim != 4 or images.shape[3] < 1:
        raise DataError(f"{where} has shape {images.shape}, expected [N, H, W] or [N, H, W, channels]")
    if len(images) == 0:
        raise DataError(f"{where} is empty, expected at least one image")
    if min(images.shape[1:3]) < (1 if is_small_allowed else MIN_SIDE):
        raise DataError(f"{where}: images are {_shape(images.shape[1:])}, expected sides of {MIN_SIDE} or more")
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        place = int((~np.isfinite(images)).any(axis=(1, 2, 3)).argmax())
        raise DataError(f"{where}: image {place} has a value that is not finite: fill it")


def _check_labels(labels: NDArray[Any], *, num_classes: int, where: str) -> None:
    if labels.dtype != np.int64 or labels.ndim != 1:
        raise DataError(f"{where} is {labels.dtype} of shape {labels.shape}, expected int64 of shape [N]")
    outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if outside.size:
        index = int(outside[0])
        raise DataError(f"{where}: label {labels[index]} at index {index} is outside 0..{num_classes - 1}")


def untaught_warning(dataset: Dataset) -> str | None:
    """Say which classes only the test samples have; None where there are none. Mostly a label is misspelt there."""
    names = dataset.untaught_classes
    if not names:
        return None
    more = f" and {len(names) - SHOWN_CLASSES} more" if len(names) > SHOWN_CLASSES else ""
    shown = ", ".join(map(repr, names[:SHOWN_CLASSES])) + more
    subject, it = (f"class {shown} occurs", "it") if len(names) == 1 else (f"classes {shown} occur", "them")
    return f"{dataset.name}: {subject} only in the test set, so no client can learn {it}: is a label misspelt?"


def with_channels(images: NDArray[Any]) -> NDArray[Any]:
    """Return images as [N, H, W, C] from any understood layout and type; leave anything else for the check."""
    if images.dtype.kind == "f" and images.dtype != np.float32:
        images = images.astype(np.float32)
    elif images.dtype.kind in "iu" and images.dtype not in PIXELS:
        images = _as_pixels(images)
    if images.ndim == 3:
        return images[..., np.newaxis]
    return images.transpose(0, 2, 3, 1) if images.ndim == 4 and is_channels_first(images.shape[1:]) else images


def is_channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether an image of this shape is [C, H, W] and not [H, W, C], which it is where both are possible."""
    first, second, last = shape
    for known in ((1, 3), range(1, MIN_SIDE)):
        if last in known or first in known:
            return last not in known
    return second == last and first < second  # a square, and many channels before it


def _as_pixels(images: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in the smallest type that pixels have and that holds them."""
    low, high = (int(images.min()), int(images.max())) if images.size else (0, 0)
    if low < 0 or high > np.iinfo(np.uint16).max:
        return images.astype(np.float32)
    return images.astype(np.uint8 if high <= np.iinfo(np.uint8).max else np.uint16)


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
            f"{where}: {split}_labels has shape {labels.shape}, expected [N] or [N, 1]: one class per sample"
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
