"""One round as a plain dictionary: everything a curve, table or chart needs without the models.

Accuracies are in percent. What depends on the clock or the machine stands under `timing` and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from crad.aggregation.committee_rule import ANSWER_TEMPERATURE
from crad.data.dataset import Dataset
from crad.data.federated_data import FederatedData
from crad.federation.committee_score import CommitteeScore, CommitteeStudy
from crad.federation.context import RunContext
from crad.federation.method import Learned
from crad.federation.peer import PeerSpec
from crad.federation.peer_evaluation import ClassScore, Evaluation, PrivateReleases
from crad.federation.roster import PeerSlot, Roster
from crad.federation.rounds import Round
from crad.models import file_sha256
from crad.privacy.accountant import PrivacyPlan

Record = dict[str, Any]
CLIPPED_STEPS = "clipped_steps"  # of a client in a round, its gradients counted
INPUT_SHIFT = "input_shift"  # how clients' samples differ; says nothing that the data's hash does not


def partition_record(data: FederatedData) -> Record:
    """Return who holds what, and which data it was: `partition.json`."""
    kind = data.dataset.kind_of_data
    return {
        "class_names": list(data.dataset.class_names),
        "counts": data.shard_counts().tolist(),
        "train": [len(shard.train) for shard in data.shards],
        "validation": [len(shard.validation) for shard in data.shards],
        "test": [len(shard.test) for shard in data.shards],
        "proxy_size": len(data.proxy),
        "train_images": len(data.dataset.train_labels),
        "global_test_size": len(data.dataset.test_labels),
        "data_sha256": data_fingerprint(data.dataset),
        **({} if kind.name == "image" else {"kind": kind.name, "samples": kind.words.several}),
        **({"sites": list(data.dataset.site_names), INPUT_SHIFT: data.input_shift()} if data.is_natural else {}),
    }


def weights_record(members: Iterable[PeerSpec]) -> Record:
    """Return who begins with which file of weights, by its fingerprint: `weights.json`; nothing where nobody does."""
    files = {str(one.index): one.architecture.weights for one in members if one.architecture.weights is not None}
    known = {file: file_sha256(file) for file in dict.fromkeys(files.values())}
    return {index: {"sha256": known[file]} for index, file in files.items()}


def privacy_record(plan: PrivacyPlan, private: PrivateReleases | None) -> Record:
    """Return what a client has spent so far, and on what; before it has trained, the counts alone.

    This is a simulation's account; a member's is `crad.site.privacy_account`.
    """
    steps, releases = (0, 0) if private is None else (private.steps, private.releases)
    return {
        "epsilon": plan.spent(steps=steps, releases=releases),
        "delta": plan.delta,
        "training_epsilon": plan.training_epsilon(steps),
        "statistics_epsilon": plan.statistics_epsilon(releases),
        "steps": steps,
        "releases": releases,
    }


def round_record(done: Round, roster: Roster) -> Record:
    """Return the line of `rounds.jsonl` for a finished round.

    `clients` lists those whose figures are new: in the first round everybody, later those that took part or were
    tested. The others stand as in their last entry (`crad.runs.selection.clients_at`); all count in the means.
    """
    measured, attackers = set(done.measured), roster.context.adversary.attackers
    clients, own = [], roster.own()
    plan = roster.context.privacy
    for place in (place for place in own if place.index in measured):
        spent = {} if plan is None else {"privacy": privacy_record(plan, place.measured.private)}
        for entry in client_records(place, done.learned.get(place.index), is_attacker=place.index in attackers):
            clients.append({**entry, **spent, **_bytes_of(done, place.index)})
    evaluations = [place.evaluation for place in own if place.evaluation is not None]
    local = [score for evaluation in evaluations for score in evaluation.local or ()]
    overall = [evaluation.overall for evaluation in evaluations for _ in evaluation.validation if evaluation.overall]
    helpers = [place for place in roster if not place.member.clients]
    return {
        "round": done.index,
        "active": list(done.active),
        **({"is_preparation": True} if done.is_preparation else {}),
        "missing": {str(index): absent for index, absent in done.missing.items()},
        "validation_accuracy": _mean([score for evaluation in evaluations for score in evaluation.validation]),
        "local_accuracy": _mean(local) if done.is_tested else None,
        "global_accuracy": _mean_or_none(overall) if done.is_tested else None,
        "payload_bytes": done.payload_bytes,
        "published_bytes": sum(done.traffic.published[index] for index in done.active),
        **(_others_accuracy(own, roster.context) if done.is_tested else {}),
        **_variant_means(evaluations, is_tested=done.is_tested),
        **({} if done.committee is None else {"committee": _committee_record(done.committee)}),
        "clients": clients,
        **({"helpers": [_helper_record(place, done) for place in helpers]} if helpers else {}),
        "timing": {
            "seconds": done.seconds,
            "peak_memory_bytes": done.memory.device_bytes,
            **({} if done.memory.host_bytes is None else {"peak_host_bytes": done.memory.host_bytes}),
        },
    }


def with_study(record: Record, study: CommitteeStudy) -> Record:
    """Return a round's record with the committee's accuracies under every rule, members' priors kept and removed."""
    figures = {
        name: {
            prior: {
                "global_accuracy": None if one.overall is None else one.overall.accuracy,
                "local_accuracy": _mean_or_none(one.counted_local),
            }
            for prior, one in priors.items()
        }
        for name, priors in study.items()
    }
    return {**record, "committee": {**record["committee"], "study": figures}}


