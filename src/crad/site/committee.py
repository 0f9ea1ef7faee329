"""A member's committee: everybody's newest snapshot as one predictor, where the agreement lets them be kept.

What the others say of themselves counts as far as our own validation samples bear it out. The predictor itself is
`crad.prediction.committee`, the arithmetic of its rule `crad.aggregation.committee_rule`.

Shapes: K members, B images, C classes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from crad.aggregation import resolve_rule
from crad.aggregation.committee_rule import SMALLEST_PROBABILITY, temperature_refusal
from crad.aggregation.member_tally import MemberTally, count_member, evidence_of, said_tally
from crad.aggregation.verification import credibility
from crad.config import EvidenceSource, TeacherPrior
from crad.data.dataset import Images, Labels
from crad.errors import CradError, SnapshotError
from crad.federation.class_statistics import stack_statistics
from crad.federation.committee_score import prior_of_members
from crad.federation.message import SNAPSHOT
from crad.federation.peer import new_model, training_indices
from crad.federation.rounds import draw_active
from crad.federation.teachers import Snapshot, TeacherCache
from crad.federation.topology import RoundParticipants
from crad.models import Architecture
from crad.network.store.kept_snapshots import KeptSnapshots
from crad.prediction.committee import Committee, LeftOutError, MemberModels, assemble_committee, heard_member
from crad.prediction.committee_card import CommitteeMember, columns_of
from crad.prediction.export import export_model
from crad.prediction.model_card import make_card
from crad.prediction.trained_model import TorchPredictor
from crad.runs.client_metrics import own_metrics
from crad.runs.records import Record
from crad.site.local_peer import LocalPeer
from crad.site.state_folder import COMMITTEE
from crad.training.losses import log_count_shares
from crad.training.metrics import estimate_to_json

DISPROVED = 1e-3  # of its figures are believed: less is none


@dataclass(frozen=True)
class MemberCommittee:
    """Who answers, of which round each snapshot is, who is left out and why; no committee where nobody else is here.

    Left out of the committee is who cannot teach us, and who could but gave no model that answers.
    """

    committee: Committee | None
    rounds: Mapping[str, int]
    left_out: Mapping[str, str] = field(default_factory=dict)
    believed: Mapping[str, float] = field(default_factory=dict)  # how far, 0 to 1, what each says of itself


@dataclass(frozen=True)
class OwnEvidence:
    """The members with what we know of each, how far its own figures are believed, and who is disproved."""

    heard: list[CommitteeMember]
    believed: Mapping[int, float]  # 0 to 1, by client
    disproved: Mapping[int, str]  # by client, and why


@dataclass(frozen=True)
class LastExchange:
    """The last round in which models are exchanged under this agreement, and whose we are sent in it."""

    round_index: int
    senders: tuple[int, ...]


def last_exchange(part: LocalPeer) -> LastExchange | None:
    """Return when models are exchanged for the last time; None where the method exchanges none."""
    phase = next((one for one in part.method.phases if one.kind == SNAPSHOT and one.publish is not None), None)
    members = part.method.roster(part.context)
    if phase is None:
        return None
    for round_index in range(part.experiment.rounds, 0, -1):
        drawn = draw_active(len(members), part.experiment.active, part.experiment.seed, round_index)
        routes = phase.routes(RoundParticipants(part.context, tuple(members[one] for one in drawn), round_index))
        if any(routes.values()):
            return LastExchange(round_index, routes.get(part.number, ()))
    return None


def missing_snapshots(part: LocalPeer, kept: KeptSnapshots, exchange: LastExchange) -> list[int]:
    """Return whose snapshot of the last exchange could be here and is not."""
    names = {number: part.agreement.members[number].name for number in exchange.senders if number not in part.left_out}
    return [number for number, name in names.items() if kept.round_of(name) < exchange.round_index]


def build_committee(
    part: LocalPeer, kept: KeptSnapshots, *, proven: Collection[str] = (), refused: Mapping[str, str] | None = None
) -> MemberCommittee:
    """Make a committee of the snapshots that pass every check. One that does not leaves the others as they are.

    `proven` are members that signed two snapshots for one round; `refused` says what was refused of a member before.
    """
    reader, prior = SnapshotReader(part, kept, refused or {}), _prior(part)
    cache = MemberModels(reader.predictor)
    temperature = part.experiment.temperature
    names = [member.name for member in part.agreement.members]
    refusal = temperature_refusal(temperature)
    if refusal is not None:
        return MemberCommittee(None, {}, dict.fromkeys(names, f"nobody is asked: the agreed {refusal}"))
    rule, source = resolve_rule(part.experiment.committee_rule), part.experiment.committee_evidence
    needs_counts = source == "reported" and (rule.uses_statistics or prior == "remove")
    members: list[CommitteeMember] = []
    rounds: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for number, member in enumerate(part.agreement.members):
        try:
            if number in part.left_out:
                raise LeftOutError(part.left_out[number])
            if member.name in proven:
                raise LeftOutError("it signed two different snapshots for one round")
            snapshot = reader.snapshot(number)
            members.append(
                heard_member(number, snapshot.statistics, cache, needs_counts=needs_counts, temperature=temperature)
            )
            rounds[member.name] = snapshot.round_index
        except (LeftOutError, CradError, RuntimeError) as error:  # the last: of a network that is not ours
            left_out[member.name] = _reason(number, str(error))
    if all(one.client == part.number for one in members):
        return MemberCommittee(None, rounds, left_out)
    images, labels = _own_half(part, "validation")
    evidence = own_evidence(members, cache, images, labels, own=part.number, teacher_prior=prior, source=source)
    for number, reason in evidence.disproved.items():
        left_out[names[number]] = reason
        del rounds[names[number]]
    if all(one.client == part.number for one in evidence.heard):
        return MemberCommittee(None, rounds, left_out)
    committee = assemble_committee(
        evidence.heard,
        cache,
        experiment=part.experiment,
        rule=part.experiment.committee_rule,
        teacher_prior=prior,
        client=part.number,
        log_prior=_own_log_prior(part),
        evidence=source,
        left_out={part.agreement.number(name): f"{name}: {reason}" for name, reason in left_out.items()},
    )
    believed = {names[one.client]: evidence.believed[one.client] for one in evidence.heard}
    return MemberCommittee(committee, rounds, left_out, believed)


def own_evidence(
    members: Sequence[CommitteeMember],
    models: MemberModels,
    images: Images,
    labels: Labels,
    *,
    own: int,
    teacher_prior: TeacherPrior,
    source: EvidenceSource,
) -> OwnEvidence:
    """Judge the members on our own images, which nobody can forge; what a member says of itself is no proof.

    Who is disproved there and does no better than naming our commonest class is not heard. The others are weighed as in
    a simulation, by `source`.
    """
    labels_B = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    samples_C = torch.bincount(labels_B, minlength=len(members[0].statistics.counts)).tolist()
    tallies = {}
    for member in members:  # one in memory at a time
        logits_BC = models.get(member.client).logits(images)
        tallies[member.client] = count_member(logits_BC, labels_B, counts_C=member.statistics.counts)
    believed = dict(zip(tallies, _believed(members, tallies, samples_C), strict=True)) | {own: 1.0}
    disproved, guessed = {}, max(samples_C)
    for client, share in believed.items():
        hits = sum(tallies[client].hits)
        if share < DISPROVED and hits <= guessed:
            disproved[client] = (
                f"what it says of itself is not so: of our {len(labels_B)} validation samples it gets {hits} right, "
                f"naming the commonest class {guessed}"
            )
    heard = [member for member in members if member.client not in disproved]
    if source != "reported":
        stats = evidence_of(
            stack_statistics([member.statistics for member in heard]),
            [tallies[member.client] for member in heard],
            samples_C=samples_C,
            teacher_prior=teacher_prior,
            source=source,
        )
        heard = [replace(one, verified=known) for one, known in zip(heard, columns_of(stats), strict=True)]
    return OwnEvidence(heard, believed, disproved)


def _believed(
    members: Sequence[CommitteeMember], tallies: Mapping[int, MemberTally], samples_C: Sequence[int]
) -> list[float]:
    """Return how far what each member says of itself is borne out by our counts, 0 to 1."""
    published = stack_statistics([member.statistics for member in members])
    tally = said_tally([tallies[member.client] for member in members], samples_C=samples_C)
    shares: list[float] = credibility(published, tally).tolist()
    return shares


def write_committee(part: LocalPeer, made: MemberCommittee) -> Path | None:
    """Write it as one file for `crad predict` and `crad.load_model`; one of before goes where there is none now."""
    path = part.folder / COMMITTEE
    if made.committee is None:
        path.unlink(missing_ok=True)
        return None
    return export_model(made.committee, "safetensors", path)


def committee_record(part: LocalPeer, made: MemberCommittee, *, own_accuracy: float) -> Record:
    """Return what the participant's report says of it: percent of the own test half, ours and all of us together."""
    images, labels = _own_half(part, "test")
    accuracy, metrics = None, None
    if made.committee is not None and len(labels):
        said = made.committee.predict(images, face="local", as_index=True)
        accuracy = 100.0 * float(np.mean(said == labels))
        said_BC = torch.from_numpy(made.committee.predict_proba(images, face="local"))
        logits_BC = said_BC.clamp(min=SMALLEST_PROBABILITY).log()
        figures = own_metrics(part.context, part.number, logits_BC).figures
        metrics = {name: estimate_to_json(one) for name, one in figures.items()}
    committee = made.committee
    return {
        "is_allowed": True,
        "own_accuracy": own_accuracy,
        "accuracy": accuracy,
        "metrics": metrics,
        "test_samples": len(labels),
        "members": dict(made.rounds),
        "left_out": dict(made.left_out),
        "believed": {name: round(share, 4) for name, share in made.believed.items()},
        "rule": part.experiment.committee_rule,
        "teacher_prior": None if committee is None else committee.teacher_prior,
        "evidence": part.experiment.committee_evidence,
        "file": None if committee is None else COMMITTEE,
    }


