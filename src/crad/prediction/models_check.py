"""`models.json` as it was read back, looked at before anything is made of it: one line says what is damaged."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from crad.data.columns import columns_from_json
from crad.data.kinds import KINDS
from crad.errors import RunError, printable
from crad.runs.records import Record


def check_record(record: object, *, where: Path, clients: int, indices: Collection[int]) -> Record:
    """Return `models.json` if everything that models and committees need is in it; `indices`: of known peers."""
    try:
        if not isinstance(record, dict):
            raise ValueError("it is no object")
        _check_form(record)
        peers = record["peers"]
        _expect(isinstance(peers, list) and all(isinstance(peer, dict) for peer in peers), "peers")
        for place, peer in enumerate(peers):
            _check_peer(peer, f"peers[{place}]", classes=len(record["classes"]), indices=indices)
        _check_clients(peers, clients)
    except KeyError as error:
        raise _damaged(where, f"it lacks {error}") from error
    except ValueError as error:
        raise _damaged(where, str(error)) from error
    return record


def _damaged(where: Path, what: str) -> RunError:
    return RunError(f"{where} is damaged: {printable(what)}; put the file back, or run it again with another output")


def _check_form(record: Mapping[str, Any]) -> None:
    classes, shape = record["classes"], record["input_shape"]
    _expect(isinstance(classes, list) and classes and all(isinstance(name, str) for name in classes), "classes")
    _expect(isinstance(shape, list) and shape and all(_is_whole(side) and side >= 1 for side in shape), "input_shape")
    _expect(record["pad_to"] is None or _is_whole(record["pad_to"]), "pad_to")
    for name in ("mean", "std"):
        _expect(isinstance(record[name], list) and all(_is_number(value) for value in record[name]), name)
    _expect(record.get("kind", "image") in list(KINDS), "kind")
    _expect(isinstance(record.get("details", {}), dict), "details")
    _expect(record.get("rate") is None or _is_whole(record["rate"]), "rate")
    try:
        columns_from_json(record.get("columns", ()))
        np.dtype(record.get("dtype"))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("columns or dtype is not what a run writes") from None


def _check_peer(peer: Mapping[str, Any], where: str, *, classes: int, indices: Collection[int]) -> None:
    _expect(_is_whole(peer["index"]) and peer["index"] in indices, f"{where}.index")
    clients, prior = peer["clients"], peer["log_prior"]
    _expect(isinstance(clients, list) and clients and all(_is_whole(client) for client in clients), f"{where}.clients")
    _expect(isinstance(peer["architecture"], str), f"{where}.architecture")
    _expect(isinstance(peer.get("weights"), str | None), f"{where}.weights")
    _expect(_is_whole(peer["draws_as"]), f"{where}.draws_as")
    is_prior = isinstance(prior, list) and len(prior) == classes and all(_is_number(value) for value in prior)
    _expect(prior is None or is_prior, f"{where}.log_prior")
    if "train_counts" in peer:  # runs of earlier versions do not have them, nor the next
        _expect(_are_counts(peer["train_counts"], classes), f"{where}.train_counts")
    if "validation_counts" in peer:
        held = peer["validation_counts"]
        is_complete = isinstance(held, list) and len(held) == len(clients)
        _expect(is_complete and all(_are_counts(one, classes) for one in held), f"{where}.validation_counts")


def _check_clients(peers: list[Record], clients: int) -> None:
    named = sorted(client for peer in peers for client in peer["clients"])
    if named != list(range(clients)):
        raise ValueError(f"its peers must hold the clients 0 to {clients - 1}, each once")


def _expect(is_so: object, what: str) -> None:
    if not is_so:
        raise ValueError(f"{what} is not what a run writes")


def _are_counts(values: object, classes: int) -> bool:
    return isinstance(values, list) and len(values) == classes and all(_is_whole(one) and one >= 0 for one in values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
