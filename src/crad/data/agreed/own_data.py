"""One organisation's own labelled samples, for a federation whose classes are agreed; of images the reading as well.

A file says what is for training, for validation and for testing; what it does not say is split off here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crad.data.agreed.peer_lines import SHOWN, listed, quoted, toml_line
from crad.data.catalog import locate, read_found
from crad.data.checks.table_check import ColumnReport
from crad.data.dataset import Dataset, Labels, Splits, build_dataset
from crad.data.labels import number_texts
from crad.data.partition import MIN_SAMPLES, Shard, record_lots, split_by_lots, split_shard
from crad.data.readers.npz import read_npz
from crad.data.subsets import stratified_split
from crad.errors import ConfigError, DataError

AS_AGREED: Literal["as agreed"] = "as agreed"
SHOWN_CLASSES = 12
OwnClasses = tuple[str, ...] | Literal["as agreed"]  # what labels without names are called by their owner


@dataclass(frozen=True)
class OwnData:
    """All own samples in one data set without common test images, and which of them serve what."""

    dataset: Dataset
    shard: Shard
    columns: tuple[ColumnReport, ...] = ()  # of a table: what was understood of each
    passed_over: tuple[str, ...] = ()  # of a table: columns of the file that are not agreed on
    warnings: tuple[str, ...] = ()
    understood: str = ""  # of samples of other kinds, in a line
    given_parts: int = 1  # that the file itself keeps apart: all in one; training and test; validation as well


@dataclass(frozen=True)
class OwnSamples:
    """Samples and their classes in the agreed numbers, for training, for validation, for the test, one or the other."""

    samples: NDArray[Any]
    labels: Labels


def load_own_data(
    source: str,
    *,
    classes: Sequence[str],
    image_shape: tuple[int, int, int],
    augmentation: str,
    held_out: float,
    rng: np.random.Generator,
    own_classes: OwnClasses | None = None,
    meanings: Mapping[str, str] | None = None,
) -> OwnData:
    """Read a .npz file, a folder of class folders or a known data set, with labels in the agreed order of classes.

    Classes are compared by name; labels that are texts are names. Where the data has none, `own_classes` says what its
    labels 0, 1, 2, ... are called, or that they are numbered as agreed; nobody else can know. `meanings` are the agreed
    classes that names of our own stand for.

    Images may be smaller than agreed where those are square: they get a border. The file's own test images are the test
    half. Validation images come from the file (`val_images`), or half of the held-out share of every class is taken off
    the training images.
    """
    where = source
    splits = _with_numbers(_read(source), own_classes, where=where)
    whole = build_dataset(splits, name=Path(source).stem, where=where, augmentation=augmentation)
    if whole.train_samples.dtype != np.uint8:
        raise DataError(
            f"{where}: organisations federate images of 8 bits only so far, and these are "
            f"{whole.train_samples.dtype}: convert them"
        )
    whole = replace(whole, pad_to=_padding(whole, image_shape, where=where))
    names = own_names(splits.class_names, own_classes, where=where, listed=classes)
    to_agreed = agreed_numbers(names, classes, num_classes=whole.num_classes, meanings=meanings, where=where)
    parts = [
        OwnSamples(whole.train_images, to_agreed[whole.train_labels]),
        *_validation(splits, whole, to_agreed, where=where),
        OwnSamples(whole.test_images, to_agreed[whole.test_labels]),
    ]
    return divide_parts(parts, replace(whole, class_names=tuple(classes)), held_out=held_out, rng=rng, where=where)


def divide_parts(
    parts: Sequence[OwnSamples], form: Dataset, *, held_out: float, rng: np.random.Generator, where: str
) -> OwnData:
    """Put a member's own parts together: for training, validation and test; or for training and test; or all in one.

    Of two, validation samples are half of the held-out share of every class, taken off the training samples. One is
    divided as a client's of a simulation: the same `rng` over as many samples gives the same parts.
    """
    words, given = form.kind_of_data.words.several, len(parts)
    if len(parts) == 2:
        first, test = parts
        kept, rest = stratified_split(first.labels, share=held_out / 2, rng=rng)
        parts = [OwnSamples(first.samples[some], first.labels[some]) for some in (rest, kept)] + [test]
    sizes = [len(part.labels) for part in parts]
    if sum(sizes) < MIN_SAMPLES or (len(sizes) > 1 and (sizes[0] < 2 or sizes[1] < 1)):
        each = zip(sizes, ("training", "validation", "test"), strict=False)
        there = ", ".join(f"{size} {what}" for size, what in each) if len(sizes) > 1 else str(sizes[0])
        raise DataError(
            f"{where}: {there} {words}; a member needs at least {MIN_SAMPLES} in all, two of them for training and one "
            "for validation"
        )
    if len(parts) == 1:
        shard = split_shard(np.arange(sizes[0]), held_out=held_out, rng=rng)
    else:
        shard = Shard(*np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))
    samples = np.concatenate([part.samples for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    dataset = replace(
        form, train_samples=samples, train_labels=labels, test_samples=samples[:0], test_labels=labels[:0]
    )
    return OwnData(dataset, shard, given_parts=given)


def divide_by_records(own: OwnData, *, held_out: float, secret: int) -> OwnData:
    """Return the same samples, divided by each record alone, as private training needs it; a file's own parts stay."""
    if own.given_parts >= 3:
        return own
    lots, whole = record_lots(own.dataset.train_samples, own.dataset.train_labels, secret=secret), own.shard.indices
    if own.given_parts == 1:
        return replace(own, shard=split_by_lots(whole, lots[whole], held_out=held_out))
    rest = np.sort(np.concatenate([own.shard.train, own.shard.validation]))
    is_validation = lots[rest] < held_out / 2
    if is_validation.all() or not is_validation.any():
        raise DataError(f"private training divides by each record alone, and {len(rest)} samples are too few for that")
    return replace(own, shard=replace(own.shard, train=rest[~is_validation], validation=rest[is_validation]))


