"""One round as a plain dictionary: everything a curve, table or chart needs without the models.

Accuracies are in percent. What depends on the clock or the machine stands under `timing` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crad.federation.method import Learned
from crad.federation.roster import Place, Roster
from crad.federation.rounds import Round
from crad.learning.evaluation import ClassScore

Record = dict[str, Any]


def round_record(done: Round, roster: Roster) -> Record:
    """The line of `rounds.jsonl` for a finished round.

    `clients` lists those whose figures are new: in the first round everybody, later those that took part or were
    tested. The others stand as in their last entry (`crad.results.selection.clients_at`); all count in the means.
    """
    measured = set(done.measured)
    clients = []
    for place in (place for place in roster if place.index in measured):
        for entry in client_records(place, done.learned.get(place.index)):
            sent, received = done.sent_bytes.get(place.index, 0), done.received_bytes.get(place.index, 0)
            clients.append({**entry, "sent_bytes": sent, "received_bytes": received})
    standings = [place.measured for place in roster]
    local = [score for standing in standings for score in standing.local or ()]
    overall = [standing.overall for standing in standings for _ in standing.validation if standing.overall]
    return {
        "round": done.index,
        "active": list(done.active),
        "missing": {str(index): absent for index, absent in done.missing.items()},
        "validation_accuracy": _mean([score for standing in standings for score in standing.validation]),
        "local_accuracy": _mean(local) if done.is_tested else None,
        "global_accuracy": _mean(overall) if done.is_tested else None,
        "payload_bytes": sum(done.sent_bytes.values()),
        "clients": clients,
        "timing": {"seconds": done.seconds, "peak_memory_bytes": done.peak_memory_bytes},
    }


def client_records(place: Place, learned: Learned | None) -> list[Record]:
    """One entry per client behind a peer: accuracies, hits per class, losses, whom it trusted."""
    return [_client_record(place, client, part, learned) for part, client in enumerate(place.member.clients)]


def _mean(scores: Sequence[ClassScore]) -> float:
    return sum(score.accuracy for score in scores) / len(scores)


def _client_record(place: Place, client: int, part: int, learned: Learned | None) -> Record:
    standing = place.measured
    local = None if standing.local is None else standing.local[part]
    return {
        "client": client,
        "architecture": place.member.architecture.id,
        "is_active": learned is not None,
        "validation_accuracy": standing.validation[part].accuracy,
        "local_accuracy": None if local is None else local.accuracy,
        "global_accuracy": None if standing.overall is None else standing.overall.accuracy,
        "validation": _hits(standing.validation[part]),
        "local": None if local is None else _hits(local),
        "global": None if standing.overall is None else _hits(standing.overall),
        "losses": {} if learned is None else learned.losses,
        "trust": {} if learned is None else {str(teacher): row for teacher, row in learned.trust.items()},
        "notes": {} if learned is None else learned.notes,
    }


def _hits(score: ClassScore) -> Record:
    return {"counts": list(score.counts), "hits": list(score.hits)}
