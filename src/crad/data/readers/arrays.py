"""Arrays and collections in memory become a data set: numpy, torch, a torch data set, a Hugging Face one.

Neither torch nor `datasets` is imported: whatever has the methods that are used is taken. N images, H height, W width,
C channels; of series T steps in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crad.data.columns import Column, Rows, numeric_columns
from crad.data.dataset import EIGHT_BITS, MAX_CLASSES, Dataset, Images, Labels, Splits, build_dataset, is_channels_first
from crad.data.tokenizer import Tokenizer
from crad.errors import ConfigError, DataError, unknown_name

if TYPE_CHECKING:
    from crad.data.kinds import Kind

WHOLE_LEVEL = 1e-3  # how far a float pixel may be from one of the 256 levels
EXPECTED = (
    "expected images [N, H, W], [N, H, W, C] or [N, C, H, W], rows of a table [N, F], a list of texts, or with "
    "kind='series' or kind='audio' [N, T] or [N, C, T]"
)


def dataset_from_arrays(
    x_train: object,
    y_train: object,
    x_test: object,
    y_test: object,
    *,
    classes: Sequence[str] | None,
    name: str,
    augmentation: str | None,
    site: Sequence[object] | None = None,
    columns: Sequence[str] | None = None,
    kind: str | None = None,
    rate: int | None = None,
    vocabulary: int | None = None,
    text_length: int | None = None,
) -> Dataset:
    """Bring four arrays into the package's own form; see `Dataset.from_arrays`."""
    train_labels, test_labels, class_names = encode_labels(y_train, y_test, classes)
    sites = None if site is None else _site_texts(site, len(train_labels))
    labelled = LabelledArrays(x_train, train_labels, x_test, test_labels, class_names, sites, name)
    if is_texts(x_train):
        if columns is not None or kind is not None or augmentation not in (None, "none"):
            raise DataError("columns, kind and augmentation are not for texts: leave them out")
        return _texts(labelled, Tokenizer(vocabulary or Tokenizer.vocabulary, text_length or Tokenizer.length))
    if vocabulary is not None or text_length is not None:
        raise DataError("vocabulary and text_length are for texts, and x_train holds none: leave them out")
    found = None if kind is None else _kind_of_arrays(kind)
    if rate is not None and kind != "audio":
        raise DataError("rate is the samples a second of recordings: say kind='audio', or leave it out")
    if columns is not None and kind not in (None, "table"):
        raise DataError(f"columns name those of a table [N, F], and kind is {kind!r}: leave them out")
    if found is not None and kind not in ("image", "table"):
        return found.from_arrays(labelled, rate=rate, augmentation=augmentation)
    is_table = _to_numpy(x_train, where="x_train").ndim == 2 if kind is None else kind == "table"
    if is_table:
        if augmentation not in (None, "none"):
            raise DataError(f"augmentation is {augmentation!r}, and rows of a table have none: leave it out")
        return _rows(labelled, columns)
    if columns is not None:
        raise DataError("columns name those of a table [N, F], and x_train holds images: leave them out")
    return _images(labelled, augmentation, is_said=kind == "image")


@dataclass(frozen=True, eq=False)
class LabelledArrays:
    """What a person gave, with labels as numbers."""

    x_train: object
    train_labels: Labels
    x_test: object
    test_labels: Labels
    class_names: tuple[str, ...]
    sites: list[str] | None
    name: str


# The kinds are imported late: they need torch, and readers that call this file do not.


def _kind_of_arrays(name: str) -> Kind:
    from crad.data.kinds import KINDS

    known = [known for known, kind in KINDS.items() if kind.takes_arrays]
    if name not in known:
        raise unknown_name("kind", name, known)
    return KINDS[name]


def _texts(given: LabelledArrays, tokenizer: Tokenizer) -> Dataset:
    from crad.data.kinds.text import texts_from_arrays

    labels = given.train_labels, given.test_labels
    return texts_from_arrays(
        given.x_train, labels[0], given.x_test, labels[1], given.class_names, given.sites, tokenizer, name=given.name
    )


def _rows(given: LabelledArrays, columns: Sequence[str] | None) -> Dataset:
    from crad.data.kinds.table import make_table

    train, test = to_rows(given.x_train, where="x_train"), to_rows(given.x_test, where="x_test")
    schema, labels = _columns_of(train, columns), (given.train_labels, given.test_labels)
    return make_table(train, labels[0], test, labels[1], given.class_names, schema, given.sites, name=given.name)


def _images(given: LabelledArrays, augmentation: str | None, *, is_said: bool) -> Dataset:
    dtype = pixel_type(given.x_train, where="x_train", is_said=is_said)
    splits = Splits(
        to_images(given.x_train, where="x_train", dtype=dtype),
        given.train_labels,
        to_images(given.x_test, where="x_test", dtype=dtype),
        given.test_labels,
        given.class_names,
    )
    dataset = build_dataset(splits, name=given.name, where=given.name, augmentation=augmentation)
    return dataset if given.sites is None else with_sites(dataset, given.sites)


