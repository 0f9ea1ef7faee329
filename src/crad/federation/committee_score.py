"""All members' models as one: how well they do together on what each of them was tested on.

Beyond the paper. Every client holds the others' snapshots; combined at prediction time by a rule they are a committee.
Its accuracy stands beside the students' own in every record. Every client asks a committee of its own: the members are
the same, and weighed by what this client counted of them on its validation half (`committee_evidence`). Nothing is run
twice: the members' logits are those of their tests, on the common test images and on the test halves of all clients.

Shapes: K members, B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import torch
from torch import Tensor

from crad.aggregation import RULES, Rule, TeacherStats, resolve_rule
from crad.aggregation.committee_rule import CommitteeRule, make_committee_rule
from crad.config import EvidenceSource, Recipe, TeacherPrior
from crad.federation.class_statistics import class_statistics, stack_statistics
from crad.federation.committee_evidence import evidence_of
from crad.federation.context import RunContext
from crad.federation.peer import GLOBAL, LOCAL, training_indices
from crad.federation.roster import PeerSlot, Roster
from crad.federation.tasks import load_tensors
from crad.training.evaluation import ClassScore
from crad.training.losses import log_shares

BLOCK_BYTES = 64 * 2**20  # of what all members say, combined at once


@dataclass(frozen=True)
class CommitteeScore:
    """How the committees do: on the common test images without a prior, for every client with its own class shares."""

    rule: str
    teacher_prior: TeacherPrior
    evidence: EvidenceSource
    members: tuple[int, ...]
    overall: ClassScore | None  # summed over the committees that count; None where there are no common test images
    local: tuple[ClassScore, ...]  # by client
    askers: tuple[int, ...] = ()  # whose committees count: the clients that do not attack
    overall_per_client: tuple[ClassScore, ...] = ()  # by client, where their committees differ
    left_out: Mapping[int, str] = field(default_factory=dict)
    study: Mapping[str, Mapping[TeacherPrior, CommitteeScore]] = field(default_factory=dict)  # under every rule

    @property
    def counted_local(self) -> tuple[ClassScore, ...]:
        """Return the local scores of the committees that count."""
        return tuple(self.local[client] for client in self.askers if self.local)


def has_committee(roster: Roster) -> bool:
    """Tell whether this run measures its committee: if it shall, and all the models are in its hands."""
    members = [slot for slot in roster if slot.member.clients]
    return roster.context.experiment.committee and len(members) > 1 and roster.here >= {one.index for one in members}


def members_of(roster: Roster) -> list[PeerSlot]:
    """Return whose models are in the committee: of everybody who has learned something by now."""
    return [slot for slot in roster if slot.member.clients and slot.state is not None]


def is_heard(roster: Roster, slot: PeerSlot) -> bool:
    """Tell whether everything is there that a committee needs of a member's present model."""
    is_counted = roster.context.experiment.committee_evidence == "reported" or slot.measured.tallies is not None
    return is_counted and roster.logits_of(slot).exists()


def prior_of_members(recipe: Recipe) -> TeacherPrior:
    """Return what is done with a member's class shares: taken out once, which the balanced loss has done already."""
    return "remove" if recipe.local_loss == "plain" else "keep"


def score_committee(roster: Roster, *, round_index: int) -> CommitteeScore:
    """Combine what the members said in their newest tests, and count the hits."""
    context, settings = roster.context, roster.context.experiment
    rule, prior = resolve_rule(settings.committee_rule), prior_of_members(context.recipe)
    slots = members_of(roster)
    if all(slot.measured.plain is None for slot in slots):
        prior = "remove"  # nobody has a second face: experts trained with the plain loss, whatever their students' is
    logits = {slot.index: load_tensors(roster.logits_of(slot)) for slot in slots}
    sound = [slot for slot in slots if all(bool(part.isfinite().all()) for part in logits[slot.index].values())]
    left_out = {
        slot.index: f"had learned nothing by round {round_index}"
        if slot not in slots
        else "gives non-finite predictions"
        for slot in roster
        if slot.member.clients and slot not in sound
    }
    if not sound:
        return CommitteeScore(
            settings.committee_rule, prior, settings.committee_evidence, (), None, (), left_out=left_out
        )
    said = [logits[slot.index] for slot in sound]

    def asked(name: str, rule: Rule, prior: TeacherPrior) -> CommitteeScore:
        evidence = ClientEvidence(context, slots, rule, prior)
        return evidence.score(name, said, sound)

    study = {
        name: {prior: asked(name, one, prior) for prior in get_args(TeacherPrior)}
        for name, one in (RULES.items() if settings.committee_study else ())
    }
    return replace(asked(settings.committee_rule, rule, prior), left_out=left_out, study=study)


