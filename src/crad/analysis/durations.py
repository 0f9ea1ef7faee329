"""How long a run will take, from finished runs; before the first one, from what is known of other machines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from crad.config import Experiment, names_where
from crad.runs.run_records import RunRecords

# Seconds of a round under preset mini on CIFAR-10, one process on two cores of an Intel Xeon at 2.8 GHz, no GPU
# (docs/results.md). Elsewhere only their ratios are used; a rule that is not listed costs what CRAD does.
MINI_ROUND_SECONDS = {
    "local": 11.7,
    "fedmd": 16.7,
    "fedgd": 75.3,
    "msfkd": 17.1,
    "dfml": 25.5,
    "fedmkd": 17.6,
    "uniform": 17.6,
    "uncertainty": 17.1,
    "crad": 14.7,
}
# A round that took more than so many usual ones was one in which the machine stood still.
_PAUSE = 3
# Finished runs that agree in these tell the seconds of a round best.
_WORKLOAD = names_where(lambda setting: setting.sets_pace)


class Durations:
    """Seconds that rounds take, learned from finished runs."""

    def __init__(self, finished: Sequence[RunRecords], *, published: Mapping[str, float]) -> None:
        """`published`: the paper's seconds of a round by method, for its preset before anything was run here."""
        self._seen: list[tuple[Experiment, float]] = []
        self._published = published
        for run in finished:
            self.add(run)

    def add(self, run: RunRecords) -> None:
        """Learn from one more finished run."""
        seconds = [record["timing"]["seconds"] for record in run.rounds]
        longest = _PAUSE * statistics.median(seconds)
        self._seen.append((run.experiment, statistics.fmean(min(one, longest) for one in seconds)))

    def round_seconds(self, experiment: Experiment) -> float | None:
        """Of one round of the experiment, None where nothing is known."""
        alike = [one for one in self._seen if _workload(one[0]) == _workload(experiment)]
        same = [seconds for other, seconds in alike if other.method == experiment.method]
        if same:
            return statistics.median(same)
        if self._seen:
            pace = statistics.median(seconds / _relative(other.method) for other, seconds in alike or self._seen)
            return pace * _relative(experiment.method)
        if experiment.preset == "paper":
            known = self._published.get(experiment.method)
            return known or self._published["crad"] * _relative(experiment.method) / _relative("crad")
        return _relative(experiment.method) if experiment.preset == "mini" else None

    def basis(self, preset: str) -> str:
        """Return where the numbers come from, in words."""
        if self._seen:
            return "from the runs finished here"
        known = {"paper": "at the seconds per round that the paper gives for its GPU"}
        known["mini"] = "at the seconds per round in docs/results.md, two cores"
        return known.get(preset, "known after the first run")


def duration(seconds: float) -> str:
    """Seconds as people say them: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _relative(method: str) -> float:
    return MINI_ROUND_SECONDS.get(method, MINI_ROUND_SECONDS["crad"])


def _workload(experiment: Experiment) -> tuple[object, ...]:
    return tuple(getattr(experiment, name) for name in _WORKLOAD)