def with_sites(dataset: Dataset, sites: Sequence[str]) -> Dataset:
    """Return a data set that knows whose training sample each one is."""
    names, places = np.unique(np.array(sites, dtype=str), return_inverse=True)
    return replace(dataset, train_sites=places.astype(np.int64), site_names=tuple(names.tolist()))


def dataset_from_items(
    train: Any,  # noqa: ANN401  # anything with a length and items
    test: Any,  # noqa: ANN401
    *,
    classes: Sequence[str] | None,
    name: str,
    augmentation: str | None,
) -> Dataset:
    """Read every pair of image and label of two map-style data sets; see `Dataset.from_torch`."""
    parts: list[Any] = []
    for split, source in (("train", train), ("test", test)):
        pairs = _pairs(source, where=split)
        parts += [stack_images((image for image, _ in pairs), where=split), [_plain(label) for _, label in pairs]]
    named = classes if classes is not None else getattr(train, "classes", None)
    return dataset_from_arrays(
        *parts, classes=None if named is None else [str(one) for one in named], name=name, augmentation=augmentation
    )


def dataset_from_columns(
    splits: Mapping[str, Any],
    *,
    image: str,
    label: str,
    train: str,
    test: str,
    classes: Sequence[str] | None,
    name: str,
    augmentation: str | None,
) -> Dataset:
    """Read two columns of two splits; see `Dataset.from_huggingface`."""
    parts: list[Any] = []
    for split in (train, test):
        if split not in splits:
            raise unknown_name("split", split, list(splits))
        columns = getattr(splits[split], "column_names", None) or list(splits[split])
        for column in (image, label):
            if column not in columns:
                raise unknown_name(f"column of {split!r}", column, columns)
        samples, labels = splits[split][image], [_plain(one) for one in splits[split][label]]
        parts += [list(samples) if isinstance(next(iter(samples), None), str) else stack_images(samples, where=split)]
        parts.append(labels)
    named = classes if classes is not None else _feature_names(splits[train], label)
    return dataset_from_arrays(*parts, classes=named, name=name, augmentation=augmentation)


def to_images(x: object, *, where: str, dtype: np.dtype[Any] = EIGHT_BITS) -> Images:
    """Return images as [N, H, W, C] of one type, whichever of the understood layouts and types they come in."""
    array = _to_numpy(x, where=where)
    if array.ndim == 4 and is_channels_first(array.shape[1:]):
        array = array.transpose(0, 2, 3, 1)
    elif array.ndim == 3:
        array = array[..., np.newaxis]
    if array.ndim != 4:
        raise DataError(f"{where} has shape {_to_numpy(x, where=where).shape}: {EXPECTED}")
    return _to_pixels(array, dtype, where=where)


def pixel_type(x: object, *, where: str, is_said: bool) -> np.dtype[Any]:
    """Return the smallest type of pixels that holds images as they are: of 8 or 16 bits, or floats.

    Numbers [N, A, B] that are none of 8 or 16 bits may be series as well: then somebody has to say it.
    """
    array = _to_numpy(x, where=where)
    if array.dtype.kind not in "iuf" or array.size == 0:
        raise DataError(f"{where} has dtype {array.dtype} and shape {array.shape}: {EXPECTED}")
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind in "iu" and low >= 0 and high <= 255:
        return EIGHT_BITS
    if array.dtype.kind == "f" and low >= 0 and high <= 1 and _is_in_levels(array):
        return EIGHT_BITS  # as torchvision's ToTensor makes them
    if array.ndim == 3 and not is_said and array.dtype != np.uint16:
        raise DataError(
            f"{where} is {array.dtype} of shape {array.shape} with values {low:g} to {high:g}: gray images, or series "
            "[N, channels, time]? Say kind='image' or kind='series'"
        )
    return np.dtype(np.uint16 if array.dtype.kind in "iu" and low >= 0 and high <= 65_535 else np.float32)


def to_rows(x: object, *, where: str) -> Rows:
    """Return numbers of any type as float32 [N, F]; NaN is a gap."""
    array = _to_numpy(x, where=where)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise DataError(f"{where} is {array.dtype} of shape {array.shape}, expected numbers [N, F], one row each")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def is_texts(x: object) -> bool:
    """Return whether something is a collection of texts, by its first; nothing is copied to tell."""
    if isinstance(x, np.ndarray):
        return x.ndim == 1 and (x.dtype.kind in "UT" or (x.dtype.kind == "O" and len(x) > 0 and isinstance(x[0], str)))
    if isinstance(x, list | tuple):
        return bool(x) and isinstance(x[0], str)
    values = getattr(x, "to_list", None)  # a column of a frame
    return callable(values) and is_texts(values())


