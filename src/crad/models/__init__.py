"""The networks peers train: the paper's pool, and a registry for a user's own."""

from crad.models.allowance import Allowance, InputShape, ModelSize, estimate_size
from crad.models.cnn6 import Cnn6, Cnn6Wide
from crad.models.first_weights import FirstWeights, file_sha256, load_first_weights
from crad.models.registry import (
    ARCHITECTURES,
    POOL,
    WEIGHTS,
    Architecture,
    Builder,
    build_model,
    resolve_architecture,
)
from crad.models.resnet import ResNet18

__all__ = [
    "ARCHITECTURES",
    "POOL",
    "WEIGHTS",
    "Allowance",
    "Architecture",
    "Builder",
    "Cnn6",
    "Cnn6Wide",
    "FirstWeights",
    "InputShape",
    "ModelSize",
    "ResNet18",
    "build_model",
    "estimate_size",
    "file_sha256",
    "load_first_weights",
    "resolve_architecture",
]