def own_names(
    in_file: Sequence[str] | None, own_classes: OwnClasses | None, *, where: str, listed: Sequence[str] = ()
) -> Sequence[str] | None:
    """Return what a file's labels 0, 1, 2, ... are called; None: they are numbered as agreed, as its owner says."""
    if in_file is not None:
        if own_classes not in (None, AS_AGREED, tuple(in_file)):
            raise DataError(
                f"{where}: names its classes itself ({', '.join(in_file)}), and classes in peer.toml says something "
                "else: remove that line, or correct the file"
            )
        return in_file
    if own_classes is None:
        known = f" (the federation's are {_shown(listed)})" if listed else ""
        raise DataError(
            f'{where}: its labels are numbers without names: write classes = ["...", ...] into peer.toml, our names of '
            f'0, 1, 2, ... in this order{known}, or classes = "{AS_AGREED}" if they are numbered as in the agreement'
        )
    return None if own_classes == AS_AGREED else own_classes


def agreed_numbers(
    names: Sequence[str] | None,
    classes: Sequence[str],
    *,
    num_classes: int,
    meanings: Mapping[str, str] | None = None,
    where: str,
) -> Labels:
    """Return the agreed number of every class of a file: by name where it has names, else its labels as they are."""
    if names is None:
        if num_classes > len(classes):
            raise DataError(f"{where}: has label {num_classes - 1}, the federation agreed on {len(classes)} classes")
        return np.arange(len(classes))
    known = {name: number for number, name in enumerate(classes)}
    _check_length(num_classes, names, where=where)
    for own, agreed in (meanings or {}).items():
        if agreed not in known:
            raise ConfigError(
                f"label.classes in peer.toml: {quoted(own)} means {quoted(agreed)} there, the agreed classes are "
                f"{listed(classes)}"
            )
    said = [(meanings or {}).get(name, name) for name in names]
    unknown = [own for own, name in zip(names, said, strict=True) if name not in known]
    if unknown:
        line = toml_line("label", classes=dict.fromkeys(unknown[:SHOWN], "..."))
        raise DataError(
            f"{where}: class {unknown[0]!r} is not in the federation's list ({_shown(classes)}): rename or remove it, "
            f"or write {line} into peer.toml, with what it means there"
        )
    return np.array([known[name] for name in said], dtype=np.int64)


def draft_dataset(source: str, *, own_classes: OwnClasses | None) -> Dataset:
    """Return the own data as the first member of an agreement brings it, with names for its classes.

    Where the owner says "as agreed" of labels without names, the numbers are the names.
    """
    found = locate(source)
    splits = _with_numbers(found.read(), own_classes, where=source)
    in_file = splits.class_names if found.source is None else found.source.class_names
    names = own_names(in_file, own_classes, where=source)
    dataset = read_found(replace(found, read=lambda: splits))
    if names is None or in_file is not None:
        return dataset
    _check_length(dataset.num_classes, names, where=source)
    return replace(dataset, class_names=tuple(names))


def _shown(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN_CLASSES
    return ", ".join(names[:SHOWN_CLASSES]) + (f" and {rest} more" if rest > 0 else "")


def _check_length(num_classes: int, names: Sequence[str], *, where: str) -> None:
    if num_classes > len(names):
        raise DataError(f"{where}: has label {num_classes - 1}, but classes in peer.toml has only {len(names)} names")


def _read(source: str) -> Splits:
    if source.lower().endswith(".npz"):
        return read_npz(Path(source).expanduser(), with_validation=True)
    found = locate(source)
    splits = found.read()
    return splits if found.source is None else replace(splits, class_names=found.source.class_names)


def _with_numbers(splits: Splits, own_classes: OwnClasses | None, *, where: str) -> Splits:
    return number_texts(splits, classes=None if own_classes == AS_AGREED else own_classes, where=where)


def _padding(dataset: Dataset, image_shape: tuple[int, int, int], *, where: str) -> int | None:
    """Return the side that smaller images are padded to where the agreed ones are square; None: no border."""
    *sides, channels = dataset.train_images.shape[1:]
    *agreed, agreed_channels = image_shape
    if (sides, channels) == (agreed, agreed_channels):
        return None
    if channels == agreed_channels and agreed[0] == agreed[1] and max(sides) <= agreed[0]:
        return agreed[0]
    raise DataError(
        f"{where}: images are {'x'.join(map(str, (*sides, channels)))}, the federation agreed on "
        f"{'x'.join(map(str, image_shape))} (height x width x channels): resize or convert them"
    )


def _validation(splits: Splits, whole: Dataset, to_agreed: Labels, *, where: str) -> list[OwnSamples]:
    """Return the file's own validation images, checked as the training images are; none where it has none."""
    if splits.validation_images is None or splits.validation_labels is None:
        return []
    checked = build_dataset(
        replace(
            splits,
            test_images=splits.validation_images,
            test_labels=splits.validation_labels,
            class_names=whole.class_names,
        ),
        name=whole.name,
        where=f"{where} (validation)",
    )
    return [OwnSamples(checked.test_images, to_agreed[checked.test_labels])]
