"""The images: the real CIFAR-10 subset where `CRAD_DATA` has it, else noise of the same shape. Time is the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Settings
from crad.data.catalog import absolute_name
from crad.models import POOL


def cifar_like(settings: Settings) -> str:
    """The name or path of a data set with 10,000 training images of 32x32x3 in ten classes; few for a toy."""
    if settings.size == "toy":
        return noise_images(settings.output, num_classes=10, num_train=200, num_test=20, side=8)
    if (Path(os.environ.get("CRAD_DATA") or ".") / "cifar10.npz").is_file():
        return absolute_name("cifar10")
    return noise_images(settings.output, num_classes=10, num_train=10_000)


def models_for(settings: Settings) -> tuple[str, ...]:
    """The whole pool; for a toy the one that is prepared fastest."""
    return ("cnn6",) if settings.size == "toy" else POOL


def noise_images(folder: Path, *, num_classes: int, num_train: int, num_test: int = 1000, side: int = 32) -> str:
    """A data set of noise with as many classes as wanted, written once."""
    path = folder / f"noise-{num_classes}-{num_train}-{side}.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(1024)
        arrays: dict[str, Any] = {}
        for split, number in (("train", num_train), ("test", num_test)):
            arrays[f"{split}_images"] = rng.integers(0, 256, (number, side, side, 3), dtype=np.uint8)
            arrays[f"{split}_labels"] = np.arange(number) % num_classes
        np.savez(path, allow_pickle=False, **arrays)
    return str(path)
