"""What a run is called, on lines of progress, in tables, in charts and their legends: one place for all of them.

The name is the method and what was changed about it, such as `crad, balanced loss`. Runs of one name are seeds of each
other; runs of two names never are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from crad.config import PUBLISHED, RECIPES, Experiment, names_of, setting_of
from crad.runs.run_records import RunRecords

# Runs that differ in one of these are no seeds of each other, and no methods to be compared.
WORLD_FIELDS = names_of("world")


def changed_recipe(experiment: Experiment) -> dict[str, str]:
    """Return the settings in which an experiment is not its method as such."""
    from crad.aggregation.rules import has_published_filter  # late: names alone need no torch

    own, usual = asdict(experiment.recipe), asdict(RECIPES.get(experiment.method, PUBLISHED))
    if usual["filter"] is None and own["filter"] == "median" and has_published_filter(experiment.method):
        own["filter"] = None
    return {key: value for key, value in own.items() if value != usual[key]}


def display_name(experiment: Experiment) -> str:
    """Return the method and what was changed about it."""
    words = [setting_of(key).words.get(value, f"{value} {key}") for key, value in changed_recipe(experiment).items()]
    return ", ".join([experiment.method, *words])


def title_of(experiment: Experiment) -> str:
    """Return the method, what was changed about it and the seed."""
    return f"{display_name(experiment)}, seed {experiment.seed}"


def names(runs: Sequence[RunRecords]) -> list[str]:
    """Return what each of several runs is called; where runs of one name differ in a setting, that is said too."""
    plain = [display_name(run.experiment) for run in runs]
    return [
        _told_apart(name, run, [other for other, theirs in zip(runs, plain, strict=True) if theirs == name])
        for name, run in zip(plain, runs, strict=True)
    ]


def with_names(runs: Sequence[RunRecords]) -> list[RunRecords]:
    """Return the runs, each with its name among the others in its summary."""
    return [replace(run, summary={**run.summary, "name": name}) for name, run in zip(names(runs), runs, strict=True)]


def differing(runs: Sequence[RunRecords], fields: Sequence[str]) -> list[str]:
    """Return the settings among these in which the runs are not alike."""
    return [key for key in fields if len({repr(getattr(run.experiment, key)) for run in runs}) > 1]


def _told_apart(name: str, run: RunRecords, same: Sequence[RunRecords]) -> str:
    words = [f"{key}={getattr(run.experiment, key)}" for key in differing(same, names_of("learning"))]
    settings = [other.experiment.method_settings for other in same]
    keys = dict.fromkeys(key for one in settings for key in one)
    varying = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    own = run.experiment.method_settings
    words += [f"{key}={own[key]}" for key in varying if key in own]
    return f"{name} ({', '.join(words)})" if words else name