class ClientEvidence:
    """What every client knows of the members, and the committee that it asks."""

    def __init__(self, context: RunContext, slots: Sequence[PeerSlot], rule: Rule, prior: TeacherPrior) -> None:
        """`slots`: everybody who published, also who cannot be heard: what is usual follows from all."""
        self._context, self._slots, self._rule, self._prior = context, slots, rule, prior
        self.source: EvidenceSource = context.experiment.committee_evidence if rule.uses_statistics else "reported"
        published = [
            class_statistics(context, slot.index, slot.measured, with_cross_entropy=rule.needs_cross_entropy)
            for slot in slots
        ]
        self._published = stack_statistics(published)

    def score(self, name: str, said: Sequence[Mapping[str, Tensor]], sound: Sequence[PeerSlot]) -> CommitteeScore:
        """Count the hits of every client's committee of the sound members, by what each of these said."""
        data, attackers = self._context.data, self._context.adversary.members
        rules = self._rules([self._slots.index(slot) for slot in sound])
        askers = [client for client in range(len(data.shards)) if client not in attackers]
        overall = _score_all(rules, [one[GLOBAL] for one in said], data.global_test.labels.cpu())
        counted = [overall[client] for client in askers] if len(rules) > 1 else overall
        return CommitteeScore(
            rule=name,
            teacher_prior=self._prior,
            evidence=self._context.experiment.committee_evidence,
            members=tuple(slot.index for slot in sound),
            overall=_sum_scores(counted) if len(data.global_test) else None,
            overall_per_client=tuple(overall) if len(data.global_test) and len(rules) > 1 else (),
            local=tuple(self._local_scores(rules, [one[LOCAL] for one in said])),
            askers=tuple(askers),
        )

    def _rules(self, heard: Sequence[int]) -> list[CommitteeRule]:
        """Return how each client's committee of the members at these places is combined; one if all are the same."""
        if self.source == "reported":
            return [self._committee_rule(self._published).select(heard)]
        clients = range(len(self._context.data.shards))
        return [self._committee_rule(self._known_to(client)).select(heard) for client in clients]

    def _known_to(self, client: int) -> TeacherStats:
        tallies = [slot.measured.tallies[client] for slot in self._slots if slot.measured.tallies is not None]
        return evidence_of(
            self._published,
            tallies,
            samples_C=self._context.data.validation_counts(client),
            teacher_prior=self._prior,
            source=self.source,
        )

    def _committee_rule(self, stats: TeacherStats) -> CommitteeRule:
        settings = self._context.experiment
        return make_committee_rule(
            self._rule,
            stats,
            teacher_prior=self._prior,
            temperature=settings.temperature,
            min_support=settings.min_support,
            epsilon=settings.epsilon,
            unsupported=settings.unsupported,
            evidence=settings.committee_evidence,
            published_KC=self._published.counts_KC,
        )

    def _local_scores(self, rules: Sequence[CommitteeRule], said: Sequence[Tensor]) -> list[ClassScore]:
        """Score every client's committee on that client's test half, under its own class shares."""
        data, start, scores = self._context.data, 0, []
        for client, shard in enumerate(data.shards):
            part = slice(start, start := start + len(shard.test))
            own = torch.from_numpy(data.dataset.train_labels[training_indices(self._context, [client])])
            prior_C = log_shares(own, num_classes=data.num_classes)
            rule, labels_B = rules[client % len(rules)], data.local_tests.labels[part].cpu()
            scores += _score_all([rule], [one[part] for one in said], labels_B, log_prior_C=prior_C)
        return scores


def _score_all(
    rules: Sequence[CommitteeRule], said: Sequence[Tensor], labels_B: Tensor, *, log_prior_C: Tensor | None = None
) -> list[ClassScore]:
    """Count the hits per class of committees of the same members, block by block; these are understood once for all."""
    classes = rules[0].num_classes
    tallies = [_HitTally(classes) for _ in rules]
    step = max(1, BLOCK_BYTES // (4 * len(said) * classes))
    for start in range(0, len(labels_B), step):
        labels, q_KBC = labels_B[start : start + step], torch.stack([one[start : start + step] for one in said])
        q_KBC = rules[0].heard(q_KBC)
        for tally, rule in zip(tallies, rules, strict=True):
            log_target_BC = rule.combined(q_KBC).log()
            tally.add(log_target_BC if log_prior_C is None else log_target_BC + log_prior_C, labels)
    counts = tuple(torch.bincount(labels_B, minlength=classes).tolist())
    return [ClassScore(counts, tuple(one.hits.tolist()), tuple(one.losses.tolist())) for one in tallies]


class _HitTally:
    """Hits and cross-entropies of a committee per class so far."""

    def __init__(self, classes: int) -> None:
        self.hits, self.losses = torch.zeros(classes, dtype=torch.int64), torch.zeros(classes, dtype=torch.float64)

    def add(self, log_target_BC: Tensor, labels_B: Tensor) -> None:
        self.hits += torch.bincount(labels_B[log_target_BC.argmax(dim=1) == labels_B], minlength=len(self.hits))
        misses_B = -torch.log_softmax(log_target_BC, dim=1).gather(1, labels_B[:, None])[:, 0]
        self.losses.index_add_(0, labels_B, misses_B.double().clamp(max=1e9))


def _sum_scores(scores: Sequence[ClassScore]) -> ClassScore:
    """Return the hits of several committees on the same images together: their accuracy is the mean of theirs."""
    columns = ([score.counts for score in scores], [score.hits for score in scores])
    counts, hits = (tuple(map(sum, zip(*column, strict=True))) for column in columns)
    losses = tuple(map(sum, zip(*(score.cross_entropy_sums for score in scores), strict=True)))
    return ClassScore(counts, hits, losses)
