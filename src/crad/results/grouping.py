"""Which runs may stand in one chart: worlds that do not mix, and in each the seeds of every method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.config import EXECUTION_FIELDS
from crad.results.runs import RunRecords

Methods = Mapping[str, Sequence[RunRecords]]  # the runs of every method, one per seed

# Runs that differ in one of these are no seeds of each other, and no methods to be compared.
WORLD_FIELDS = (
    "dataset",
    "clients",
    "active",
    "partition",
    "alpha",
    "classes_per_client",
    "held_out",
    "train_limit",
    "test_limit",
)


def worlds(runs: Sequence[RunRecords]) -> dict[str, list[RunRecords]]:
    """The runs by data set and division, under a label of what sets them apart; one world has the label ''."""
    differing = _differing(runs, WORLD_FIELDS)
    found: dict[str, list[RunRecords]] = {}
    for run in runs:
        words = [_word(key, getattr(run.experiment, key)) for key in differing]
        found.setdefault(", ".join(words), []).append(run)
    return found


def by_method(runs: Sequence[RunRecords]) -> dict[str, list[RunRecords]]:
    """The tested runs of one world by method, one per seed; settings are named where a method was run with several."""
    tested = [run for run in runs if any(is_tested(record) for record in run.rounds)]
    found: dict[str, list[RunRecords]] = {}
    for run in tested:
        same = [other for other in tested if other.experiment.method == run.experiment.method]
        own = found.setdefault(_method_name(run, same), [])
        if run.experiment.seed not in {other.experiment.seed for other in own}:
            own.append(run)
    return found


def is_tested(record: Mapping[str, Any]) -> bool:
    """Whether a round was evaluated on the test sets."""
    return record["global_accuracy"] is not None


def _differing(runs: Sequence[RunRecords], fields: Sequence[str]) -> list[str]:
    return [key for key in fields if len({repr(getattr(run.experiment, key)) for run in runs}) > 1]


def _word(key: str, value: object) -> str:
    return str(value) if key in ("dataset", "partition") else f"{key.replace('_', ' ')} {value}"


def _method_name(run: RunRecords, same: Sequence[RunRecords]) -> str:
    apart = {"method", "method_settings", "preset", "seed", "rounds", "eval_every", *WORLD_FIELDS, *EXECUTION_FIELDS}
    fields = [key for key in type(run.experiment).model_fields if key not in apart]
    words = [f"{key}={getattr(run.experiment, key)}" for key in _differing(same, fields)]
    settings = [other.experiment.method_settings for other in same]
    keys = dict.fromkeys(key for one in settings for key in one)
    varying = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    own = run.experiment.method_settings
    words += [f"{key}={own[key]}" for key in varying if key in own]
    return f"{run.experiment.method} ({', '.join(words)})" if words else run.experiment.method
