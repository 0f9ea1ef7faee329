"""The networks peers train: the paper's pool, and a registry for a user's own."""

from crad.models.allowance import Allowance, ModelSize, estimate_size
from crad.models.families import ARCHITECTURES, FAMILIES, FITTED, POOL, preparing_layer
from crad.models.family import Builder, InputShape
from crad.models.first_weights import FirstWeights, file_sha256, load_first_weights
from crad.models.networks.cnn6 import Cnn6, Cnn6Wide
from crad.models.networks.resnet import ResNet18
from crad.models.networks.series import MelSpectrogram, SignalScaler
from crad.models.networks.table import TableEncoder, fit_agreed_ranges, other_than_agreed
from crad.models.networks.trees import FittedModule
from crad.models.own_statistics import OwnStatistics, fit_own_statistics, has_own_statistics, set_own_statistics
from crad.models.registry import WEIGHTS, Architecture, build_model, check_fits_kind, resolve_architecture

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
    "MelSpectrogram",
    "ModelSize",
    "OwnStatistics",
    "ResNet18",
    "SignalScaler",
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
    "preparing_layer",
    "resolve_architecture",
    "set_own_statistics",
]
