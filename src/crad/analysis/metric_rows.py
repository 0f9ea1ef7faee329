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
TEST_SETS = {"global": "common test set", "pooled": "own test halves"}
ALL_CLIENTS = "of all clients only"  # why a run without an attack has no figure of some of them


@dataclass(frozen=True)
class MetricFigure:
    """One metric over seeds, None where some seed has too few samples; of one seed with its bootstrap interval."""

    over_seeds: Figure | None
    interval: tuple[float, float] | None = None
    reason: str = ""  # why there is no figure


@dataclass(frozen=True)
class MetricRow:
    """One method on one test set: its clients' models, or their committees."""

    name: str
    is_committee: bool
    test_set: str  # "global", or "pooled": all clients' own test halves as one, every sample by its owner's model
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
        rows += _rows_of(name, [_committee_of(one) for one in found], whose, is_committee=True)
    return rows


def _committee_of(metrics: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if metrics is None or "committee" not in metrics:
        return None
    return {"clients": metrics["clients"], **metrics["committee"]}


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
            {
                metric: _over_seeds(_of_honest_clients(measured, attackers, test_set, metric))
                for metric in METRIC_TITLES
            },
            is_of_honest=any(attackers),
        )
        for test_set in TEST_SETS
        if all(test_set in one for one in measured) and not (is_committee and test_set == "pooled")
    ]


def _of_honest_clients(
    measured: Sequence[Mapping[str, Any]], attackers: Sequence[Collection[int]], test_set: str, metric: str
) -> list[Mapping[str, Any]]:
    """Return one metric seed by seed, of the clients that attack nowhere."""
    return [
        _of_honest(one[test_set][metric], own, counted=one["clients"])
        for one, own in zip(measured, attackers, strict=True)
    ]


def _of_honest(entry: Mapping[str, Any], attackers: Collection[int], *, counted: Collection[int]) -> Mapping[str, Any]:
    """Return the figure as it is, or the mean without attackers that were counted, which has no interval."""
    if not set(attackers) & set(counted):
        return entry
    if "per_client" not in entry:
        return {"value": None, "reason": ALL_CLIENTS}
    values = entry["per_client"]
    honest = [value for client, value in enumerate(values) if value is not None and client not in attackers]
    return {"value": statistics.fmean(honest) if honest else None, "reason": entry.get("reason", "")}


def _over_seeds(entries: Sequence[Mapping[str, Any]]) -> MetricFigure:
    values = [entry["value"] for entry in entries]
    if None in values:
        return MetricFigure(None, reason=next(entry["reason"] for entry in entries if entry["value"] is None))
    has_interval = len(entries) == 1 and entries[0].get("low") is not None
    return MetricFigure(over_seeds(values), (entries[0]["low"], entries[0]["high"]) if has_interval else None)
