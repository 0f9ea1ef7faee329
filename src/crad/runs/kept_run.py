"""A finished run in a few small files, so that its figures outlive the machine: what tables and curves need, no models.

experiment.toml, partition.json and summary.json as they are; of rounds.jsonl the curves of every client where it was
tested, and the hits per class behind the selected round. Such a folder is read like a run directory, and is done.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from crad.files import write_atomically
from crad.runs.directory import PARTITION_FILE, RunDirectory
from crad.runs.records import Record
from crad.runs.selection import clients_at

ROUND_FIELDS = (
    *("round", "active", "missing", "validation_accuracy", "local_accuracy", "global_accuracy", "payload_bytes"),
    *("published_bytes", "variants", "timing", "is_preparation"),
)
CLIENT_FIELDS = (
    *("client", "is_attacker", "architecture", "is_active", "validation_accuracy", "local_accuracy"),
    *("global_accuracy", "attack_success"),
)
HIT_FIELDS = ("validation", "local", "global")
DIGITS = 4  # of an accuracy in percent


def keep_run(run: Path, kept: Path) -> None:
    """Copy what is worth keeping of a finished run; its summary comes last, so that half a copy is no run."""
    source, target = RunDirectory(run), RunDirectory(kept)
    summary = source.summary()
    kept.mkdir(parents=True, exist_ok=True)
    write_atomically(target.experiment_file, source.experiment_file.read_bytes())
    write_atomically(kept / PARTITION_FILE, _compact(source.read_json(PARTITION_FILE)))
    rounds = slim_rounds(source.full_rounds(), selected=summary["best_round"])
    write_atomically(target.rounds_file, b"".join(map(_compact, rounds)))
    write_atomically(target.summary_file, source.summary_file.read_bytes())


def slim_rounds(rounds: Sequence[Record], *, selected: int) -> list[Record]:
    """Return the records without losses, trust and notes: clients where a round was tested, hits where they count."""
    counted = {id(client) for client in clients_at(rounds, selected)}
    return [_slim(record, counted) for record in rounds]


def _slim(record: Record, counted: Collection[int]) -> Record:
    kept = {name: record[name] for name in ROUND_FIELDS if name in record}
    is_tested = record["local_accuracy"] is not None
    clients = [one for one in record["clients"] if is_tested or id(one) in counted]
    return {**kept, "clients": [_slim_client(one, with_hits=id(one) in counted) for one in clients]}


def _slim_client(client: Record, *, with_hits: bool) -> Record:
    fields = (*CLIENT_FIELDS, *HIT_FIELDS) if with_hits else CLIENT_FIELDS
    kept = {name: client[name] for name in fields if name in client}
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in kept.items()}


def _compact(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"
