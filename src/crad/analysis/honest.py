"""Runs of one world under a simulated attack, with the figures of the clients that do not attack.

Training alone meets no attack; so that it can be held against those who do, its figures are of the same clients.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crad.analysis.comparison import METRICS, attackers_by_seed
from crad.analysis.groups import Methods, is_tested
from crad.runs.records import Record
from crad.runs.run_records import RunRecords
from crad.runs.selection import honest_clients_at, honest_selected_round
from crad.runs.summary import class_figures


def of_honest_clients(methods: Methods) -> Methods:
    """Return the runs with means, selected round and classes of the honest clients; as they are where nobody attacks.

    What every single client did stays in the records, the attackers' too.
    """
    attackers = attackers_by_seed(run.summary for runs in methods.values() for run in runs)
    return {
        name: [_of_honest(run, attackers.get(run.experiment.seed, frozenset())) for run in runs]
        for name, runs in methods.items()
    }


def _of_honest(run: RunRecords, attackers: Collection[int]) -> RunRecords:
    if not attackers:
        return run
    selected = honest_selected_round(run.rounds, attackers)
    clients = honest_clients_at(run.rounds, selected, attackers)
    changed = {
        "attackers": sorted(attackers),
        "best_round": selected,
        "per_class": _class_figures(run, clients),
    }
    rounds = [_honest_means(run, record, attackers) for record in run.rounds]
    return replace(run, summary={**run.summary, **changed}, rounds=rounds)


def _class_figures(run: RunRecords, clients: Sequence[Mapping[str, Any]]) -> list[Record]:
    """Return the honest clients' accuracies by class; unknown where a kept run has its hits of another round alone."""
    if all("global" in client for client in clients):
        return class_figures(clients, run.partition)
    return [{**row, "global_accuracy": None} for row in run.summary["per_class"]]


def _honest_means(run: RunRecords, record: Record, attackers: Collection[int]) -> Record:
    if not is_tested(record):
        return record
    clients = honest_clients_at(run.rounds, record["round"], attackers)
    return {**record, **{metric: statistics.fmean(client[metric] for client in clients) for metric in METRICS}}
