"""The networks peers train: the paper's pool, and a registry for a user's own."""

from crad.models.allowance import Allowance, ModelSize, estimate_size
from crad.models.cnn6 import Cnn6, Cnn6Wide
from crad.models.first_weights import FirstWeights, file_sha256, load_first_weights
from crad.models.registry import (
    ARCHITECTURES,
    FAMILIES,
    FITTED,
    POOL,
    WEIGHTS,
    Architecture,
    Builder,
    InputShape,
    build_model,
    check_fits_kind,
    resolve_architecture,
)
from crad.models.resnet import ResNet18
from crad.models.table import (
    TableEncoder,
    fit_agreed_ranges,
    fit_own_statistics,
    has_own_statistics,
    other_than_agreed,
    set_own_statistics,
)
from crad.models.trees import FittedModule

__all__ = [
    "ARCHITECTURES",
    "FAMILIES",
    "FITTED",
    "POOL",
    "WEIGHTS",
    "Allowance",
    "Architecture",
    "Builder",
    "Cnn6",
    "Cnn6Wide",
    "FirstWeights",
    "FittedModule",
    "InputShape",
    "ModelSize",
    "ResNet18",
    "TableEncoder",
    "build_model",
    "check_fits_kind",
    "estimate_size",
    "file_sha256",
    "fit_agreed_ranges",
    "fit_own_statistics",
    "has_own_statistics",
    "load_first_weights",
    "other_than_agreed",
    "resolve_architecture",
    "set_own_statistics",
]
