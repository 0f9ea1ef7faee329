"""CRAD: federated learning with no server, no public data and no common architecture.

The public names, imported on first use so that `crad --help` does not wait for torch.
"""

from __future__ import annotations

import gc
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crad.aggregation import RULES, Rule, Trace, aggregate, explain
    from crad.api import compare, run
    from crad.config import Experiment
    from crad.data.dataset import Dataset
    from crad.errors import CradError
    from crad.prediction.committee import Committee
    from crad.prediction.model_files import load_model
    from crad.prediction.trained_model import TrainedModel
    from crad.results.comparison import Comparison
    from crad.results.result import Result, load
    from crad.runs.callbacks import Callback, LambdaCallback
    from crad.training.metrics import ClassificationMetrics

__version__ = "0.2.0"

_HOMES = {
    "RULES": "crad.aggregation",
    "Callback": "crad.runs.callbacks",
    "ClassificationMetrics": "crad.training.metrics",
    "Committee": "crad.prediction.committee",
    "Comparison": "crad.results.comparison",
    "CradError": "crad.errors",
    "Dataset": "crad.data.dataset",
    "Experiment": "crad.config",
    "LambdaCallback": "crad.runs.callbacks",
    "Result": "crad.results.result",
    "Rule": "crad.aggregation",
    "Trace": "crad.aggregation",
    "TrainedModel": "crad.prediction.trained_model",
    "aggregate": "crad.aggregation",
    "compare": "crad.api",
    "explain": "crad.aggregation",
    "load": "crad.results.result",
    "load_model": "crad.prediction.model_files",
    "run": "crad.api",
}

__all__ = [
    "RULES",
    "Callback",
    "ClassificationMetrics",
    "Committee",
    "Comparison",
    "CradError",
    "Dataset",
    "Experiment",
    "LambdaCallback",
    "Result",
    "Rule",
    "Trace",
    "TrainedModel",
    "aggregate",
    "compare",
    "explain",
    "load",
    "load_model",
    "run",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # any public name
    if name not in _HOMES:
        raise AttributeError(f"module 'crad' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(_import(_HOMES[name]), name)


def _import(module: str) -> ModuleType:
    """Import a module while the garbage collector rests.

    Nothing that is imported is garbage, and looking through torch's objects for some takes a tenth of a second a time.
    """
    if not gc.isenabled():
        return import_module(module)
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.enable()


def __dir__() -> list[str]:
    """Return the public names, for completion: not the modules that happen to be imported."""
    return list(__all__)
