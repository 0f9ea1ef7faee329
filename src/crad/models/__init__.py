"""The networks peers train: the paper's pool, and a registry for a user's own."""

from crad.models.allowance import Allowance, InputShape, ModelSize, estimate_size
from crad.models.cnn6 import Cnn6, Cnn6Wide
from crad.models.registry import (
    ARCHITECTURES,
    POOL,
    Architecture,
    Builder,
    build_model,
    resolve_architecture,
)
from crad.models.resnet import ResNet18

__all__ = [
    "ARCHITECTURES",
    "POOL",
    "Allowance",
    "Architecture",
    "Builder",
    "Cnn6",
    "Cnn6Wide",
    "InputShape",
    "ModelSize",
    "ResNet18",
    "build_model",
    "estimate_size",
    "resolve_architecture",
]
