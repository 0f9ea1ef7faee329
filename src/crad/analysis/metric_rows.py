"""Metrics beyond accuracy of several methods and seeds, side by side: a row per method and test set."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from crad.analysis.comparison import Figure, over_seeds

METRIC_TITLES = {  # by their names in `summary.json`: what people call them
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auroc": "AUROC",
    "ece": "calibration error",
}
TEST_SETS = {"global": "common test set", "local": "own test halves"}


@dataclass(frozen=True)
class MetricFigure:
    """One metric over seeds, None where some seed has too few samples; of one seed with its bootstrap interval."""

    over_seeds: Figure | None
    interval: tuple[float, float] | None = None
    reason: str = ""  # why there is no figure
    num_clients: int = 0  # with enough samples, in all seeds
    of_clients: int = 0  # that could have been


@dataclass(frozen=True)
class MetricRow:
    """One method on one test set: its clients' models, or their committees."""

    name: str
    is_committee: bool
    test_set: str  # "global" or "local"
    figures: dict[str, MetricFigure]
    is_of_honest: bool = False


def metric_rows(summaries: Sequence[Mapping[str, Any]]) -> list[MetricRow]:
    """Return a row per method and test set, and of committees where they are measured; runs without metrics have none.

    Under a simulated attack the clients count that do not attack, also in runs that no attack can reach.
    """
    attackers: dict[int, set[int]] = {}
    for summary in summaries:
        attackers.setdefault(summary["seed"], set()).update(summary.get("attackers", ()))
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for summary in summaries:
        by_name.setdefault(str(summary.get("name", summary["method"])), []).append(summary)
    rows = []
    for name, own in by_name.items():
        whose = [attackers[summary["seed"]] for summary in own]
        found = [summary.get("metrics") for summary in own]
        rows += _rows_of(name, found, whose, is_committee=False)
        rows += _rows_of(name, [one and one.get("committee") for one in found], whose, is_committee=True)
    return rows


def to_json(rows: Sequence[MetricRow]) -> list[dict[str, Any]]:
    """Return the rows as plain dictionaries."""
    return [asdict(row) for row in rows]


def _rows_of(
    name: str, found: Sequence[Mapping[str, Any] | None], attackers: Sequence[Collection[int]], *, is_committee: bool
) -> list[MetricRow]:
    measured = [one for one in found if one is not None]
    if len(measured) < len(found):
        return []
    return [
        MetricRow(
            name,
            is_committee,
            test_set,
            {metric: _over_seeds([one[test_set][metric] for one in measured], attackers) for metric in METRIC_TITLES},
            is_of_honest=any(attackers),
        )
        for test_set in TEST_SETS
        if all(test_set in one for one in measured)
    ]


def _of_honest(entry: Mapping[str, Any], attackers: Collection[int]) -> Mapping[str, Any]:
    """Return the mean over the clients that attack nowhere; one that has left others out has no interval of its own."""
    values = entry["per_client"]
    if not any(values[client] is not None for client in attackers):
        return entry
    honest = [value for client, value in enumerate(values) if value is not None and client not in attackers]
    return {"value": statistics.fmean(honest) if honest else None, "reason": entry.get("reason", "")}


def _over_seeds(entries: Sequence[Mapping[str, Any]], attackers: Sequence[Collection[int]]) -> MetricFigure:
    pairs = list(zip(entries, attackers, strict=True))
    honest = [[value for client, value in enumerate(one["per_client"]) if client not in own] for one, own in pairs]
    num_clients = sum(value is not None for values in honest for value in values)
    of_clients = sum(map(len, honest))
    means = [_of_honest(one, own) for one, own in pairs]
    values = [mean["value"] for mean in means]
    if None in values:
        reason = next(mean["reason"] for mean in means if mean["value"] is None)
        return MetricFigure(None, None, reason, num_clients, of_clients)
    has_interval = len(means) == 1 and means[0].get("low") is not None
    interval = (means[0]["low"], means[0]["high"]) if has_interval else None
    return MetricFigure(over_seeds(values), interval, "", num_clients, of_clients)
