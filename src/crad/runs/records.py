"""One round as a plain dictionary: everything a curve, table or chart needs without the models.

Accuracies are in percent. What depends on the clock or the machine stands under `timing` and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from crad.data.dataset import Dataset
from crad.federation.attacks import draw_attackers
from crad.federation.federated_data import FederatedData
from crad.federation.method import Learned
from crad.federation.peer import Evaluation
from crad.federation.roster import PeerSlot, Roster
from crad.federation.rounds import Round
from crad.training.evaluation import ClassScore

Record = dict[str, Any]


def partition_record(world: FederatedData) -> Record:
    """Who holds what, and which data it was: `partition.json`."""
    return {
        "class_names": list(world.dataset.class_names),
        "counts": world.shard_counts().tolist(),
        "train": [len(shard.train) for shard in world.shards],
        "validation": [len(shard.validation) for shard in world.shards],
        "test": [len(shard.test) for shard in world.shards],
        "proxy_size": len(world.proxy),
        "train_images": len(world.dataset.train_labels),
        "global_test_size": len(world.dataset.test_labels),
        "data_sha256": _fingerprint(world.dataset),
    }


def round_record(done: Round, roster: Roster) -> Record:
    """The line of `rounds.jsonl` for a finished round.

    `clients` lists those whose figures are new: in the first round everybody, later those that took part or were
    tested. The others stand as in their last entry (`crad.runs.selection.clients_at`); all count in the means.
    """
    measured, attackers = set(done.measured), draw_attackers(roster.world.experiment)
    clients = []
    for place in (place for place in roster.own() if place.index in measured):
        for entry in client_records(place, done.learned.get(place.index), is_attacker=place.index in attackers):
            clients.append({**entry, **_bytes_of(done, place.index)})
    standings = [place.measured for place in roster.own()]
    local = [score for standing in standings for score in standing.local or ()]
    overall = [standing.overall for standing in standings for _ in standing.validation if standing.overall]
    helpers = [place for place in roster if not place.member.clients]
    return {
        "round": done.index,
        "active": list(done.active),
        "missing": {str(index): absent for index, absent in done.missing.items()},
        "validation_accuracy": _mean([score for standing in standings for score in standing.validation]),
        "local_accuracy": _mean(local) if done.is_tested else None,
        "global_accuracy": _mean_or_none(overall) if done.is_tested else None,
        "payload_bytes": done.payload_bytes,
        "published_bytes": sum(done.traffic.published[index] for index in done.active),
        **_variant_means(standings, is_tested=done.is_tested),
        "clients": clients,
        **({"helpers": [_helper_record(place, done) for place in helpers]} if helpers else {}),
        "timing": {"seconds": done.seconds, "peak_memory_bytes": done.peak_memory_bytes},
    }


def _bytes_of(done: Round, index: int) -> Record:
    traffic = done.traffic
    own = {"sent_bytes": traffic.sent[index], "received_bytes": traffic.received[index]}
    helped = traffic.helper_sent[index], traffic.helper_received[index]
    return own | ({"helper_sent_bytes": helped[0], "helper_received_bytes": helped[1]} if any(helped) else {})


def _helper_record(place: PeerSlot, done: Round) -> Record:
    """A member without data: what it reports and what it sent and received."""
    learned = done.learned.get(place.index, Learned())
    return {
        "member": place.index,
        "architecture": place.member.architecture.id,
        "losses": learned.losses,
        "notes": learned.notes,
        "sent_bytes": done.traffic.helper_sent[place.index],
        "received_bytes": done.traffic.helper_received[place.index],
    }


def _variant_means(standings: Sequence[Evaluation], *, is_tested: bool) -> Record:
    """Means of the other weights that clients keep; who keeps none yet counts with its model."""
    names = sorted({name for standing in standings for name in standing.variants})
    means = {}
    for name in names:
        kept = [standing.variants.get(name, standing) for standing in standings]
        means[name] = {
            "validation_accuracy": _mean([score for one in kept for score in one.validation]),
            "local_accuracy": _mean([score for one in kept for score in one.local or ()]) if is_tested else None,
            "global_accuracy": _mean_or_none([one.overall for one in kept if one.overall]) if is_tested else None,
        }
    return {"variants": means} if means else {}


def client_records(place: PeerSlot, learned: Learned | None, *, is_attacker: bool = False) -> list[Record]:
    """One entry per client behind a peer: accuracies, hits per class, losses, whom it trusted."""
    return [
        _client_record(place, client, part, learned, is_attacker=is_attacker)
        for part, client in enumerate(place.member.clients)
    ]


def _mean(scores: Sequence[ClassScore]) -> float:
    return sum(score.accuracy for score in scores) / len(scores)


def _mean_or_none(scores: Sequence[ClassScore]) -> float | None:
    return _mean(scores) if scores else None  # an organisation of its own has no common test images


def _client_record(place: PeerSlot, client: int, part: int, learned: Learned | None, *, is_attacker: bool) -> Record:
    standing = place.measured
    local = None if standing.local is None else standing.local[part]
    return {
        "client": client,
        **({"is_attacker": True} if is_attacker else {}),
        "architecture": place.member.architecture.id,
        "is_active": learned is not None,
        "validation_accuracy": standing.validation[part].accuracy,
        "local_accuracy": None if local is None else local.accuracy,
        "global_accuracy": None if standing.overall is None else standing.overall.accuracy,
        "validation": _hits(standing.validation[part]),
        "local": None if local is None else _hits(local),
        "global": None if standing.overall is None else _hits(standing.overall),
        **({} if standing.triggered is None else {"attack_success": standing.triggered.accuracy}),
        "losses": {} if learned is None else learned.losses,
        "trust": {} if learned is None else {str(teacher): row for teacher, row in learned.trust.items()},
        "notes": {} if learned is None else learned.notes,
        **({"variants": _variants(standing, part)} if standing.variants else {}),
    }


def _variants(standing: Evaluation, part: int) -> Record:
    return {
        name: {
            "validation_accuracy": one.validation[part].accuracy,
            "local_accuracy": None if one.local is None else one.local[part].accuracy,
            "global_accuracy": None if one.overall is None else one.overall.accuracy,
        }
        for name, one in standing.variants.items()
    }


def _hits(score: ClassScore) -> Record:
    return {"counts": list(score.counts), "hits": list(score.hits)}


def _fingerprint(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for array in (dataset.train_labels, dataset.train_images, dataset.test_labels, dataset.test_images):
        digest.update(str(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
