"""Which runs may stand in one chart: worlds that do not mix, and in each the seeds of every method and variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.config import setting_of
from crad.runs.names import WORLD_FIELDS, differing, names
from crad.runs.run_records import RunRecords

Methods = Mapping[str, Sequence[RunRecords]]  # by name, one run per seed


def worlds(runs: Sequence[RunRecords]) -> dict[str, list[RunRecords]]:
    """Return the runs by data set and division, under a label of what sets them apart; one world has the label ''."""
    fields = differing(runs, WORLD_FIELDS)
    found: dict[str, list[RunRecords]] = {}
    for run in runs:
        words = [_word(key, getattr(run.experiment, key)) for key in fields]
        found.setdefault(", ".join(filter(None, words)), []).append(run)
    return found


def by_method(runs: Sequence[RunRecords]) -> dict[str, list[RunRecords]]:
    """Return the tested runs of one world by name, one per seed."""
    tested = [run for run in runs if any(is_tested(record) for record in run.rounds)]
    found: dict[str, list[RunRecords]] = {}
    for name, run in zip(names(tested), tested, strict=True):
        own = found.setdefault(name, [])
        if run.experiment.seed not in {other.experiment.seed for other in own}:
            own.append(run)
    return found


def is_tested(record: Mapping[str, Any]) -> bool:
    """Return whether a round was evaluated on the test sets."""
    return record["global_accuracy"] is not None


def _word(key: str, value: object) -> str:
    setting = setting_of(key)
    usual = str(value) if setting.is_said_alone else f"{key.replace('_', ' ')} {value}"
    return setting.words.get(value, usual)
