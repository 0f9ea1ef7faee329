"""`metrics.json` and its digest in `summary.json`: the clients' metrics at the selected round as plain dictionaries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crad.errors import RunError, unknown_name
from crad.runs.client_metrics import POOLED, ClientMetrics, GroupMetrics, RunMetrics
from crad.runs.records import Record
from crad.training.metrics import (
    METRIC_NAMES,
    MIN_SAMPLES,
    NUM_RESAMPLES,
    ClassificationMetrics,
    estimate_from_json,
    estimate_to_json,
    mean_estimates,
    metrics_from_json,
    metrics_to_json,
    pool_metrics,
)

METRICS_FILE = "metrics.json"
SCHEMA = 1
FACES = ("global", "local")  # on the common test samples, on the clients' own test halves


def metrics_record(metrics: RunMetrics) -> Record:
    """Return `metrics.json`: every client's figures, intervals and confusion matrices, and the means over them."""
    return {
        "schema": SCHEMA,
        "round": metrics.round_index,
        "resamples": NUM_RESAMPLES,
        "min_samples": MIN_SAMPLES,
        **_group_record(metrics.models),
        **({} if metrics.committees is None else {"committee": _without_matrices(_group_record(metrics.committees))}),
    }


def metrics_text(record: Mapping[str, Any]) -> str:
    """Return the content of the file: without spaces, for a matrix of a hundred classes has ten thousand numbers."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"


def summary_metrics(record: Mapping[str, Any] | None, *, clients: int) -> Record:
    """Return the digest in `summary.json`: means over the clients with intervals, and every client's value."""
    if record is None:
        return {}
    digest = {
        "round": record["round"],
        "clients": [one["client"] for one in record["clients"]],
        **_digest(record, clients=clients),
    }
    if "committee" in record:
        digest["committee"] = _digest(record["committee"], clients=clients)
    return {"metrics": digest}


def stored_metrics(record: Mapping[str, Any], *, client: int | None, face: str) -> ClassificationMetrics:
    """Read one client's metrics from `metrics.json`, or those of all: means with their confusion matrices added up."""
    if face not in (*FACES, POOLED):
        raise unknown_name("face", face, (*FACES, POOLED))
    if face == POOLED:
        if client is not None:
            raise RunError("face='pooled' is of all clients together: leave client out, or take face='local'")
        return metrics_from_json(record[POOLED])
    entries = {one["client"]: one[face] for one in record["clients"]}
    if None in entries.values():
        raise RunError("this run had no common test samples: ask for face='local'")
    if client is None:
        figures = {name: estimate_from_json(one) for name, one in record["mean"][face].items()}
        return pool_metrics([metrics_from_json(one) for one in entries.values()], figures)
    if client not in entries:
        raise RunError(f"client {client} was not measured; there are {', '.join(map(str, entries))}")
    return metrics_from_json(entries[client])


def _group_record(group: GroupMetrics) -> Record:
    """Return the means over the clients, every client's own, and that of all own test halves together."""
    return {
        "mean": _means(group.clients),
        POOLED: metrics_to_json(group.pooled),
        "clients": [
            {
                "client": client,
                "global": None if one.common is None else metrics_to_json(one.common),
                "local": metrics_to_json(one.own),
            }
            for client, one in group.clients.items()
        ],
    }


def _without_matrices(record: Record) -> Record:
    """Return a committee's figures alone: its matrices would double the file."""
    for entry in (record[POOLED], *(one[face] for one in record["clients"] for face in FACES if one[face] is not None)):
        del entry["confusion"]
    return record


def _means(clients: Mapping[int, ClientMetrics]) -> Record:
    measured: dict[str, list[ClassificationMetrics]] = {
        "global": [one.common for one in clients.values() if one.common is not None],
        "local": [one.own for one in clients.values()],
    }
    return {
        face: {name: estimate_to_json(estimate) for name, estimate in mean_estimates(own).items()}
        for face, own in measured.items()
        if own
    }


def _digest(record: Mapping[str, Any], *, clients: int) -> Record:
    """Return the means with every client's value, None of one that attacks or has too few samples, and the pooled."""
    mean, by_client = record["mean"], {one["client"]: one for one in record["clients"]}
    faces = {
        face: {
            name: {
                **mean[face][name],
                "per_client": [_value_of(by_client.get(client), face, name) for client in range(clients)],
            }
            for name in METRIC_NAMES
        }
        for face in FACES
        if face in mean
    }
    return {**faces, POOLED: record[POOLED]["figures"]}


def _value_of(entry: Mapping[str, Any] | None, face: str, name: str) -> float | None:
    if entry is None or entry[face] is None:
        return None
    value: float | None = entry[face]["figures"][name]["value"]
    return value
