"""Whether joining helped over training alone: over all methods, and client by client."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from crad.analysis.comparison import METRICS, ComparisonRow
from crad.runs.run_records import RunRecords

ALONE = "local"
NOT_JOINED = (ALONE, "centralized")  # the floor, and the ceiling that no federation may reach


@dataclass(frozen=True)
class Gain:
    """A method's accuracy minus training alone, in points: one value per client, seed after seed."""

    name: str  # of the method, and in what it was changed
    metric: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over all clients and seeds."""
        return statistics.fmean(self.values)

    @property
    def num_gained(self) -> int:
        """Return how many clients are better off."""
        return sum(value > 0 for value in self.values)


def headline(rows: Sequence[ComparisonRow]) -> str:
    """Say whether joining helped over training alone, in two sentences; empty where `local` was not run."""
    return " ".join(part for part in (verdict(rows), gains_by_method(rows)) if part)


def verdict(rows: Sequence[ComparisonRow]) -> str:
    """Return the first sentence of the headline."""
    gains = list(_mean_gains(rows).values())
    if not gains:
        return ""
    how = "helped" if min(gains) > 0 else "did not help" if max(gains) <= 0 else "helped with some methods only"
    return f"Joining {how}."


def gains_by_method(rows: Sequence[ComparisonRow]) -> str:
    """Return the second sentence of the headline: every joined method's mean gain in global accuracy."""
    gains = _mean_gains(rows)
    if not gains:
        return ""
    by_name = {row.name: row for row in rows}
    theirs = next(row for row in rows if row.method == ALONE).figures["global_accuracy"]
    parts = []
    for name, gain in gains.items():
        pairs = zip(by_name[name].figures["global_accuracy"].values, theirs.values, strict=True)
        wins = sum(value > other for value, other in pairs)
        over_seeds = f" (better with {wins} of {len(theirs.values)} seeds)" if len(theirs.values) > 1 else ""
        parts.append(f"{name} {gain:+.2f} points{over_seeds}")
    return f"Global accuracy over training alone ({theirs.mean:.2f} %): {', '.join(parts)}."


def client_gains(runs: Sequence[RunRecords]) -> list[Gain]:
    """Every joined method against training alone with the same seed; empty where `local` was not run."""
    floor = alone_name(runs)
    alone = {run.summary["seed"]: run for run in runs if run.summary["name"] == floor}
    joined = dict.fromkeys(run.summary["name"] for run in runs if run.summary["method"] not in NOT_JOINED)
    gains = []
    for name in joined:
        pairs = [
            (run, alone[run.summary["seed"]])
            for run in runs
            if run.summary["name"] == name and run.summary["seed"] in alone
        ]
        for metric in METRICS if pairs else ():
            values = [value for mine, theirs in pairs for value in _differences(mine, theirs, metric)]
            gains.append(Gain(name, metric, tuple(values)))
    return gains


def alone_name(runs: Sequence[RunRecords]) -> str | None:
    """Return what training alone is called here: the first of its variants, None where it was not run."""
    return next((run.summary["name"] for run in runs if run.summary["method"] == ALONE), None)


def _mean_gains(rows: Sequence[ComparisonRow]) -> dict[str, float]:
    alone = next((row for row in rows if row.method == ALONE), None)
    if alone is None:
        return {}
    floor = alone.figures["global_accuracy"].mean
    return {row.name: row.figures["global_accuracy"].mean - floor for row in rows if row.method not in NOT_JOINED}


def _differences(mine: RunRecords, theirs: RunRecords, metric: str) -> list[float]:
    pairs = zip(mine.summary[f"{metric}_per_client"], theirs.summary[f"{metric}_per_client"], strict=True)
    return [value - floor for value, floor in pairs]