def plain_texts(x: Any, *, where: str) -> list[str]:  # noqa: ANN401  # what `is_texts` is true of
    """Return a collection of texts as a list; refuse whatever else is among them."""
    texts = list(x)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"{where}[{place}] is a {type(text).__name__}, expected texts: write an empty one as ''")
    return texts


def to_batch(
    x: object,
    shape: tuple[int, int, int],
    *,
    resize: int | None = None,
    where: str = "x",
    dtype: np.dtype[Any] = EIGHT_BITS,
) -> Images:
    """Return one image or several as [N, H, W, C] of this very shape [H, W, C]; refuse any other size.

    `resize`: images of any size are brought to this side first, as those that the model was trained on were.
    """
    array = _to_numpy(x, where=where)
    images = to_images(array[np.newaxis] if _is_alone(array.shape, shape) else array, where=where, dtype=dtype)
    if resize is not None and len(images):
        from crad.data.resizing import resize_images  # needs torch

        images = resize_images(images, resize)
    if images.shape[1:] != shape:
        raise DataError(
            f"{where}: images are {_sides(images.shape[1:])}, this model takes {_sides(shape)} (height x width x "
            "channels): resize or convert them as those it was trained on"
        )
    return images


def _site_texts(site: Sequence[object], samples: int) -> list[str]:
    texts = [str(_plain(one)) for one in site]
    if len(texts) != samples:
        raise DataError(f"site has {len(texts)} entries for {samples} training samples: say of each whose it is")
    return texts


def _columns_of(rows: Rows, names: Sequence[str] | None) -> tuple[Column, ...]:
    said = [str(name) for name in names] if names is not None else [f"x{place}" for place in range(rows.shape[1])]
    if len(said) != rows.shape[1] or len(set(said)) != len(said):
        raise DataError(f"columns has {len(set(said))} different names for {rows.shape[1]} columns of x_train")
    return numeric_columns(said)


def _is_alone(given: tuple[int, ...], shape: tuple[int, int, int]) -> bool:
    """Return whether an array is one image and not several: an image of one channel needs no axis for it."""
    channels = shape[2]
    if channels == 1:
        return len(given) == 2 or (len(given) == 3 and given[2] == 1) or given == (1, *shape[:2])
    return len(given) == 3 and channels in (given[0], given[2])


def encode_labels(
    y_train: object, y_test: object, classes: Sequence[str] | None = None
) -> tuple[Labels, Labels, tuple[str, ...]]:
    """Return labels as 0..C-1 and what the classes are called.

    Labels are numbers or strings. With `classes`, strings must be among them, and numbers are places in them counted
    from 0, or from 1 where 0 does not occur and C does. Without, every value that occurs is a class, in sorted order,
    called by its value: labels 1..C keep their names.
    """
    train, test = flat_labels(y_train, where="y_train"), flat_labels(y_test, where="y_test")
    if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
        raise DataError("y_train and y_test differ: one has strings, the other numbers; give both in one form")
    values = np.unique(np.concatenate([train, test]))
    if classes is None:
        return _by_value(train, test, values)
    names = tuple(str(one) for one in classes)
    if len(set(names)) != len(names):
        twice = next(one for one in names if names.count(one) > 1)
        raise DataError(f"classes has {twice!r} twice: every class needs a name of its own")
    if train.dtype.kind == "U":
        return _by_name(train, names), _by_name(test, names), names
    first = 1 if values.size and values[0] >= 1 and values[-1] == len(names) else 0
    for where, labels in (("y_train", train), ("y_test", test)):
        _check_range(labels - first, len(names), first=first, where=where)
    return (train - first).astype(np.int64), (test - first).astype(np.int64), names


def flat_labels(y: object, *, where: str) -> NDArray[Any]:
    """Return labels [N] or [N, 1] as [N], numbers as int64 and texts of any kind as str."""
    labels = _to_numpy(y, where=where)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"{where} has shape {labels.shape}, expected [N]: one class per sample")
    if labels.dtype.kind == "S":
        return np.char.decode(labels, "utf-8")
    if labels.dtype.kind == "O" and all(isinstance(one, str) for one in labels):
        return labels.astype(str)
    if labels.dtype.kind not in "iubUT":
        raise DataError(f"{where} has dtype {labels.dtype}, expected whole numbers or strings")
    return labels.astype(str) if labels.dtype.kind not in "iub" else labels.astype(np.int64)


