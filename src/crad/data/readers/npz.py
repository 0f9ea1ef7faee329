"""Reads a .npz file with MedMNIST's key names. Never unpickles: such a file may come from anybody."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.data.dataset import Splits
from crad.errors import DataError

VALIDATION_KEYS = ("val_images", "val_labels")
KEYS = ("train_images", "train_labels", "test_images", "test_labels")
_HOW = "write one with numpy.savez(path, train_images=..., train_labels=..., test_images=..., test_labels=...)"


def read_npz(path: Path, *, with_validation: bool = False) -> Splits:
    """Read the four arrays of a .npz file, and its `class_names` if it has them; `val_*` only if asked for."""
    if not path.is_file():
        raise DataError(f"{path}: no such file, expected a .npz: {_HOW}")
    with open_arrays(path) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: holds a single array, expected a .npz with {', '.join(KEYS)}: {_HOW}")
        with archive:
            return _read_arrays(archive, path=path, with_validation=with_validation)


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """Open a .npz or .npy file without unpickling; whatever numpy says of it while it is read becomes one line."""
    try:
        with path.open("rb") as file:
            yield np.load(file, allow_pickle=False)
    except (
        OSError,
        EOFError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        MemoryError,
        RuntimeError,
    ) as error:
        kind = path.suffix or ".npz"
        if "pickle" in str(error):  # what numpy says of any file that does not begin like one of its own
            raise DataError(
                f"{path}: is no {kind} file, or holds Python objects, which are never opened here because opening them "
                f"can run code: {_HOW}"
            ) from error
        raise DataError(f"{path}: not a readable {kind} file ({_one_line(error)}): fetch or write it again") from error


def _read_arrays(archive: np.lib.npyio.NpzFile, *, path: Path, with_validation: bool) -> Splits:
    missing = [key for key in KEYS if key not in archive.files]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}, has {', '.join(archive.files) or 'nothing'}: {_HOW}")
    arrays = {key: read_array(archive, key, path=path) for key in KEYS}
    names = None
    if "class_names" in archive.files:
        names = _class_names(read_array(archive, "class_names", path=path), path=path)
    if not with_validation or not set(VALIDATION_KEYS) <= set(archive.files):
        return Splits(**arrays, class_names=names)
    images, labels = (read_array(archive, key, path=path) for key in VALIDATION_KEYS)
    return Splits(**arrays, class_names=names, validation_images=images, validation_labels=labels)


def read_array(archive: np.lib.npyio.NpzFile, key: str, *, path: Path) -> NDArray[Any]:
    """Return one array of a .npz file; refuse one that would have to be unpickled."""
    try:
        array: NDArray[Any] = archive[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"{path}: {key} holds Python objects, which are never opened here because opening them can run code:"
            " save it as uint8 (images), as integers or strings (labels) or as strings (class_names), for instance with"
            f" numpy.array({key}.tolist())"
        ) from error
    return array


def _class_names(names: NDArray[Any], *, path: Path) -> tuple[str, ...]:
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise DataError(f"{path}: class_names is {names.dtype} of shape {names.shape}, expected a list of strings")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
