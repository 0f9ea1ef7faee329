"""CRAD: federated learning with no server, no public data and no common architecture.

The public names, imported on first use so that `crad --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crad.aggregation import RULES, Rule, Trace, aggregate, explain
    from crad.api import run
    from crad.config import Experiment
    from crad.runs.callbacks import Callback, LambdaCallback
    from crad.runs.result import Result

__version__ = "0.1.0"

_HOMES = {
    "RULES": "crad.aggregation",
    "Callback": "crad.runs.callbacks",
    "LambdaCallback": "crad.runs.callbacks",
    "Rule": "crad.aggregation",
    "Trace": "crad.aggregation",
    "aggregate": "crad.aggregation",
    "explain": "crad.aggregation",
    "Experiment": "crad.config",
    "Result": "crad.runs.result",
    "run": "crad.api",
}

__all__ = [
    "RULES",
    "Callback",
    "Experiment",
    "LambdaCallback",
    "Result",
    "Rule",
    "Trace",
    "aggregate",
    "explain",
    "run",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # any public name
    if name not in _HOMES:
        raise AttributeError(f"module 'crad' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
