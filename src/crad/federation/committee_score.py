"""All members' models as one: how well they do together on what each of them was tested on.

Beyond the paper. Every client holds the others' snapshots; combined at prediction time by a rule they are a committee.
Its accuracy stands beside the students' own in every record. Every client asks a committee of its own: the members are
the same, and weighed by what this client counted of them on its validation half (`committee_evidence`). Nothing is run
twice: the members' logits are those of their tests, on the common test images and on the test halves of all clients.

Shapes: K members, B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import get_args

from torch import Tensor

from crad.aggregation import RULES, Rule
from crad.aggregation.committee_rule import (
    always_give_numbers,
    committee_logits,
    count_hits,
    count_hits_by_client,
    make_client_rules,
    temperature_refusal,
)
from crad.config import EvidenceSource, Recipe, TeacherPrior
from crad.federation.class_statistics import class_statistics, stack_statistics, sum_scores
from crad.federation.context import RunContext
from crad.federation.peer import GLOBAL, LOCAL
from crad.federation.peer_evaluation import ClassScore
from crad.federation.roster import PeerSlot, Roster
from crad.federation.tasks import load_tensors


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
    counted_local: tuple[ClassScore, ...] = ()  # the local scores of these
    overall_per_client: tuple[ClassScore, ...] = ()  # by client, where their committees differ
    left_out: Mapping[int, str] = field(default_factory=dict)  # clients that are not among the members, and why


CommitteeStudy = Mapping[str, Mapping[TeacherPrior, CommitteeScore]]  # by rule, by what is done with members' priors


@dataclass(frozen=True)
class CommitteePrediction:
    """What one client's committee says, as logits [B,C]."""

    client: int
    common_BC: Tensor | None  # on the common test samples; None where there are none
    own_BC: Tensor  # on the client's own test half, under its own class shares


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
    heard = _hear_members(roster)
    left_out = {
        slot.index: f"had learned nothing by round {round_index}"
        if slot not in heard.slots
        else (heard.refusal or "gives non-finite predictions")
        for slot in roster
        if slot.member.clients and slot not in heard.sound
    }
    if not heard.sound:
        return CommitteeScore(
            settings.committee_rule, heard.prior, settings.committee_evidence, (), None, (), left_out=left_out
        )

    committees = _Committees(context, heard.slots, heard.sound, context.committee_rule, heard.prior)
    return replace(committees.score(settings.committee_rule, heard.said), left_out=left_out)


def study_committee(roster: Roster) -> CommitteeStudy:
    """Combine what the members said in their newest tests by every rule, with their priors and without; dear."""
    heard = _hear_members(roster)
    if not heard.sound:
        return {}
    return {
        name: {
            prior: _Committees(roster.context, heard.slots, heard.sound, rule, prior).score(name, heard.said)
            for prior in get_args(TeacherPrior)
        }
        for name, rule in RULES.items()
    }


def committee_predictions(roster: Roster) -> Iterator[CommitteePrediction]:
    """Yield what the committee of every client that does not attack says, from what the members said in their tests."""
    context, heard = roster.context, _hear_members(roster)
    if heard.sound:
        committees = _Committees(context, heard.slots, heard.sound, context.committee_rule, heard.prior)
        yield from committees.predictions(heard.said)


@dataclass(frozen=True)
class _HeardMembers:
    """Who published, who of them can be heard, what these said, and what is done with their class shares."""

    slots: list[PeerSlot]
    sound: list[PeerSlot]
    said: list[Mapping[str, Tensor]]
    prior: TeacherPrior
    refusal: str | None = None  # why nobody is asked


def _hear_members(roster: Roster) -> _HeardMembers:
    prior = prior_of_members(roster.context.recipe)
    slots = members_of(roster)
    if all(slot.measured.plain is None for slot in slots):
        prior = "remove"  # nobody has a second face: experts trained with the plain loss, whatever their students' is
    temperature = roster.context.experiment.temperature
    refusal = temperature_refusal(temperature)
    if refusal is not None:
        return _HeardMembers(slots, [], [], prior, refusal)
    stored = {slot.index: load_tensors(roster.logits_of(slot)) for slot in slots}
    said = [{name: stored[slot.index][name] for name in (GLOBAL, LOCAL)} for slot in slots]
    are_heard = always_give_numbers(said, temperature=temperature)
    sound = list(compress(slots, are_heard))
    return _HeardMembers(slots, sound, list(compress(said, are_heard)), prior)


