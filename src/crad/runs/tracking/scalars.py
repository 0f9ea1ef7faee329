"""What is logged of a run: one name and one number each, the name being the place in `rounds.jsonl`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from crad.config import NONE, Experiment, with_stored_names
from crad.runs.records import Record

ACCURACIES = ("validation_accuracy", "global_accuracy", "local_accuracy")
SUMMARY_PREFIX = "summary/"


def round_scalars(record: Record) -> dict[str, float]:
    """Return the numbers of one round; what was not measured in it is left out."""
    found = {
        **_accuracies("", record),
        **{f"losses/{name}": mean for name, mean in _mean_losses(record).items()},
        "payload_bytes": record["payload_bytes"],
        "timing/seconds": record["timing"]["seconds"],
        "timing/peak_memory_bytes": record["timing"]["peak_memory_bytes"],
    }
    for name, variant in record.get("variants", {}).items():
        found |= _accuracies(f"variants/{name}/", variant)
    if "committee" in record:
        found |= _accuracies("committee/", record["committee"])
    for client in record["clients"]:
        found |= _accuracies(f"client/{client['client']}/", client)
        for name, value in client.get("privacy", {}).items():
            found[f"client/{client['client']}/privacy/{name}"] = value
    return found


def summary_scalars(summary: Record) -> dict[str, float]:
    """Return the numbers of `summary.json` that stand alone."""
    return {
        f"{SUMMARY_PREFIX}{name}": value
        for name, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    } | {
        **_metrics(f"{SUMMARY_PREFIX}metrics/", summary.get("metrics", {})),
        **_privacy(summary.get("privacy")),
    }


def _privacy(entry: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the most that a client has spent by private training, and its delta."""
    if entry is None or not entry["epsilon_per_client"]:
        return {}
    most = {"epsilon": max(entry["epsilon_per_client"]), "delta": entry["delta"]}
    return {f"{SUMMARY_PREFIX}privacy/{name}": value for name, value in most.items()}


def _metrics(prefix: str, entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics beyond accuracy with the ends of their intervals; what has too few samples is left out."""
    found: dict[str, float] = {}
    for test_set in ("global", "local", "pooled"):
        for name, figure in entry.get(test_set, {}).items():
            ends = {f"{prefix}{test_set}/{name}/{end}": figure.get(end) for end in ("low", "high")}
            values = {f"{prefix}{test_set}/{name}": figure["value"], **ends}
            found |= {key: value for key, value in values.items() if value is not None}
    return found | (_metrics(f"{prefix}committee/", entry["committee"]) if "committee" in entry else {})


def hyperparameters(experiment: Experiment) -> dict[str, bool | int | float | str]:
    """Return the settings in `experiment.toml`, one value each; the method's own behind a dot."""
    found: dict[str, bool | int | float | str] = {}
    for name, value in with_stored_names(experiment.model_dump(mode="json")).items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": one for key, one in value.items()}
        elif isinstance(value, list):
            found[name] = ",".join(value)
        else:
            found[name] = NONE if value is None else value
    return found


def _accuracies(prefix: str, entry: Mapping[str, Any]) -> dict[str, float]:
    return {f"{prefix}{name}": entry[name] for name in ACCURACIES if entry.get(name) is not None}


def _mean_losses(record: Record) -> dict[str, float]:
    """Means over the clients that have such a loss."""
    losses = defaultdict(list)
    for client in record["clients"]:
        for name, value in client["losses"].items():
            losses[name].append(value)
    return {name: statistics.fmean(values) for name, values in losses.items()}
