"""Reads a folder of class folders of PNG, JPEG or TIFF images.

Either `train/<class>/*` and `test/<class>/*`, or class folders alone: then a fixed fifth of every class, the same in
every run, is kept for the test set; perhaps below a folder for every site (`class_folders.py`). Gray images may have 16
bits or floats, if all have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.data.dataset import EIGHT_BITS, SIXTEEN_BITS, Images, Splits
from crad.data.readers.class_folders import FileType, list_class_folders
from crad.errors import DataError, install_hint

PICTURE = FileType(frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff"}), "image", "images")
SUFFIXES = PICTURE.suffixes
_GRAY_MODES = frozenset({"1", "L", "LA"})
_DTYPES = {"F": np.dtype(np.float32)}  # of Pillow's modes; every mode that starts with I has 16 bits or more


def read_image_folder(path: Path, *, resize: int | None = None, site: str | None = None) -> Splits:
    """Read every image; classes are the folders' names, sorted. `resize`: the side in pixels of them all."""
    found = list_class_folders(path, PICTURE, site=site)
    images = _read_images((*found.train.files, *found.test.files), resize=resize)
    count = len(found.train.files)
    return Splits(
        images[:count],
        found.train.labels,
        images[count:],
        found.test.labels,
        found.class_names,
        train_sites=found.train.sites,
    )


def read_pictures(
    files: Sequence[Path], *, channels: int, resize: int | None = None, dtype: np.dtype[Any] = EIGHT_BITS
) -> Images:
    """Read image files as [N, H, W, channels], made gray or coloured where they are not; `resize`: the side of all.

    Files of another depth than `dtype` are refused: 16 bits are not stretched from 8, nor 8 cut out of 16.
    """
    if channels not in (1, 3) or (dtype != EIGHT_BITS and channels != 1):
        raise DataError(
            f"{files[0]}: this model takes images of {channels} channels as {dtype}, which files of pictures do not "
            "hold: give them as an array, .npy or .npz"
        )
    return _read_images(tuple(files), mode="L" if channels == 1 else "RGB", resize=resize, dtype=dtype)


def _read_images(
    files: tuple[Path, ...],
    *,
    mode: str | None = None,
    resize: int | None = None,
    dtype: np.dtype[Any] | None = None,
) -> Images:
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
    dtype = dtype or _depth(headers[0][1])
    for file, (_, one) in zip(files, headers, strict=True):
        if _depth(one) != dtype:
            raise DataError(
                f"{file}: has pixels of {_called(_depth(one))}, the others of {_called(dtype)}: convert it as those"
            )
    mode = mode or ("L" if all(one in _GRAY_MODES for _, one in headers) or dtype != EIGHT_BITS else "RGB")
    channels = 1 if mode == "L" else 3
    sides = first_shape if resize is None else (resize, resize)
    images = np.empty((len(files), *sides, channels), dtype=dtype)
    for index, file in enumerate(files):
        pixels = _read_pixels(file, mode=mode, dtype=dtype)
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
    return shape, mode


def _depth(mode: str) -> np.dtype[Any]:
    """Return the type that holds the pixels of an image of this mode."""
    return _DTYPES.get(mode, SIXTEEN_BITS if mode.startswith("I") else EIGHT_BITS)


def _called(dtype: np.dtype[Any]) -> str:
    return {EIGHT_BITS: "8 bits", SIXTEEN_BITS: "16 bits"}.get(dtype, "floats")


def _read_pixels(file: Path, *, mode: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    pillow = _pillow()
    try:
        with pillow.open(file) as image:
            pixels = np.asarray(image.convert(mode) if dtype == EIGHT_BITS else image)
    except Exception as error:
        raise _unreadable(file, error) from error
    if dtype == SIXTEEN_BITS and pixels.size and not 0 <= pixels.min() <= pixels.max() <= np.iinfo(dtype).max:
        raise DataError(f"{file}: has pixels of {pixels.min()} to {pixels.max()}, expected 16 bits: 0 to 65535")
    return pixels.astype(dtype)


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(f"{file}: not a readable image ({error}): repair or remove it")


def _pillow() -> Any:  # noqa: ANN401 (the module, imported late)
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"reading images needs Pillow: {install_hint('images')}") from error
    return Image
