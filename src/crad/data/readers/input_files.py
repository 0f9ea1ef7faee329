"""Images to predict on, from files: one picture, a folder of pictures, an array in .npy or .npz."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.data.dataset import EIGHT_BITS
from crad.data.readers.image_folder import SUFFIXES, read_pictures
from crad.data.readers.npz import open_arrays, read_array
from crad.errors import DataError, unknown_name

USUAL_KEYS = ("test_images", "test_samples")


def read_inputs(
    path: Path,
    *,
    channels: int,
    resize: int | None = None,
    key: str | None = None,
    dtype: np.dtype[Any] = EIGHT_BITS,
) -> tuple[list[str], NDArray[Any]]:
    """Return what each image is called (in an array: nothing), and all of them as one array.

    Pictures become gray or colour as wanted, and with `resize` of this side.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if not files:
            raise DataError(f"{path}: holds no images ({', '.join(sorted(SUFFIXES))})")
        names = [str(file.relative_to(path)) for file in files]
        return names, read_pictures(files, channels=channels, resize=resize, dtype=dtype)
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder, expected an image, a folder of images, a .npy or a .npz")
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return [path.name], read_pictures([path], channels=channels, resize=resize, dtype=dtype)
    if suffix not in (".npy", ".npz"):
        raise DataError(f"{path}: expected an image ({', '.join(sorted(SUFFIXES))}), a folder of images, .npy or .npz")
    return [], read_array_file(path, key)


def read_array_file(path: Path, key: str | None) -> NDArray[Any]:
    """Return the array in a .npy file, or the one of this name in a .npz."""
    with open_arrays(path) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            if key is not None:
                raise DataError(f"{path}: holds a single array, so there is no {key!r} in it: leave out --key")
            return np.asarray(archive)
        with archive:
            return read_array(archive, _chosen(archive.files, key, path=path), path=path)


def _chosen(names: list[str], key: str | None, *, path: Path) -> str:
    if key is not None:
        if key not in names:
            raise unknown_name(f"array in {path}", key, names)
        return key
    if usual := [one for one in USUAL_KEYS if one in names]:
        return usual[0]
    if len(names) == 1:
        return names[0]
    raise DataError(f"{path}: has {', '.join(names) or 'nothing'}: say which array with --key")
