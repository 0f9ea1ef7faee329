"""Which runs may stand in one chart: worlds that do not mix, and in each the seeds of every method and variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.config import setting_of
from crad.runs.names import WORLD_FIELDS, names
from crad.runs.run_records import RunRecords

Methods = Mapping[str, Sequence[RunRecords]]  # by name, one run per seed
World = tuple[str, ...]  # the value of every setting that says what world it is

NOT_JOINED = ("local", "centralized")  # the floor, and the ceiling that no federation may reach


def worlds(runs: Sequence[RunRecords]) -> dict[str, list[RunRecords]]:
    """Return the runs by data set and division, under a label of what sets them apart; one world has the label ''.

    Who joins nobody meets no attack and is the floor of every one: such runs stand in each world that differs from
    theirs in the attack alone.
    """
    joined = dict.fromkeys(_world(run) for run in runs if not _is_floor(run))
    found: dict[World, list[RunRecords]] = {}
    for run in runs:
        homes = [world for world in joined if _is_floor(run) and _without_attack(world) == _without_attack(_world(run))]
        for world in homes or [_world(run)]:
            found.setdefault(world, []).append(run)
    fields = [key for place, key in enumerate(WORLD_FIELDS) if len({world[place] for world in found}) > 1]
    return {_label(own, fields): own for own in found.values()}


def _is_floor(run: RunRecords) -> bool:
    return run.experiment.method in NOT_JOINED and run.experiment.attack is None


def _world(run: RunRecords) -> World:
    return tuple(repr(getattr(run.experiment, key)) for key in WORLD_FIELDS)


def _without_attack(world: World) -> World:
    return tuple(value for key, value in zip(WORLD_FIELDS, world, strict=True) if key not in ("attack", "attackers"))


def _label(runs: Sequence[RunRecords], fields: Sequence[str]) -> str:
    """Return what sets a world apart, in the words of the runs that belong to it alone."""
    own = next((run for run in runs if not _is_floor(run)), runs[0]).experiment
    return ", ".join(filter(None, (_word(key, getattr(own, key)) for key in fields)))


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
