"""The state of all peers after a round, on disk: complete or not there at all.

`checkpoint/round-00012.json` says how every peer stands and in which file of `checkpoint/states/` its tensors lie. A
state file is never changed, so a peer that did not learn is simply named again.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

from crad.errors import RunError
from crad.federation.peer_evaluation import Evaluation, evaluation_from_json
from crad.federation.roster import STATES, Roster
from crad.federation.tasks import load_tensors
from crad.files import flush_all, write_atomically

SCHEMA = 2
_FILE = re.compile(r"round-(\d{5,})\.json")


def save_checkpoint(roster: Roster, *, round_index: int, changed: Collection[int], keep: Collection[int]) -> None:
    """Write the round's state, then drop older rounds except those in `keep`."""
    peers = roster.to_json()
    flush_all([roster.states / one["state"] for one in peers if one["index"] in changed], folder=roster.states)
    content = {"schema": SCHEMA, "round": round_index, "peers": peers}
    write_atomically(round_file(roster.folder, round_index), json.dumps(content).encode())
    kept_states: set[Path] = set()
    for old_round in saved_rounds(roster.folder):
        if old_round == round_index:
            continue
        if old_round in keep:
            kept_states |= _states_of(roster, old_round)
        else:
            round_file(roster.folder, old_round).unlink()
    roster.forget_states(keep=kept_states)


def load_checkpoint(roster: Roster, *, round_index: int) -> None:
    """Put all places back to where they were after a round."""
    file = round_file(roster.folder, round_index)
    try:
        content = json.loads(file.read_text())
        if content["schema"] != SCHEMA:
            raise ValueError(f"it has schema {content['schema']}, this version reads {SCHEMA}")
        for place, entry in zip(roster.own(), content["peers"], strict=True):
            state = None if entry["state"] is None else roster.states / entry["state"]
            if state is not None:
                load_tensors(state)  # damaged or missing files are found now, not in the middle of a round
            roster.update(place.index, evaluation=evaluation_from_json(entry["standing"]), state=state)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, struct.error) as error:
        raise RunError(f"checkpoint {file} cannot be read ({error}); remove it to go on from an older one") from error


def states_at(folder: Path, round_index: int) -> dict[int, Path | None]:
    """Return where every peer's state after a round lies; None: it had not learned yet."""
    peers = _peers_at(folder, round_index)
    return {int(one["index"]): None if one["state"] is None else folder / STATES / one["state"] for one in peers}


def evaluations_at(folder: Path, round_index: int) -> dict[int, Evaluation]:
    """Return how every peer did after a round."""
    return {int(one["index"]): evaluation_from_json(one["standing"]) for one in _peers_at(folder, round_index)}


def latest_round(folder: Path) -> int | None:
    """Return the newest complete round, None where there is none."""
    return max(saved_rounds(folder), default=None)


def saved_rounds(folder: Path) -> list[int]:
    """All complete rounds on disk."""
    if not folder.is_dir():
        return []
    return sorted(int(match[1]) for path in folder.iterdir() if (match := _FILE.fullmatch(path.name)))


def round_file(folder: Path, round_index: int) -> Path:
    """Return what says where a round's states lie."""
    return folder / f"round-{round_index:05d}.json"


def _peers_at(folder: Path, round_index: int) -> list[dict[str, Any]]:
    file = round_file(folder, round_index)
    try:
        peers: list[dict[str, Any]] = json.loads(file.read_text())["peers"]
        if not all({"index", "state", "standing"} <= one.keys() for one in peers):
            raise ValueError("a peer without index, state or standing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"checkpoint {file} cannot be read ({error}), so the models of that round are gone") from error
    return peers


def _states_of(roster: Roster, round_index: int) -> set[Path]:
    try:
        content = json.loads(round_file(roster.folder, round_index).read_text())
        return {roster.states / entry["state"] for entry in content["peers"] if entry["state"] is not None}
    except (OSError, ValueError, KeyError, TypeError):  # damaged: nothing goes that it might have named
        return set(roster.states.iterdir())
