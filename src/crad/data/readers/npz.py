"""Reads a .npz file with MedMNIST's key names, or a folder of .npy files called so.

Never unpickles: such a file may come from anybody.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crad.data.dataset import Splits
from crad.errors import DataError

VALIDATION_KEYS = ("val_images", "val_labels")
SAMPLES, IMAGES = "_samples", "_images"  # the first is understood for the second, for what is no image
SITES, RATE = "train_sites", "rate"  # whose training sample it is; of recordings the samples a second
CHANNELS = "channel_names"  # of series
KEYS = ("train_images", "train_labels", "test_images", "test_labels")
_HOW = "write one with numpy.savez(path, train_images=..., train_labels=..., test_images=..., test_labels=...)"


class Arrays(Protocol):
    """Arrays by name."""

    @property
    def files(self) -> list[str]:
        """Return what they are called."""
        ...

    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


def read_npz(path: Path, *, with_validation: bool = False) -> Splits:
    """Read the four arrays of a .npz file, and its `class_names` if it has them; `val_*` only if asked for."""
    if path.is_dir():
        return _read_arrays(NpyFolder(path), path=path, with_validation=with_validation)
    if not path.is_file():
        raise DataError(f"{path}: no such file, expected a .npz: {_HOW}")
    with open_arrays(path) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: holds a single array, expected a .npz with {', '.join(KEYS)}: {_HOW}")
        with archive:
            return _read_arrays(archive, path=path, with_validation=with_validation)


@dataclass(frozen=True)
class NpyFolder:
    """A folder of .npy files, read as if they were one .npz."""

    path: Path

    @property
    def files(self) -> list[str]:
        """Return what the arrays are called."""
        return sorted(file.stem for file in self.path.glob("*.npy"))

    def __getitem__(self, name: str) -> NDArray[Any]:
        with open_arrays(self.path / f"{name}.npy") as array:
            return np.asarray(array)


def is_npy_folder(path: Path) -> bool:
    """Return whether a folder holds arrays and no class folders."""
    return (path / "train_labels.npy").is_file()


@dataclass(frozen=True)
class FoundArrays:
    """What a file holds: training and test samples, of recordings their sampling rate, of series channels' names."""

    splits: Splits
    rate: int | None
    channel_names: tuple[str, ...] | None = None


def read_arrays(path: Path, *, with_validation: bool = False) -> FoundArrays:
    """Read a .npz file or a folder of .npy files that need not hold images."""
    splits = read_npz(path, with_validation=with_validation)
    if path.is_dir():
        return FoundArrays(splits, *_about_signals(NpyFolder(path), splits, path=path))
    with open_arrays(path) as archive, archive:
        return FoundArrays(splits, *_about_signals(archive, splits, path=path))


def _about_signals(archive: Arrays, splits: Splits, *, path: Path) -> tuple[int | None, tuple[str, ...] | None]:
    """Return the sampling rate and the names of channels, where the file says them."""
    rate = _rate(archive, path=path)
    if CHANNELS not in archive.files:
        return rate, None
    names = _class_names(read_array(archive, CHANNELS, path=path), path=path, what=CHANNELS)
    channels = splits.train_images.shape[1] if splits.train_images.ndim == 3 else 1
    if len(names) != channels or len(set(names)) < channels:
        raise DataError(f"{path}: {CHANNELS} has {len(set(names))} different names for {channels} channels")
    return rate, names


def _rate(archive: Arrays, *, path: Path) -> int | None:
    if RATE not in archive.files:
        return None
    rate = np.asarray(read_array(archive, RATE, path=path))
    if rate.size != 1 or rate.dtype.kind not in "iuf" or not 1 <= float(rate.item()) < 1 << 31:
        raise DataError(f"{path}: rate is {rate.dtype} of shape {rate.shape}, expected one number: samples a second")
    return round(float(rate.item()))


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


def _read_arrays(archive: Arrays, *, path: Path, with_validation: bool) -> Splits:
    stored = {key: key if key in archive.files else key.replace(IMAGES, SAMPLES) for key in KEYS}
    missing = [key for key, name in stored.items() if name not in archive.files]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}, has {', '.join(archive.files) or 'nothing'}: {_HOW}")
    arrays = {key: read_array(archive, name, path=path) for key, name in stored.items()}
    sites = None
    if SITES in archive.files:
        sites = _site_names(read_array(archive, SITES, path=path), samples=len(arrays["train_labels"]), path=path)
    names = None
    if "class_names" in archive.files:
        names = _class_names(read_array(archive, "class_names", path=path), path=path)
    train_images, train_labels, test_images, test_labels = (arrays[key] for key in KEYS)
    found = Splits(train_images, train_labels, test_images, test_labels, names, train_sites=sites)
    stored = {key: key if key in archive.files else key.replace(IMAGES, SAMPLES) for key in VALIDATION_KEYS}
    if not with_validation or not set(stored.values()) <= set(archive.files):
        return found
    images, labels = (read_array(archive, name, path=path) for name in stored.values())
    return replace(found, validation_images=images, validation_labels=labels)


def read_array(archive: Arrays, key: str, *, path: Path) -> NDArray[Any]:
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


def _site_names(sites: NDArray[Any], *, samples: int, path: Path) -> tuple[str, ...]:
    if sites.shape != (samples,) or sites.dtype.kind not in "USiu":
        raise DataError(
            f"{path}: {SITES} is {sites.dtype} of shape {sites.shape}, expected a name for each of {samples} samples"
        )
    return tuple(one.decode() if isinstance(one, bytes) else str(one) for one in sites.tolist())


def _class_names(names: NDArray[Any], *, path: Path, what: str = "class_names") -> tuple[str, ...]:
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise DataError(f"{path}: {what} is {names.dtype} of shape {names.shape}, expected a list of strings")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
