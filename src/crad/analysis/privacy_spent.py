"""What the clients of private runs have spent of their records' privacy, from the records alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crad.analysis.chart_rows import Row
from crad.analysis.comparison import over_seeds
from crad.analysis.groups import Methods
from crad.config import Experiment
from crad.runs.records import Record
from crad.runs.run_records import RunRecords

EPSILON_LEFT = "epsilon_left"  # in what a member tells of a round: spent on its data by all that left


@dataclass(frozen=True)
class PrivacySpent:
    """One private run: what was aimed at, and what its clients have spent, by the client that spent most."""

    name: str
    seed: int
    target: float
    delta: float
    epsilon: float
    training_epsilon: float
    statistics_epsilon: float
    steps: int
    releases: int
    noise_multiplier: float | None


def word_about_counts(experiment: Experiment) -> str | None:
    """Return what private counts are and are not; None where nobody has asked for them."""
    if experiment.private_counts is None:
        return None
    return (
        f"private_counts = {experiment.private_counts:g} is the paper's Section 5: counts are noised, the accuracies "
        "beside them are exact and give them away, and models are not private; private_training protects all three"
    )


def spent_by_client(rounds: Iterable[Record]) -> dict[int, Record]:
    """Return the newest account of every client that has one; empty where training was not private."""
    return {client["client"]: client["privacy"] for one in rounds for client in one["clients"] if "privacy" in client}


def highest_epsilon(record: Record) -> float | None:
    """Return the most that a client of one round's record has spent so far; None where nobody's training is private.

    A member says what has left, which is less than what its newest model has in it.
    """
    if EPSILON_LEFT in record:
        return float(record[EPSILON_LEFT])
    return max((one["epsilon"] for one in spent_by_client([record]).values()), default=None)


def privacy_spent(runs: Sequence[RunRecords]) -> list[PrivacySpent]:
    """Return what every private run has spent; nothing of one that has no round yet."""
    found = []
    for run in runs:
        target = run.experiment.private_training
        clients = spent_by_client(run.rounds) if target is not None else {}
        if target is None or not clients:
            continue
        most = max(clients.values(), key=lambda one: float(one["epsilon"]))
        found.append(
            PrivacySpent(
                name=run.summary["name"],
                seed=run.experiment.seed,
                target=target,
                delta=most["delta"],
                epsilon=most["epsilon"],
                training_epsilon=most["training_epsilon"],
                statistics_epsilon=most["statistics_epsilon"],
                steps=most["steps"],
                releases=most["releases"],
                noise_multiplier=run.experiment.noise_multiplier,
            )
        )
    return found


def privacy_rows(methods: Methods) -> list[Row]:
    """Return the most that a client has spent after every round that all seeds of a method have: mean, low, high."""
    rows: list[Row] = []
    for method, runs in methods.items():
        if any(run.experiment.private_training is None for run in runs):
            continue
        curves = [_curve(run.rounds) for run in runs]
        for index in sorted(set.intersection(*(set(curve) for curve in curves))):
            figure = over_seeds([curve[index] for curve in curves])
            rows.append(
                {"method": method, "round": index, "epsilon": figure.mean, "seeds": len(runs)}
                | {"low": min(figure.values), "high": max(figure.values)}
            )
    return rows


def _curve(rounds: Sequence[Record]) -> dict[int, float]:
    """Return the most spent by round: who did not take part stands where it stood, and nothing is ever given back."""
    curve, most = {}, 0.0
    for one in rounds:
        spent = highest_epsilon(one)
        if spent is not None:
            curve[one["round"]] = most = max(most, spent)
    return curve
