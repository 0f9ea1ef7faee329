"""Which round is reported: one for all clients, the highest mean local validation accuracy, earliest on a tie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def best_round(rounds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The selected record among the rounds that were tested, None while there is none."""
    tested = [record for record in rounds if record["global_accuracy"] is not None]
    return max(tested, key=lambda record: (record["validation_accuracy"], -record["round"]), default=None)
