"""The commands on a page: those that repeat its runs, and the one that adds training alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crad.analysis.gains import ALONE
from crad.config import PUBLISHED, Experiment, changed_settings, names_of, names_where, to_flags
from crad.plugins import OBJECT, is_object
from crad.runs.directory import RunDirectory, runs_in
from crad.runs.names import changed_recipe
from crad.runs.run_records import RunRecords

_OF_A_RUN = frozenset({"seed", *names_of("method")})  # what may differ between the runs of a comparison
_OF_TEACHERS = frozenset(names_where(lambda setting: setting.is_of_teachers))  # who trains alone has none
_OF_RECIPE = frozenset(names_of("recipe"))


def repeating_commands(runs: Sequence[RunRecords]) -> list[str]:
    """Return one `crad run` or `crad compare`, or a `crad run` each where more than method and seed differ.

    What was passed as an object in Python has no command: the call stands there instead.
    """
    if any(_passed_names(run.experiment) for run in runs):
        return [_python_call(run.experiment) for run in runs]
    if len(runs) == 1 or not _is_comparison(runs):
        return [_run_command(run.experiment) for run in runs]
    return [_compare_command([run.experiment for run in runs])]


def continuing_command(folder: Path) -> str:
    """Return what goes on with a folder of runs that `crad compare` or `crad demo` wrote; runs it lacks begin.

    Of methods and seeds only those are known that have begun.
    """
    begun = [RunDirectory(run).experiment() for run in runs_in(folder)]
    begun.sort(key=lambda experiment: (experiment.seed, experiment.method != ALONE))  # the first is the baseline
    return f"{_compare_command(begun)} --output {shlex.quote(str(folder))}"


def alone_commands(run: RunRecords) -> list[str]:
    """Return what adds training alone to a run: the run, and a page of both; nothing where objects were passed."""
    if _passed_names(run.experiment):
        return []
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


def _passed_names(experiment: Experiment) -> list[str]:
    return [name for name in (experiment.dataset, *experiment.models, experiment.method) if is_object(name)]


def _python_call(experiment: Experiment) -> str:
    """Return the call in Python; an object stands there by its name in angle brackets."""
    roles = {"data": experiment.dataset, "models": experiment.models, "method": experiment.method}
    objects = {role: repr(names) for role, names in roles.items() if any(map(is_object, _listed(names)))}
    shown = {role: re.sub(rf"'{OBJECT}([^']*)'", r"<\1>", text) for role, text in objects.items()}
    own = _changed(experiment)
    if "method" in shown:
        own.pop("method_settings", None)  # they are the object's
    keys = {"data": "dataset", "models": "models", "method": "method"}
    rest = {key: value for key, value in own.items() if key not in {keys[role] for role in shown}}
    settings = ", ".join(f"{key}={value!r}" for key, value in {"preset": experiment.preset, **rest}.items())
    return f"crad.run(crad.Experiment({settings}), {', '.join(f'{role}={text}' for role, text in shown.items())})"


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _run_command(experiment: Experiment) -> str:
    return f"crad run --preset {experiment.preset} {to_flags(_changed(experiment))}".strip()


def _changed(experiment: Experiment) -> dict[str, Any]:
    """Return what a command must say: a run writes down the whole recipe, of which its method stands for most."""
    changed = {key: value for key, value in changed_settings(experiment).items() if key not in _OF_RECIPE}
    return changed | changed_recipe(experiment)


def _is_comparison(runs: Sequence[RunRecords]) -> bool:
    """Tell whether one `crad compare` makes all of them: every method with every seed, all else alike."""
    common = {_settings_key(run.experiment, without=_OF_A_RUN | {*names_of("execution")}) for run in runs}
    of_method = {(run.experiment.method, repr(run.experiment.method_settings)) for run in runs}
    methods, seeds = {run.experiment.method for run in runs}, {run.experiment.seed for run in runs}
    return len(common) == 1 and len(of_method) == len(methods) and len(runs) == len(methods) * len(seeds)


def _settings_key(experiment: Experiment, *, without: frozenset[str]) -> str:
    plain = {key: value for key, value in experiment.model_dump().items() if key not in without | _OF_RECIPE}
    return repr(plain | changed_recipe(experiment))


def _compare_command(experiments: Sequence[Experiment]) -> str:
    first = experiments[0]
    methods = ",".join(dict.fromkeys(one.method for one in experiments))
    seeds = ",".join(str(seed) for seed in dict.fromkeys(one.seed for one in experiments))
    own: Mapping[str, Any] = {
        f"{one.method}.{name}": value for one in experiments for name, value in one.method_settings.items()
    }
    settings = {key: value for key, value in _changed(first).items() if key not in _OF_A_RUN}
    if own:
        settings["method_settings"] = own
    flags = to_flags(settings)
    return f"crad compare --preset {first.preset} --methods {shlex.quote(methods)} --seeds {seeds} {flags}".strip()
