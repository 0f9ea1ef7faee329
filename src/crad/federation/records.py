"""One round as a plain dictionary: everything a curve, table or chart needs without the models.

Accuracies are in percent. What depends on the clock or the machine stands under `timing` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.federation.method import Learned
from crad.federation.peer import Peer, Standing
from crad.federation.rounds import Round
from crad.learning.evaluation import ClassScore

Record = dict[str, Any]


def round_record(done: Round, peers: Sequence[Peer]) -> Record:
    """The line of `rounds.jsonl` for a finished round."""
    clients = [client for peer in peers for client in client_records(peer, done.learned.get(peer.index))]
    for client in clients:
        client["sent_bytes"] = done.sent_bytes.get(client["client"], 0)
        client["received_bytes"] = done.received_bytes.get(client["client"], 0)
    return {
        "round": done.index,
        "active": list(done.active),
        "missing": {str(index): absent for index, absent in done.missing.items()},
        "validation_accuracy": mean_of(clients, "validation_accuracy"),
        "local_accuracy": mean_of(clients, "local_accuracy") if done.is_tested else None,
        "global_accuracy": mean_of(clients, "global_accuracy") if done.is_tested else None,
        "payload_bytes": sum(done.sent_bytes.values()),
        "clients": clients,
        "timing": {"seconds": done.seconds, "peak_memory_bytes": done.peak_memory_bytes},
    }


def client_records(peer: Peer, learned: Learned | None) -> list[Record]:
    """One entry per client behind a peer: accuracies, hits per class, losses, whom it trusted."""
    standing = peer.standing
    return [_client_record(peer, client, place, standing, learned) for place, client in enumerate(peer.clients)]


def mean_of(clients: Sequence[Mapping[str, Any]], key: str) -> float:
    """Mean of one figure over all clients."""
    return float(sum(client[key] for client in clients) / len(clients))


def _client_record(peer: Peer, client: int, place: int, standing: Standing, learned: Learned | None) -> Record:
    local = None if standing.local is None else standing.local[place]
    return {
        "client": client,
        "architecture": peer.architecture.id,
        "is_active": learned is not None,
        "validation_accuracy": standing.validation[place].accuracy,
        "local_accuracy": None if local is None else local.accuracy,
        "global_accuracy": None if standing.overall is None else standing.overall.accuracy,
        "validation": _hits(standing.validation[place]),
        "local": None if local is None else _hits(local),
        "global": None if standing.overall is None else _hits(standing.overall),
        "losses": {} if learned is None else learned.losses,
        "trust": {} if learned is None else {str(teacher): row for teacher, row in learned.trust.items()},
        "notes": {} if learned is None else learned.notes,
    }


def _hits(score: ClassScore) -> Record:
    return {"counts": list(score.counts), "hits": list(score.hits)}