def stack_images(images: Iterable[Any], *, where: str) -> NDArray[Any]:
    """Return images of one size as one array; Pillow's become uint8, gray only if all are."""
    loaded = [_from_pillow(one) for one in images]
    if not loaded:
        raise DataError(f"{where} is empty, expected at least one image")
    if {one.ndim for one in loaded} == {2, 3}:
        loaded = [np.repeat(one[..., np.newaxis], 3, axis=2) if one.ndim == 2 else one for one in loaded]
    for index, one in enumerate(loaded):
        if one.shape != loaded[0].shape:
            raise DataError(
                f"{where}: image {index} is {_sides(one.shape)} but the first one {_sides(loaded[0].shape)}: resize "
                "them to one shape"
            )
    return np.stack(loaded)


def _to_numpy(x: object, *, where: str) -> NDArray[Any]:
    if hasattr(x, "detach"):  # a torch tensor, wherever it lies
        x = x.detach().cpu().numpy()
    try:
        return np.asarray(x)
    except ValueError as error:
        raise DataError(f"{where} is no array ({' '.join(str(error).split())}): give images of one size") from error


def _to_pixels(array: NDArray[Any], dtype: np.dtype[Any], *, where: str) -> Images:
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    if array.dtype.kind not in "iuf" or array.size == 0:
        raise DataError(f"{where} has dtype {array.dtype} and shape {array.shape}, expected pixels as {dtype}")
    if dtype == np.float32:
        return np.ascontiguousarray(array, dtype=np.float32)
    low, high, highest = float(array.min()), float(array.max()), np.iinfo(dtype).max
    if array.dtype.kind in "iu":
        if low < 0 or high > highest:
            raise DataError(f"{where} has values {low:g} to {high:g}, expected {dtype} pixels 0..{highest}")
        return np.ascontiguousarray(array.astype(dtype))
    if not (dtype == np.uint8 and low >= 0 and high <= 1 and _is_in_levels(array)):
        raise DataError(
            f"{where} has floats {low:g} to {high:g}, expected {dtype} pixels 0..{highest}, or of 8 bits 0..1 in steps "
            "of 1/255 as torchvision's ToTensor makes them: leave out normalisation, the package has its own"
        )
    return np.ascontiguousarray(np.rint(array * 255).astype(np.uint8))


def _is_in_levels(array: NDArray[Any]) -> bool:
    return float(np.abs(array * 255 - np.rint(array * 255)).max()) < WHOLE_LEVEL


def _by_value(train: NDArray[Any], test: NDArray[Any], values: NDArray[Any]) -> tuple[Labels, Labels, tuple[str, ...]]:
    if len(values) > MAX_CLASSES:
        raise DataError(
            f"the labels have {len(values)} different values: are they classes? Expected {MAX_CLASSES} at most"
        )
    names = tuple(str(one) for one in values.tolist())
    return np.searchsorted(values, train).astype(np.int64), np.searchsorted(values, test).astype(np.int64), names


def _by_name(labels: NDArray[Any], names: tuple[str, ...]) -> Labels:
    places = {name: place for place, name in enumerate(names)}
    for label in labels.tolist():
        if label not in places:
            raise DataError(str(unknown_name("class", label, names)))
    return np.array([places[label] for label in labels.tolist()], dtype=np.int64)


def _check_range(labels: NDArray[Any], num_classes: int, *, first: int, where: str) -> None:
    outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if outside.size:
        index = int(outside[0])
        raise DataError(
            f"{where}: label {int(labels[index]) + first} at index {index} names none of the {num_classes} classes: "
            f"number them 0..{num_classes - 1} or 1..{num_classes}, or give their names"
        )


def _pairs(source: Any, *, where: str) -> list[tuple[Any, Any]]:  # noqa: ANN401
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise ConfigError(f"{where} is a {type(source).__name__}, expected a map-style data set: len(d) and d[i]")
    pairs = [source[index] for index in range(len(source))]
    for index, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"{where}[{index}] is a {type(pair).__name__}, expected (image, label)")
    return [(pair[0], pair[1]) for pair in pairs]


def _plain(label: object) -> object:
    """Return a label as Python's own number or text, also where it is a tensor of one value."""
    item = getattr(label, "item", None)
    return label if item is None else item()


def _from_pillow(image: Any) -> NDArray[Any]:  # noqa: ANN401  # Pillow's, a tensor or an array
    mode = getattr(image, "mode", None)
    if mode is not None and hasattr(image, "convert"):
        return np.asarray(image if mode in ("L", "RGB") else image.convert("L" if mode in ("1", "LA") else "RGB"))
    return _to_numpy(image, where="image")


def _feature_names(split: Any, label: str) -> list[str] | None:  # noqa: ANN401
    """Return the names of a ClassLabel, where the column is one."""
    features = getattr(split, "features", None) or {}
    names = getattr(features.get(label), "names", None)
    return None if names is None else [str(one) for one in names]


def _sides(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
