"""Reads a folder of class folders of PNG or JPEG images.

Either `train/<class>/*` and `test/<class>/*`, or class folders alone: then a fixed fifth of every class,
the same in every run, is kept for the test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crad.data.dataset import Images, Labels, Splits
from crad.data.subsets import SPLIT_SEED, TEST_SHARE, stratified_split
from crad.errors import DataError, install_hint
from crad.randomness import stream

SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})
_GRAY_MODES = frozenset({"1", "L", "LA"})
_DEEP_MODES = frozenset({"F"})  # and every mode that starts with I: more than 8 bits per pixel


@dataclass(frozen=True)
class _Listing:
    """The image files of one folder of class folders, with the class of each."""

    files: tuple[Path, ...]
    labels: Labels


def read_image_folder(path: Path, *, resize: int | None = None) -> Splits:
    """Read every image; classes are the folders' names, sorted. `resize`: the side in pixels of them all."""
    split_folders = [path / split for split in ("train", "test") if (path / split).is_dir()]
    if len(split_folders) == 1:
        raise DataError(f"{path}: has {split_folders[0].name}/ alone, expected both train/ and test/, or neither")
    train_folder = split_folders[0] if split_folders else path
    class_names = _class_names(train_folder)
    if len(class_names) < 2:
        raise DataError(f"{train_folder}: {len(class_names)} class folders, expected 2 or more: one folder per class")
    train = _list_images(train_folder, class_names)
    if not split_folders:
        return _split_images(train, class_names, resize=resize)
    unknown = sorted(set(_class_names(split_folders[1])) - set(class_names))
    if unknown:
        raise DataError(f"{split_folders[1]}: class folder {unknown[0]!r} is not in {train_folder}: add it there")
    test = _list_images(split_folders[1], class_names)
    images = _read_images((*train.files, *test.files), resize=resize)
    count = len(train.files)
    return Splits(images[:count], train.labels, images[count:], test.labels, class_names)


def _split_images(listing: _Listing, class_names: tuple[str, ...], *, resize: int | None) -> Splits:
    images, labels = _read_images(listing.files, resize=resize), listing.labels
    test, train = stratified_split(labels, share=TEST_SHARE, rng=stream(SPLIT_SEED, "image-folder", "test"))
    return Splits(images[train], labels[train], images[test], labels[test], class_names)


def _class_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not _is_hidden(entry)))


def _list_images(folder: Path, class_names: tuple[str, ...]) -> _Listing:
    files: list[Path] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        if not (folder / class_name).is_dir():
            continue  # a test set may lack a class
        found = _class_files(folder / class_name)
        files += found
        labels += [label] * len(found)
    return _Listing(tuple(files), np.array(labels, dtype=np.int64))


def _class_files(folder: Path) -> list[Path]:
    entries = sorted(entry for entry in folder.iterdir() if not _is_hidden(entry))
    images = [entry for entry in entries if entry.suffix.lower() in SUFFIXES]
    if images:
        return images
    known = ", ".join(sorted(SUFFIXES))
    if entries:
        raise DataError(f"{folder}: {entries[0].name!r} is no image we can read, expected {known}: convert it")
    raise DataError(f"{folder}: the class folder is empty, expected images ({known}): fill or remove it")


def read_pictures(files: Sequence[Path], *, channels: int, resize: int | None = None) -> Images:
    """Read image files as [N, H, W, channels], made gray or coloured where they are not; `resize`: the side of all."""
    return _read_images(tuple(files), mode="L" if channels == 1 else "RGB", resize=resize)


def _read_images(files: tuple[Path, ...], *, mode: str | None = None, resize: int | None = None) -> Images:
    """Read all images [N, H, W, C] in this colour mode; without one, grayscale only if every one of them is."""
    assert files
    headers = [_read_header(file) for file in files]
    first_shape = headers[0][0]
    for file, (shape, _) in zip(files, headers, strict=True):
        if shape != first_shape and resize is None:
            raise DataError(
                f"{file}: the image is {shape[0]}x{shape[1]} but {files[0]} is"
                f" {first_shape[0]}x{first_shape[1]} (height x width): set resize to one side in pixels,"
                " or resize them yourself"
            )
    mode = mode or ("L" if all(one in _GRAY_MODES for _, one in headers) else "RGB")
    channels = 1 if mode == "L" else 3
    sides = first_shape if resize is None else (resize, resize)
    images = np.empty((len(files), *sides, channels), dtype=np.uint8)
    for index, file in enumerate(files):
        pixels = _read_pixels(file, mode=mode)
        pixels = pixels.reshape(*pixels.shape[:2], channels)
        images[index] = pixels if resize is None else _resized(pixels, resize)
    return images


def _resized(pixels_HWC: Images, side: int) -> Images:
    from crad.data.resizing import resize_images  # needs torch, which a list of data sets does without

    made: Images = resize_images(pixels_HWC[np.newaxis], side)[0]
    return made


def _read_header(file: Path) -> tuple[tuple[int, int], str]:
    """Read height, width and colour mode, without decoding the pixels."""
    pillow = _pillow()
    try:
        with pillow.open(file) as image:
            shape, mode = (image.height, image.width), image.mode
    except Exception as error:  # Pillow's decoders fail in many ways
        raise _unreadable(file, error) from error
    if mode in _DEEP_MODES or mode.startswith("I"):
        raise DataError(f"{file}: has more than 8 bits per pixel (mode {mode}): convert it to 8 bits")
    return shape, mode


def _read_pixels(file: Path, *, mode: str) -> Images:
    pillow = _pillow()
    try:
        with pillow.open(file) as image:
            return np.asarray(image.convert(mode), dtype=np.uint8)
    except Exception as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(f"{file}: not a readable image ({error}): repair or remove it")


def _pillow() -> Any:  # noqa: ANN401 (the module, imported late)
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"reading images needs Pillow: {install_hint('images')}") from error
    return Image


def _is_hidden(entry: Path) -> bool:
    return entry.name.startswith(".") or entry.name == "Thumbs.db"
