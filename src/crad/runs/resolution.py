"""An experiment as it is written down: nothing left to a default that another place or version could read otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crad.config import Experiment
from crad.data.catalog import absolute_name, load_dataset
from crad.data.dataset import Dataset
from crad.data.kinds import Kind, ReadOptions, kind_of_source
from crad.data.readers.table_file import options_of
from crad.methods import check_recipe, resolve_method
from crad.models import WEIGHTS
from crad.plugins import is_object, passed_object
from crad.privacy.accountant import check_noise, noise_for


def resolve_experiment(
    experiment: Experiment, *, noise: Callable[[Experiment], float | None] = noise_for
) -> Experiment:
    """Return the same experiment, said so that it can be repeated anywhere and later.

    A data file or folder and a file of weights is named by its full path, and every setting of the method stands there.
    `noise`: how much private training needs, where nobody says; to search for it takes seconds.
    """
    experiment = _for_its_data(experiment)
    method = resolve_method(experiment.method, experiment.method_settings)
    own = {name: value for name, value in method.settings.items() if isinstance(value, bool | int | float | str)}
    given = {name: value for name, value in experiment.method_settings.items() if name not in method.unsaid}
    check_recipe(experiment, method)
    whole: dict[str, Any] = {
        "dataset": absolute_name(experiment.dataset),
        "test_data": None if experiment.test_data is None else absolute_name(experiment.test_data),
        "models": tuple(map(_with_full_path, experiment.models)),
        "method_settings": {**own, **given},
    }
    check_noise(experiment)
    if experiment.private_training is not None and experiment.noise_multiplier is None:
        whole["noise_multiplier"] = noise(experiment)  # once: who trains elsewhere need not search for it again
    return Experiment(**{**experiment.model_dump(), **asdict(experiment.recipe), **whole})


def _for_its_data(experiment: Experiment) -> Experiment:
    """Return the experiment with the models of its kind of data and a client per site, where nobody says otherwise."""
    usual, changed = Experiment(preset=experiment.preset), dict[str, Any]()
    kind = _kind_of(experiment)
    if kind.name != "image" and experiment.models == usual.models:
        changed["models"] = kind.models
    if experiment.partition == "natural" and experiment.clients == usual.clients:
        names = _dataset_of(experiment).site_names
        changed |= {"clients": len(names)} if names else {}
    return Experiment(**{**experiment.model_dump(), **changed}) if changed else experiment


def _kind_of(experiment: Experiment) -> Kind:
    if not is_object(experiment.dataset):
        return kind_of_source(experiment.dataset, ReadOptions(table=options_of(experiment), kind=experiment.kind))
    data: Dataset = passed_object("data set", experiment.dataset)
    return data.kind_of_data


def _dataset_of(experiment: Experiment) -> Dataset:
    return load_dataset(
        experiment.dataset,
        resize=experiment.resize,
        table=options_of(experiment),
        kind=experiment.kind,
        seconds=experiment.seconds,
        seed=experiment.seed,
    )


def _with_full_path(model: str) -> str:
    name, has_weights, file = model.partition(WEIGHTS)
    return f"{name}{WEIGHTS}{Path(file).expanduser().resolve()}" if has_weights and file else model
