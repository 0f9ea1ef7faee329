"""Several methods and seeds on identical partitions: means, spreads, and paired differences against the first."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from crad.errors import RunError

METRICS = ("global_accuracy", "local_accuracy")


@dataclass(frozen=True)
class Figure:
    """A metric over seeds: mean, standard deviation (0 for one seed), and the values by seed."""

    mean: float
    deviation: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class Cost:
    """What the paper's cost table has, and what it leaves out; means over seeds."""

    payload_counts: str
    published_bytes: float  # per client and round, every message once
    helper_bytes: float  # per round, of members without data
    round_seconds: float
    common_images: str
    clipped_share: float | None = None  # of all steps, those whose gradient was clipped; None: not counted


@dataclass(frozen=True)
class ComparisonRow:
    """One method of a comparison, or one variant of it."""

    name: str  # the method, and in what it was changed
    method: str
    is_reconstruction: bool  # nobody has published the method's code
    is_variant: bool  # other weights of the method above
    seeds: tuple[int, ...]
    figures: dict[str, Figure]
    spread: dict[str, float]  # over the clients, mean over the seeds
    difference: dict[str, Figure]  # against the first method, paired by seed
    payload_bytes: float
    peak_memory_bytes: float
    seconds: float
    cost: Cost
    committee: dict[str, Figure] = field(default_factory=dict)  # of all models together; empty where not measured
    is_of_honest: bool = False  # under a simulated attack: accuracies are those of the clients that do not attack


def compare(summaries: Sequence[Mapping[str, Any]]) -> list[ComparisonRow]:
    """One row per method or variant in the order of first appearance; all must have been run with the same seeds.

    Other weights that a method's clients keep stand in a row of their own below it, such as `dfml (peak)`. Under a
    simulated attack the clients count that do not attack, also in runs that no attack can reach.
    """
    summaries = [one for summary in summaries for one in (summary, *_variant_summaries(summary))]
    summaries = _of_honest_clients(summaries)
    names = list(dict.fromkeys(_name(summary) for summary in summaries))
    by_key = {(_name(summary), summary["seed"]): summary for summary in summaries}
    seeds = tuple(dict.fromkeys(summary["seed"] for summary in summaries))
    absent = [f"{name} with seed {seed}" for name in names for seed in seeds if (name, seed) not in by_key]
    if absent:
        raise RunError(f"a comparison needs every method with every seed; missing: {', '.join(absent)}")
    return [_row(name, names[0], seeds, by_key) for name in names]


def to_json(rows: Sequence[ComparisonRow]) -> list[dict[str, Any]]:
    """Return the rows as plain dictionaries."""
    return [asdict(row) for row in rows]


def _row(
    name: str, first: str, seeds: tuple[int, ...], by_key: Mapping[tuple[str, int], Mapping[str, Any]]
) -> ComparisonRow:
    own = [by_key[name, seed] for seed in seeds]
    reference = [by_key[first, seed] for seed in seeds]
    return ComparisonRow(
        name=name,
        method=own[0]["method"],
        is_reconstruction=bool(own[0].get("is_reconstruction")),
        is_variant=bool(own[0].get("is_variant")),
        seeds=seeds,
        figures={metric: over_seeds([summary[metric] for summary in own]) for metric in METRICS},
        spread={metric: statistics.fmean(summary[f"{metric}_spread"] for summary in own) for metric in METRICS},
        difference={
            metric: over_seeds([mine[metric] - theirs[metric] for mine, theirs in zip(own, reference, strict=True)])
            for metric in METRICS
        },
        payload_bytes=statistics.fmean(summary["payload_bytes_per_client_round"] for summary in own),
        peak_memory_bytes=max(summary["peak_memory_bytes"] for summary in own),
        seconds=statistics.fmean(summary["total_seconds"] for summary in own),
        cost=Cost(
            payload_counts=own[0].get("payload_counts", "sent"),
            published_bytes=_mean_of(own, "published_bytes_per_client_round"),
            helper_bytes=_mean_of(own, "helper_bytes_per_round"),
            round_seconds=_mean_of(own, "round_seconds"),
            common_images=own[0].get("common_images", "none"),
            clipped_share=_mean_where_all(own, "clipped_share"),
        ),
        committee=_committee(own),
        is_of_honest=any("is_of_honest" in summary for summary in own),
    )


def _of_honest_clients(summaries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the summaries with the accuracies of the clients that do not attack in any run of the same seed."""
    attackers = attackers_by_seed(summaries)
    return [_honest_summary(one, attackers[one["seed"]]) if one["seed"] in attackers else one for one in summaries]


def attackers_by_seed(summaries: Iterable[Mapping[str, Any]]) -> dict[int, frozenset[int]]:
    """Return who attacks in runs of one world: the seed draws them, for every method alike."""
    found: dict[int, frozenset[int]] = {}
    for summary in summaries:
        if own := summary.get("attackers"):
            found[summary["seed"]] = found.get(summary["seed"], frozenset()).union(own)
    return found


def _honest_summary(summary: Mapping[str, Any], attackers: Collection[int]) -> Mapping[str, Any]:
    if summary.get("is_variant"):
        return summary  # it has no figures by client
    changed: dict[str, Any] = {"is_of_honest": True}
    for metric in METRICS:
        values = summary.get(f"{metric}_per_client")
        if values is None:
            return summary
        honest = [value for client, value in enumerate(values) if client not in attackers]
        own = summary.get("honest", {}).get(metric)
        changed |= {metric: statistics.fmean(honest) if own is None else own}
        changed |= {f"{metric}_spread": statistics.pstdev(honest)}
    return {**summary, **changed}


def _committee(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Return what the models of a run reach together; other weights of a method are not asked."""
    found = [summary["committee"] for summary in summaries if summary.get("committee")]
    if len(found) < len(summaries) or summaries[0].get("is_variant"):
        return {}
    columns = {metric: [one[metric] for one in found] for metric in METRICS}
    return {metric: over_seeds(values) for metric, values in columns.items() if None not in values}


def _variant_summaries(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            **summary,
            **figures,
            "method": f"{summary['method']} ({name})",
            "name": f"{_name(summary)} ({name})",
            "is_variant": True,
        }
        for name, figures in summary.get("variants", {}).items()
    ]


def _name(summary: Mapping[str, Any]) -> str:
    # Summaries of an earlier version have none: there were no variants then.
    return str(summary.get("name", summary["method"]))


def _mean_of(summaries: Sequence[Mapping[str, Any]], key: str) -> float:
    # 0 where there is none, such as a helper's bytes without a helper.
    return statistics.fmean(summary.get(key, 0.0) for summary in summaries)


def _mean_where_all(summaries: Sequence[Mapping[str, Any]], key: str) -> float | None:
    # Summaries of an earlier version have none.
    found = [summary[key] for summary in summaries if key in summary]
    return statistics.fmean(found) if len(found) == len(summaries) else None


def over_seeds(values: Sequence[float]) -> Figure:
    """Mean and sample deviation of one value per seed."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Figure(statistics.fmean(values), deviation, tuple(values))