class SnapshotReader:
    """Reads kept snapshots with the checks of a round: architecture, statistics, allowance, shapes, finite values."""

    def __init__(self, part: LocalPeer, kept: KeptSnapshots, refused: Mapping[str, str]) -> None:
        self._part, self._kept, self._refused = part, kept, refused
        self._teachers = TeacherCache(part.context)

    def snapshot(self, number: int) -> Snapshot:
        """Return a member's snapshot; SnapshotError says what is wrong with it."""
        name = self._part.agreement.members[number].name
        found = self._kept.find(name)
        if found is None:
            why = f", the last one was refused: {self._refused[name]}" if name in self._refused else ""
            raise SnapshotError(f"no snapshot of it is here{why}")
        return self._teachers.decode(found.message, sender=number, round_index=found.manifest.round_index)

    def predictor(self, number: int) -> TorchPredictor:
        """Return a member's network with its weights, ready to run."""
        part, snapshot = self._part, self.snapshot(number)
        module = new_model(part.context, Architecture.parse(snapshot.architecture), seed=0)
        module.load_state_dict(snapshot.tensors)
        origin = {
            "client": number,
            "round": snapshot.round_index,
            "federation": part.agreement.name,
            "members": [member.name for member in part.agreement.members],
        }
        card = make_card(part.context.data, architecture=snapshot.architecture, origin=origin)
        return TorchPredictor(module.cpu().requires_grad_(False), card)


def _own_half(part: LocalPeer, half: Literal["validation", "test"]) -> tuple[Images, Labels]:
    """Return raw images of our own that no model was trained on, and their classes."""
    dataset, where = part.context.data.dataset, getattr(part.context.data.shards[part.number], half)
    return dataset.train_images[where], dataset.train_labels[where]


def _prior(part: LocalPeer) -> TeacherPrior:
    """Return what is done with members' class shares: of experts that were trained with the plain loss they are in."""
    recipe = part.context.recipe
    is_plain = part.method.teachers == "experts" and recipe.teacher_prior == "remove"
    return "remove" if is_plain else prior_of_members(recipe)


def _own_log_prior(part: LocalPeer) -> tuple[float, ...]:
    labels = part.context.data.dataset.train_labels[training_indices(part.context, (part.number,))]
    counts_C = torch.from_numpy(np.bincount(labels, minlength=part.context.data.num_classes))
    return tuple(log_count_shares(counts_C).tolist())


def _reason(number: int, words: str) -> str:
    """Return the words of a simulation, where members have only numbers, as said of one member."""
    for opening in (f"peer {number} ", f"client {number} "):
        if words.startswith(opening):
            return f"it {words.removeprefix(opening)}"
    return words
