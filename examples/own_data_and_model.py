"""Your own images and your own network, beside ours.

The data is an .npz with MedMNIST's key names (this script makes a small one) or a folder of class folders of PNG or
JPEG images. The model is any function `build(num_classes, in_channels) -> nn.Module`, named by import path.

    python examples/own_data_and_model.py
"""

import tempfile
from pathlib import Path

import numpy as np
from torch import nn

import crad


def build(num_classes: int, in_channels: int) -> nn.Module:
    """A network that fits the local hardware."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, num_classes),
    )


def make_images(path: Path) -> None:
    """Two kinds of 16x16 images: with and without a bright spot."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split, size in (("train", 400), ("test", 100)):
        images = rng.integers(0, 90, size=(size, 16, 16, 3), dtype=np.uint8)
        labels = rng.integers(0, 2, size=(size, 1))
        images[labels[:, 0] == 1, 5:11, 5:11] += 100
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    np.savez(path, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder) / "spots.npz")
        experiment = crad.Experiment(
            dataset=f"{folder}/spots.npz",
            models=("examples.own_data_and_model:build", "cnn6"),
            clients=4,
            rounds=5,
            width=0.125,
            batch_size=16,
        )
        summary = crad.run(experiment).summary
        print(f"global {summary['global_accuracy']:.1f} %, local {summary['local_accuracy']:.1f} %")
