"""Which round is selected: the one with the highest mean local validation accuracy, the earliest on a tie.

It is one for all clients, and what is reported is of it. Under a simulated attack there are two: the one of all, and
the one that the honest clients select, of which their own figures are. Rounds that only prepare a method's models are
never selected, as long as there is another. JSON calls the selected round `best_round`.

And how every client stood there: a record lists only those whose figures were new.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def selected_round(rounds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the selected record among the rounds that were tested, None while there is none."""
    return max(_selectable(rounds), key=lambda record: (record["validation_accuracy"], -record["round"]), default=None)


def honest_selected_round(rounds: Sequence[Mapping[str, Any]], attackers: Collection[int]) -> int:
    """Return the round that the honest clients would select: an attacker's own validation says nothing to anybody."""
    selectable = {int(record["round"]) for record in _selectable(rounds)}
    newest: dict[int, float] = {}
    means: dict[int, float] = {}
    for record in rounds:
        newest |= {one["client"]: one["validation_accuracy"] for one in record["clients"]}
        if record["round"] in selectable:
            means[record["round"]] = statistics.fmean(newest[client] for client in newest if client not in attackers)
    return max(means, key=lambda index: (means[index], -index))


def _selectable(rounds: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    tested = [record for record in rounds if record["local_accuracy"] is not None]
    return [record for record in tested if not record.get("is_preparation")] or tested


def honest_clients_at(
    rounds: Sequence[Mapping[str, Any]], round_index: int, attackers: Collection[int]
) -> list[Mapping[str, Any]]:
    """As `clients_at`, without those that attack."""
    return [client for client in clients_at(rounds, round_index) if client["client"] not in attackers]


def clients_at(rounds: Sequence[Mapping[str, Any]], round_index: int) -> list[Mapping[str, Any]]:
    """Every client's newest entry up to a round, in their order."""
    newest: dict[int, Mapping[str, Any]] = {}
    for record in rounds:
        if record["round"] <= round_index:
            newest |= {client["client"]: client for client in record["clients"]}
    return [newest[client] for client in sorted(newest)]
