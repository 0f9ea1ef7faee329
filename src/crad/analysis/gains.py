"""What joining brought over training alone, client by client. `verdict.py` says what that shows."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from crad.analysis.comparison import METRICS
from crad.analysis.groups import NOT_JOINED
from crad.runs.run_records import RunRecords
from crad.runs.selection import honest_clients_at, honest_selected_round

ALONE = "local"


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


def client_gains(runs: Sequence[RunRecords]) -> list[Gain]:
    """Return every joined method against training alone with the same seed; empty where `local` was not run."""
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


def client_accuracies(run: RunRecords, metric: str, *, attackers: Collection[int]) -> list[float]:
    """Return every client's accuracy at the selected round; of those who do not attack, at the round they select."""
    if not attackers:
        return list(run.summary[f"{metric}_per_client"])
    selected = honest_selected_round(run.rounds, attackers)
    return [client[metric] for client in honest_clients_at(run.rounds, selected, attackers)]


def attackers_of(run: RunRecords) -> Collection[int]:
    """Return the clients that attacked in a run."""
    return frozenset(run.summary.get("attackers", ()))


def _differences(mine: RunRecords, theirs: RunRecords, metric: str) -> list[float]:
    own, floors = (client_accuracies(run, metric, attackers=attackers_of(mine)) for run in (mine, theirs))
    pairs = zip(own, floors, strict=True)
    return [value - floor for value, floor in pairs]