def _others_accuracy(own: Sequence[PeerSlot], context: RunContext) -> Record:
    """Return how clients' models do on the validation halves of all others, on average; a simulation alone knows.

    By what was counted for the committee, without anybody's prior: it stands for global accuracy where one chooses, so
    that no test image is looked at. Of clients that do not attack; nothing where nothing was counted.
    """
    honest = [slot for slot in own if slot.member.clients and slot.index not in context.adversary.attackers]
    sizes = [len(shard.validation) for shard in context.data.shards]
    found = []
    for slot in honest:
        tallies = None if slot.evaluation is None else slot.evaluation.tallies
        others = [client for one in honest for client in one.member.clients if client not in slot.member.clients]
        samples = sum(sizes[client] for client in others)
        if tallies is None or not samples:
            return {}
        found.append(100.0 * sum(sum(tallies[client].hits) for client in others) / samples)
    return {"others_accuracy": sum(found) / len(found)} if found else {}


def _committee_record(committee: CommitteeScore) -> Record:
    """Return how all do together: on the common test images, and over the clients' own with each one's class shares.

    Means are over the committees of the clients that do not attack.
    """
    return {
        "rule": committee.rule,
        "teacher_prior": committee.teacher_prior,
        "evidence": committee.evidence,
        "answer_temperature": ANSWER_TEMPERATURE,
        "members": list(committee.members),
        **({"left_out": {str(one): why for one, why in committee.left_out.items()}} if committee.left_out else {}),
        "global_accuracy": None if committee.overall is None else committee.overall.accuracy,
        "local_accuracy": _mean_or_none(committee.counted_local),
        **_overall_per_client(committee),
        "local_accuracy_per_client": [score.accuracy for score in committee.local],
        "global": None if committee.overall is None else _hits(committee.overall),
    }


def _overall_per_client(committee: CommitteeScore) -> Record:
    """Return every client's committee on the common test images, where they differ."""
    scores = committee.overall_per_client
    return {"global_accuracy_per_client": [score.accuracy for score in scores]} if scores else {}


def _bytes_of(done: Round, index: int) -> Record:
    traffic = done.traffic
    own = {"sent_bytes": traffic.sent[index], "received_bytes": traffic.received[index]}
    helped = traffic.helper_sent[index], traffic.helper_received[index]
    return own | ({"helper_sent_bytes": helped[0], "helper_received_bytes": helped[1]} if any(helped) else {})


