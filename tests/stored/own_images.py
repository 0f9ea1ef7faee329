"""The images of the stored federation's members, made anew wherever they are needed: git keeps no .npz."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

MEMBERS = ("clinic-a", "clinic-b", "clinic-c")
PARTS = {"train": slice(0, 60), "val": slice(60, 80), "test": slice(80, 110)}


def write_own_images(path: Path, *, member: str) -> None:
    """Write every third of scikit-learn's digits, the same for ever: the state of a member knows their hash."""
    from sklearn.datasets import load_digits  # late: every worker of pytest imports this file, and one of them runs it

    digits, number = load_digits(), MEMBERS.index(member)
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[number :: len(MEMBERS)]
    labels = digits.target.astype(np.int64)[number :: len(MEMBERS)]
    arrays: dict[str, Any] = {"class_names": np.array([str(label) for label in range(10)])}
    for name, part in PARTS.items():
        arrays |= {f"{name}_images": images[part], f"{name}_labels": labels[part]}
    np.savez_compressed(path, **arrays)
