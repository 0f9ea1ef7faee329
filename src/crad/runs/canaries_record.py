"""`canaries.json`: how far every canary of a privacy audit has moved its weight and the sums, and whether it was in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crad.federation.roster import Roster
from crad.federation.tasks import load_tensors
from crad.runs.records import Record
from crad.training.canaries import COINS, SCORES, STEP_SCORES

CANARIES_FILE = "canaries.json"
SCHEMA = 1


def canaries_record(roster: Roster) -> Record:
    """Return everybody's scores and coins after the last round, from the resting states; who never trained has none."""
    clients = []
    for slot in roster.own():
        tensors = {} if slot.state is None else load_tensors(slot.state)
        if f"memory.{SCORES}" in tensors:
            scores, steps, coins = (tensors[f"memory.{name}"].tolist() for name in (SCORES, STEP_SCORES, COINS))
            included = [bool(one) for one in coins]
            clients.append({"client": slot.index, "scores": scores, "step_scores": steps, "is_included": included})
    return {"schema": SCHEMA, "clients": clients}


def canaries_text(record: Mapping[str, Any]) -> str:
    """Return the content of the file: without spaces, for there may be thousands."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
