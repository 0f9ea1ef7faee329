"""All members' models as one: how well they do together on what each of them was tested on.

Beyond the paper. Every client holds the others' snapshots; combined at prediction time by a rule they are a committee.
Its accuracy stands beside the students' own in every record. Nothing is run twice: the members' logits are those of
their tests, on the common test images and on the test halves of all clients.

Shapes: K members, B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import torch
from torch import Tensor

from crad.aggregation import RULES, Rule, resolve_rule
from crad.aggregation.committee_rule import CommitteeRule, make_committee_rule
from crad.config import Recipe, TeacherPrior
from crad.federation.class_statistics import class_statistics, stack_statistics
from crad.federation.context import RunContext
from crad.federation.peer import GLOBAL, LOCAL, training_indices
from crad.federation.roster import PeerSlot, Roster
from crad.federation.tasks import load_tensors
from crad.training.evaluation import ClassScore
from crad.training.losses import log_shares

BLOCK_BYTES = 64 * 2**20  # of what all members say, combined at once


@dataclass(frozen=True)
class CommitteeScore:
    """How the committee does: on the common test images without a prior, for every client with its own class shares."""

    rule: str
    teacher_prior: TeacherPrior
    members: tuple[int, ...]
    overall: ClassScore | None  # None where there are no common test images
    local: tuple[ClassScore, ...]  # by client
    left_out: Mapping[int, str] = field(default_factory=dict)
    study: Mapping[str, Mapping[TeacherPrior, CommitteeScore]] = field(default_factory=dict)  # under every rule


def has_committee(roster: Roster) -> bool:
    """Tell whether this run measures its committee: if it shall, and all the models are in its hands."""
    members = [slot for slot in roster if slot.member.clients]
    return roster.context.experiment.committee and len(members) > 1 and roster.here >= {one.index for one in members}


def prior_of_members(recipe: Recipe) -> TeacherPrior:
    """Return what is done with a member's class shares: taken out once, which the balanced loss has done already."""
    return "remove" if recipe.local_loss == "plain" else "keep"


def score_committee(roster: Roster) -> CommitteeScore:
    """Combine what the members said in their newest tests, and count the hits."""
    context = roster.context
    rule, prior = resolve_rule(context.experiment.committee_rule), prior_of_members(context.recipe)
    slots = [slot for slot in roster if slot.member.clients]
    if all(slot.measured.plain is None for slot in slots):
        prior = "remove"  # nobody has a second face: experts trained with the plain loss, whatever their students' is
    logits = {slot.index: load_tensors(roster.logits_of(slot)) for slot in slots}
    sound = [slot for slot in slots if all(bool(part.isfinite().all()) for part in logits[slot.index].values())]
    left_out = {slot.index: "gives non-finite predictions" for slot in slots if slot not in sound}
    if not sound:
        return CommitteeScore(context.experiment.committee_rule, prior, (), None, (), left_out)
    said = [logits[slot.index] for slot in sound]

    def asked(name: str, rule: Rule, prior: TeacherPrior) -> CommitteeScore:
        panel, test = _Panel(_committee_rule(context, rule, prior, sound)), context.data.global_test
        nothing_C = torch.zeros(context.data.num_classes)
        return CommitteeScore(
            rule=name,
            teacher_prior=prior,
            members=tuple(slot.index for slot in sound),
            overall=panel.score([one[GLOBAL] for one in said], test.labels.cpu(), nothing_C) if len(test) else None,
            local=tuple(_local_scores(context, panel, [one[LOCAL] for one in said])),
        )

    study = {
        name: {prior: asked(name, one, prior) for prior in get_args(TeacherPrior)}
        for name, one in (RULES.items() if context.experiment.committee_study else ())
    }
    return replace(asked(context.experiment.committee_rule, rule, prior), left_out=left_out, study=study)


def _committee_rule(context: RunContext, rule: Rule, prior: TeacherPrior, slots: Sequence[PeerSlot]) -> CommitteeRule:
    """Return how the members are combined, on the figures that they publish."""
    settings = context.experiment
    published = [
        class_statistics(context, slot.index, slot.measured, with_cross_entropy=rule.needs_cross_entropy)
        for slot in slots
    ]
    return make_committee_rule(
        rule,
        stack_statistics(published),
        teacher_prior=prior,
        temperature=settings.temperature,
        min_support=settings.min_support,
        epsilon=settings.epsilon,
        unsupported=settings.unsupported,
    )


def _local_scores(context: RunContext, panel: _Panel, said: Sequence[Tensor]) -> Iterator[ClassScore]:
    """Score the committee on every client's test half, under that client's own class shares."""
    data, start = context.data, 0
    for client, shard in enumerate(data.shards):
        part = slice(start, start := start + len(shard.test))
        own = torch.from_numpy(data.dataset.train_labels[training_indices(context, [client])])
        prior_C = log_shares(own, num_classes=data.num_classes)
        yield panel.score([one[part] for one in said], data.local_tests.labels[part].cpu(), prior_C)


@dataclass(frozen=True)
class _Panel:
    """Counts the hits of members who are combined by a rule."""

    rule: CommitteeRule

    def score(self, said: Sequence[Tensor], labels_B: Tensor, log_prior_C: Tensor) -> ClassScore:
        """Count the committee's hits per class, block by block."""
        classes = len(log_prior_C)
        hits, losses = torch.zeros(classes, dtype=torch.int64), torch.zeros(classes, dtype=torch.float64)
        step = max(1, BLOCK_BYTES // (4 * len(said) * classes))
        for start in range(0, len(labels_B), step):
            labels = labels_B[start : start + step]
            log_target_BC = (
                self.rule.traced(torch.stack([one[start : start + step] for one in said])).log() + log_prior_C
            )
            hits += torch.bincount(labels[log_target_BC.argmax(dim=1) == labels], minlength=classes)
            misses_B = -torch.log_softmax(log_target_BC, dim=1).gather(1, labels[:, None])[:, 0]
            losses.index_add_(0, labels, misses_B.double().clamp(max=1e9))
        counts = torch.bincount(labels_B, minlength=classes)
        return ClassScore(tuple(counts.tolist()), tuple(hits.tolist()), tuple(losses.tolist()))
