"""Which round is reported: one for all clients, the highest mean local validation accuracy, earliest on a tie.

And how every client stood there: a record lists only those whose figures were new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def best_round(rounds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The selected record among the rounds that were tested, None while there is none."""
    tested = [record for record in rounds if record["local_accuracy"] is not None]
    return max(tested, key=lambda record: (record["validation_accuracy"], -record["round"]), default=None)


def clients_at(rounds: Sequence[Mapping[str, Any]], round_index: int) -> list[Mapping[str, Any]]:
    """Every client's newest entry up to a round, in their order."""
    newest: dict[int, Mapping[str, Any]] = {}
    for record in rounds:
        if record["round"] <= round_index:
            newest |= {client["client"]: client for client in record["clients"]}
    return [newest[client] for client in sorted(newest)]
