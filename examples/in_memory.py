"""Three peers on arrays in memory: train together, predict with one of them, export it (examples/in_memory.py FILE)."""

import sys

import numpy as np
from torch import nn

import crad


def build(num_classes: int, in_channels: int) -> nn.Module:
    """A network of our own, beside two that come with the package."""
    head = nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, num_classes)
    return nn.Sequential(nn.Conv2d(in_channels, 16, 3), nn.ReLU(), *head)


rng = np.random.default_rng(0)
labels = np.array(["left", "right"] * 250)
images = rng.integers(0, 120, size=(500, 16, 16, 3), dtype=np.uint8)
images[labels == "left", :, :8] += 90  # one half is brighter
data = crad.Dataset.from_arrays(images[:400], labels[:400], images[400:], labels[400:], augmentation="none")

experiment = crad.Experiment(clients=3, rounds=4, width=0.125, batch_size=16, lr=0.05, alpha=1.0)
result = crad.run(experiment, data=data, models=[build, "cnn6", "resnet18-half"])
print(result)
print(result.models[0].predict(images[400:404]), "are", labels[400:404])
print(result.export("onnx", client=0, path=sys.argv[1] if len(sys.argv) > 1 else "peer-0.onnx"))