class _Committees:
    """Every client's committee under one rule: who is in it, what each asker knows of them, and how it does."""

    def __init__(
        self,
        context: RunContext,
        slots: Sequence[PeerSlot],
        sound: Sequence[PeerSlot],
        rule: Rule,
        prior: TeacherPrior,
    ) -> None:
        """`slots`: everybody who published; `sound`: those who can be heard."""
        self._context, self._sound, self._prior = context, sound, prior
        settings = context.experiment
        published = [
            class_statistics(context, slot.index, slot.measured, with_cross_entropy=rule.needs_cross_entropy)
            for slot in slots
        ]
        self._rules = make_client_rules(
            rule,
            stack_statistics(published),
            [slot.measured.tallies for slot in slots if slot.measured.tallies is not None],
            context.data.validation_counts(),
            members=[slots.index(slot) for slot in sound],
            evidence=settings.committee_evidence,
            teacher_prior=prior,
            temperature=settings.temperature,
            min_support=settings.min_support,
            epsilon=settings.epsilon,
            unsupported=settings.unsupported,
        )

    def score(self, name: str, said: Sequence[Mapping[str, Tensor]]) -> CommitteeScore:
        """Count the hits of every client's committee, by what the sound members said."""
        data, attackers = self._context.data, self._context.adversary.attackers
        askers = tuple(client for client in range(len(data.shards)) if client not in attackers)
        labels_B = data.global_test.labels.cpu()
        hits = count_hits(self._rules, [one[GLOBAL] for one in said], labels_B) if labels_B.numel() else []
        overall = [ClassScore(*one) for one in hits]
        counted = [overall[client % len(overall)] for client in askers] if overall else []
        local = self._local_scores([one[LOCAL] for one in said])
        return CommitteeScore(
            rule=name,
            teacher_prior=self._prior,
            evidence=self._context.experiment.committee_evidence,
            members=tuple(slot.index for slot in self._sound),
            # Their hits on the same images together: its accuracy is the mean of theirs.
            overall=sum_scores(counted, num_classes=data.num_classes) if overall else None,
            overall_per_client=tuple(overall) if len(overall) > 1 else (),
            local=tuple(local),
            askers=askers,
            counted_local=tuple(local[client] for client in askers),
        )

    def predictions(self, said: Sequence[Mapping[str, Tensor]]) -> Iterator[CommitteePrediction]:
        """Yield what every honest client's committee says on the common test samples and on the client's test half."""
        data, attackers, start = self._context.data, self._context.adversary.attackers, 0
        has_common, common_BC = bool(len(data.global_test.labels)), None
        for client, shard in enumerate(data.shards):
            part, rule = slice(start, start := start + len(shard.test)), self._rules[client % len(self._rules)]
            if client in attackers:
                continue
            if has_common and (common_BC is None or len(self._rules) > 1):  # one committee for all says the same
                common_BC = committee_logits(rule, [one[GLOBAL] for one in said])
            prior_C = self._context.client_log_priors[client]
            own_BC = committee_logits(rule, [one[LOCAL][part] for one in said], log_prior_C=prior_C)
            yield CommitteePrediction(client, common_BC, own_BC)

    def _local_scores(self, said: Sequence[Tensor]) -> list[ClassScore]:
        """Score every client's committee on that client's test half, under its own class shares."""
        data, priors_NC = self._context.data, self._context.client_log_priors
        sizes = [len(shard.test) for shard in data.shards]
        labels_B = data.held_out.labels.cpu()
        hits = count_hits_by_client(self._rules, said, labels_B, sizes=sizes, log_priors_NC=priors_NC)
        return [ClassScore(*one) for one in hits]