def _helper_record(place: PeerSlot, done: Round) -> Record:
    """Return a member without data: what it reports and what it sent and received."""
    learned = done.learned.get(place.index, Learned())
    return {
        "member": place.index,
        "architecture": place.member.architecture.id,
        "losses": learned.losses,
        "notes": learned.notes,
        "sent_bytes": done.traffic.helper_sent[place.index],
        "received_bytes": done.traffic.helper_received[place.index],
    }


def _variant_means(evaluations: Sequence[Evaluation], *, is_tested: bool) -> Record:
    """Means of the other weights that clients keep; who keeps none yet counts with its model."""
    names = sorted({name for evaluation in evaluations for name in evaluation.variants})
    means = {}
    for name in names:
        kept = [evaluation.variants.get(name, evaluation) for evaluation in evaluations]
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
    evaluation = place.evaluation
    assert evaluation is not None, "measured at the beginning"
    local = None if evaluation.local is None else evaluation.local[part]
    return {
        "client": client,
        **({"is_attacker": True} if is_attacker else {}),
        "architecture": place.member.architecture.id,
        "is_active": learned is not None,
        "validation_accuracy": evaluation.validation[part].accuracy,
        "local_accuracy": None if local is None else local.accuracy,
        "global_accuracy": None if evaluation.overall is None else evaluation.overall.accuracy,
        "validation": _hits(evaluation.validation[part]),
        "local": None if local is None else _hits(local),
        "global": None if evaluation.overall is None else _hits(evaluation.overall),
        **({} if evaluation.triggered is None else {"attack_success": evaluation.triggered.accuracy}),
        "losses": {} if learned is None else learned.losses,
        "trust": {} if learned is None else {str(teacher): row for teacher, row in learned.trust.items()},
        "notes": {} if learned is None else learned.notes,
        **({CLIPPED_STEPS: _clipped_steps(learned)} if learned is not None and learned.clipped else {}),
        **({"variants": _variants(evaluation, part)} if evaluation.variants else {}),
    }


def _clipped_steps(learned: Learned) -> Record:
    """Return how many steps were taken, and of how many the gradient was shortened, by what they are for."""
    return {purpose: {"steps": one.steps, "clipped": one.clipped} for purpose, one in learned.clipped.items()}


def _variants(evaluation: Evaluation, part: int) -> Record:
    return {
        name: {
            "validation_accuracy": one.validation[part].accuracy,
            "local_accuracy": None if one.local is None else one.local[part].accuracy,
            "global_accuracy": None if one.overall is None else one.overall.accuracy,
        }
        for name, one in evaluation.variants.items()
    }


def _hits(score: ClassScore) -> Record:
    return {"counts": list(score.counts), "hits": list(score.hits)}


def records_fingerprint(dataset: Dataset) -> str:
    """Return a hash of a data set's records in whatever order they stand: agreements draw parts in other orders."""
    pairs = zip(dataset.train_samples, dataset.train_labels, strict=True)
    each = (np.ascontiguousarray(sample).tobytes() + str(int(label)).encode() for sample, label in pairs)
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(one).digest() for one in each))).hexdigest()


def data_fingerprint(dataset: Dataset) -> str:
    """Return a hash of a data set's arrays, and of what else its kind knows: columns, sites, how words became ids."""
    digest = hashlib.sha256()
    arrays = [dataset.train_labels, dataset.train_samples, dataset.test_labels, dataset.test_samples]
    for array in [*arrays, *([] if dataset.train_sites is None else [dataset.train_sites])]:
        digest.update(str(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    if dataset.columns or dataset.site_names:
        digest.update(repr((dataset.columns, dataset.site_names)).encode())
    if dataset.details:
        digest.update(repr(sorted(dataset.details.items())).encode())
    if dataset.rate is not None:
        digest.update(str(dataset.rate).encode())
    return digest.hexdigest()
