"""An experiment as it is written down: nothing left to a default that another place or version could read otherwise."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from crad.config import Experiment
from crad.data.catalog import absolute_name
from crad.methods import check_recipe, resolve_method
from crad.models import WEIGHTS


def resolve_experiment(experiment: Experiment) -> Experiment:
    """Return the same experiment, said so that it can be repeated anywhere and later.

    A data file or folder and a file of weights is named by its full path, and every setting of the method stands there.
    """
    method = resolve_method(experiment.method, experiment.method_settings)
    own = {name: value for name, value in method.settings.items() if isinstance(value, bool | int | float | str)}
    check_recipe(experiment, method)
    whole = {
        "dataset": absolute_name(experiment.dataset),
        "models": tuple(map(_with_full_path, experiment.models)),
        "method_settings": {**own, **experiment.method_settings},
    }
    return Experiment(**{**experiment.model_dump(), **asdict(experiment.recipe), **whole})


def _with_full_path(model: str) -> str:
    name, has_weights, file = model.partition(WEIGHTS)
    return f"{name}{WEIGHTS}{Path(file).expanduser().resolve()}" if has_weights and file else model
