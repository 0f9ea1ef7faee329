"""The state of all peers after a round, on disk: `checkpoint/round-00012/`, complete or not there at all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from crad.errors import RunError
from crad.federation.files import flush_folder, write_flushed
from crad.federation.peer import Peer, Standing
from crad.learning.evaluation import ClassScore

SCHEMA = 1
_FOLDER = re.compile(r"round-(\d{5,})")


def save_checkpoint(
    folder: Path, *, round_index: int, peers: Sequence[Peer], changed: Collection[int], keep: Collection[int]
) -> None:
    """Write the round's state, then drop older rounds except those in `keep`.

    Peers that did not learn in this round share their file with the previous checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = latest_round(folder)
    writing = folder / ".writing"
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    try:
        for peer in peers:
            old = None if before is None else round_folder(folder, before) / _file_name(peer.index)
            _write_peer(peer, writing / _file_name(peer.index), old=None if peer.index in changed else old)
        state = {"schema": SCHEMA, "round": round_index, "peers": [_standing_to_json(peer) for peer in peers]}
        write_flushed(writing / "state.json", json.dumps(state).encode())
        flush_folder(writing)
        writing.rename(round_folder(folder, round_index))
        flush_folder(folder)
    except BaseException:
        shutil.rmtree(writing, ignore_errors=True)
        raise
    for old_round in saved_rounds(folder):
        if old_round != round_index and old_round not in keep:
            _remove(round_folder(folder, old_round))


def load_checkpoint(folder: Path, *, round_index: int, peers: Sequence[Peer]) -> None:
    """Put all peers back to where they were after a round."""
    place = round_folder(folder, round_index)
    try:
        state = json.loads((place / "state.json").read_text())
        for peer, entry in zip(peers, state["peers"], strict=True):
            tensors = safetensors.torch.load_file(place / _file_name(peer.index))
            peer.load_state(tensors, _standing_from_json(entry))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise RunError(f"checkpoint {place} cannot be read ({error}); remove it to go on from an older one") from error


def latest_round(folder: Path) -> int | None:
    """The newest complete round, None where there is none."""
    return max(saved_rounds(folder), default=None)


def saved_rounds(folder: Path) -> list[int]:
    """All complete rounds on disk."""
    if not folder.is_dir():
        return []
    return sorted(int(match[1]) for path in folder.iterdir() if (match := _FOLDER.fullmatch(path.name)))


def round_folder(folder: Path, round_index: int) -> Path:
    """Where a round's state lies."""
    return folder / f"round-{round_index:05d}"


def _file_name(peer: int) -> str:
    return f"peer-{peer:04d}.safetensors"


def _write_peer(peer: Peer, path: Path, *, old: Path | None) -> None:
    if old is not None and old.is_file():
        with suppress(OSError):  # a file system without hard links gets a copy below
            os.link(old, path)
            return
    write_flushed(path, safetensors.torch.save(peer.state()))


def _remove(folder: Path) -> None:
    # Renamed first, so that a kill in the middle leaves no half checkpoint under a valid name.
    doomed = folder.with_name(".removing")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _standing_to_json(peer: Peer) -> dict[str, Any]:
    return {"index": peer.index, "architecture": peer.architecture.id, "standing": asdict(peer.standing)}


def _standing_from_json(entry: dict[str, Any]) -> Standing:
    standing = entry["standing"]
    return Standing(
        validation=tuple(_score(score) for score in standing["validation"]),
        local=None if standing["local"] is None else tuple(_score(score) for score in standing["local"]),
        overall=None if standing["overall"] is None else _score(standing["overall"]),
    )


def _score(entry: dict[str, Any]) -> ClassScore:
    return ClassScore(
        counts=tuple(entry["counts"]),
        hits=tuple(entry["hits"]),
        cross_entropy_sums=tuple(entry["cross_entropy_sums"]),
    )
