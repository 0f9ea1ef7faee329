"""The commands on a page: those that repeat its runs, and the one that adds training alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from crad.analysis.gains import ALONE
from crad.config import PUBLISHED, Experiment, changed_settings, names_of, names_where, to_flags
from crad.runs.names import variant
from crad.runs.run_records import RunRecords

_OF_A_RUN = frozenset({"seed", *names_of("method")})  # what may differ between the runs of a comparison
_OF_TEACHERS = frozenset(names_where(lambda setting: setting.is_of_teachers))  # who trains alone has none
_OF_RECIPE = frozenset(names_of("recipe"))


def repeating_commands(runs: Sequence[RunRecords]) -> list[str]:
    """Return one `crad run` or `crad compare`, or a `crad run` each where more than method and seed differ."""
    if len(runs) == 1 or not _is_comparison(runs):
        return [_run_command(run.experiment) for run in runs]
    return [_compare_command(runs)]


def alone_commands(run: RunRecords) -> list[str]:
    """Return what adds training alone to a run: the run, and a page of both."""
    without = _OF_A_RUN | _OF_TEACHERS
    others = {key: value for key, value in _changed(run.experiment).items() if key not in without}
    loss = run.experiment.recipe.local_loss  # the same, also where the method stands for it
    own = {} if loss == PUBLISHED.local_loss else {"local_loss": loss}
    settings = {"method": ALONE, **others, **own, "seed": run.experiment.seed}
    return [
        f"crad run --preset {run.experiment.preset} {to_flags(settings)} --output LOCAL",
        f"crad report {run_name(run)} LOCAL",
    ]


def run_name(run: RunRecords) -> str:
    """Return the run directory as a command names it."""
    return "RUN" if run.path is None else shlex.quote(str(run.path))


def _run_command(experiment: Experiment) -> str:
    return f"crad run --preset {experiment.preset} {to_flags(_changed(experiment))}".strip()


def _changed(experiment: Experiment) -> dict[str, Any]:
    """Return what a command must say: a run writes down the whole recipe, of which its method stands for most."""
    changed = {key: value for key, value in changed_settings(experiment).items() if key not in _OF_RECIPE}
    return changed | variant(experiment)


def _is_comparison(runs: Sequence[RunRecords]) -> bool:
    """Tell whether one `crad compare` makes all of them: every method with every seed, all else alike."""
    common = {_settings_key(run.experiment, without=_OF_A_RUN | {*names_of("execution")}) for run in runs}
    of_method = {(run.experiment.method, repr(run.experiment.method_settings)) for run in runs}
    methods, seeds = {run.experiment.method for run in runs}, {run.experiment.seed for run in runs}
    return len(common) == 1 and len(of_method) == len(methods) and len(runs) == len(methods) * len(seeds)


def _settings_key(experiment: Experiment, *, without: frozenset[str]) -> str:
    plain = {key: value for key, value in experiment.model_dump().items() if key not in without | _OF_RECIPE}
    return repr(plain | variant(experiment))


def _compare_command(runs: Sequence[RunRecords]) -> str:
    first = runs[0].experiment
    methods = ",".join(dict.fromkeys(run.experiment.method for run in runs))
    seeds = ",".join(str(seed) for seed in dict.fromkeys(run.experiment.seed for run in runs))
    own: Mapping[str, Any] = {
        f"{run.experiment.method}.{name}": value
        for run in runs
        for name, value in run.experiment.method_settings.items()
    }
    settings = {key: value for key, value in _changed(first).items() if key not in _OF_A_RUN}
    if own:
        settings["method_settings"] = own
    flags = to_flags(settings)
    return f"crad compare --preset {first.preset} --methods {shlex.quote(methods)} --seeds {seeds} {flags}".strip()
