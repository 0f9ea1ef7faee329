"""What several models say together of an input: their logits, combined by a rule, as class probabilities.

The same correct x keep x weigh that makes a student's target, at prediction time. Members are softened at the
temperature T to be combined, and what comes out is brought back to temperature 1 before anybody's prior is added: a
committee of one, its class shares kept, says what its model says. It can be traced, so that an exported graph holds the
rule too.

Shapes: K members, B samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any, get_args

import torch
from torch import Tensor

from crad.aggregation.combine import combine
from crad.aggregation.correction import remove_prior
from crad.aggregation.evidence import Evidence, check_evidence
from crad.aggregation.member_tally import MemberTally, evidence_of
from crad.aggregation.rules import RULES, Rule, resolve_rule
from crad.aggregation.statistics import ClassHits, TeacherStats
from crad.config import EvidenceSource, TeacherPrior, Unsupported
from crad.errors import AggregationError, ConfigError, shown, unknown_name

OWN_RULE = "a rule of your own"  # what one that was passed as an object is called
BLOCK_BYTES = 64 * 2**20  # of what all members say, combined at once
SMALLEST_PROBABILITY = 1e-30  # before a logarithm is taken
# Beyond them the numbers of a computer are too coarse for a committee of one to be its model.
LEAST_SOFTENED, MOST_SOFTENED = 0.25, 100.0  # temperatures
ANSWER_TEMPERATURE = 1.0  # of what a committee says; records without it are of versions that left it softened at T


@dataclass(frozen=True)
class CommitteeRule:
    """How members are combined: by which rule, on what evidence, at which temperature."""

    name: str  # in RULES, or what a rule of one's own is called
    rule: Rule
    stats: TeacherStats
    teacher_prior: TeacherPrior
    temperature: float
    min_support: float
    epsilon: float
    unsupported: Unsupported
    evidence: EvidenceSource  # what the statistics are
    published_KC: Tensor  # the samples that members say they hold: their class shares

    @property
    def num_classes(self) -> int:
        """Return C, the number of classes."""
        return self.stats.counts_KC.shape[1]

    def select(self, members: Sequence[int]) -> CommitteeRule:
        """Return the same rule for some of the members, by their places."""
        places = torch.tensor(members, dtype=torch.int64)
        return replace(self, stats=self.stats.select(places), published_KC=self.published_KC[places])

    def unsupported_classes(self) -> list[int]:
        """Return the classes for which no member has enough samples, where the rule looks at them."""
        if not self.rule.uses_statistics:
            return []
        is_supported_C = (self.stats.speaking_KC >= self.min_support).any(dim=0)
        return (~is_supported_C).nonzero().flatten().tolist()

    def probabilities(self, logits_KBC: Tensor, *, log_prior_C: Tensor | None = None) -> Tensor:
        """Return class probabilities [B,C] of what the members say, under the prior of whoever asks, if there is one.

        A member that gives no numbers on a sample is not heard there; a sample without any number is refused.
        """
        return faced(self.logits(logits_KBC), log_prior_C)

    def logits(self, logits_KBC: Tensor) -> Tensor:
        """Return the same before anybody's prior, as logits [B,C] at temperature 1."""
        q_KBC = self.heard(logits_KBC)
        is_sound_KB = gives_numbers(logits_KBC, temperature=self.temperature)
        if is_sound_KB.all():
            return self.combined(q_KBC)
        silent = (~is_sound_KB.any(dim=0)).nonzero().flatten().tolist()
        if silent:
            raise AggregationError(f"no member gives finite numbers on input {silent[0]}: look at that image")
        result_BC = logits_KBC.new_zeros(logits_KBC.shape[1:])
        sound_of = [tuple(column) for column in is_sound_KB.T.tolist()]
        for pattern in set(sound_of):
            heard = [k for k, is_sound in enumerate(pattern) if is_sound]
            where_B = torch.tensor([one == pattern for one in sound_of])
            result_BC[where_B] = self.select(heard).combined(q_KBC[heard][:, where_B])
        return result_BC

    def traced(self, logits_KBC: Tensor) -> Tensor:
        """Return the same of finite logits by tensor operations alone, which a graph can hold."""
        return self.combined(self.heard(logits_KBC))

    def heard(self, logits_KBC: Tensor) -> Tensor:
        """Return what each member is understood to say, [K,B,C]: the same whoever asks."""
        q_KBC = torch.softmax(logits_KBC / self.temperature, dim=2)
        if self.teacher_prior == "keep":
            return q_KBC
        is_bounded = self.evidence != "reported"
        return remove_prior(q_KBC, self.published_KC, temperature=self.temperature, is_bounded=is_bounded)

    def combined(self, q_KBC: Tensor) -> Tensor:
        """Return what the rule makes of it on this evidence, as logits [B,C] brought back to temperature 1."""
        evidence = Evidence(q_KBC, self.stats, self.min_support, self.epsilon)
        target_BC = combine(evidence, self.rule, unsupported=self.unsupported).target_BC
        return self.temperature * target_BC.clamp(min=SMALLEST_PROBABILITY).log()


def gives_numbers(logits_BC: Tensor, *, temperature: float) -> Tensor:
    """Return on which samples a model says something, [B] or [K,B]: finite logits that stay so when softened."""
    is_finite_B = logits_BC.isfinite().all(dim=-1)
    return is_finite_B & torch.softmax(logits_BC / temperature, dim=-1).isfinite().all(dim=-1)


def always_give_numbers(said: Sequence[Mapping[str, Tensor]], *, temperature: float) -> list[bool]:
    """Return which of the members say something of every sample, by what each of them said of several sets."""
    return [all(bool(gives_numbers(part, temperature=temperature).all()) for part in one.values()) for one in said]


def temperature_refusal(temperature: object) -> str | None:
    """Return why no committee is softened at a temperature; None: it may be."""
    is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
    value: Any = temperature if is_number else math.nan
    if LEAST_SOFTENED <= value <= MOST_SOFTENED:
        return None
    return (
        f"temperature is {shown(temperature)}: a committee's members are softened at {LEAST_SOFTENED:g} to "
        f"{MOST_SOFTENED:g}"
    )


def faced(logits_BC: Tensor, log_prior_C: Tensor | None) -> Tensor:
    """Return probabilities for inputs in which classes are as frequent as these logarithms say; None: all alike."""
    return torch.softmax(logits_BC if log_prior_C is None else logits_BC + log_prior_C, dim=1)


def make_committee_rule(
    rule: str | Rule,
    stats: TeacherStats,
    *,
    teacher_prior: TeacherPrior,
    temperature: float,
    min_support: float,
    epsilon: float,
    unsupported: Unsupported,
    evidence: EvidenceSource = "reported",
    published_KC: Tensor | None = None,
) -> CommitteeRule:
    """Check everything before any member has to speak; counts below zero, which noise can make, count as none.

    `evidence` says what the statistics are; where they are not the published ones, `published_KC` are the counts of
    those, which tell the members' class shares.
    """
    if evidence not in get_args(EvidenceSource):
        raise unknown_name("value of 'evidence'", evidence, get_args(EvidenceSource))
    if teacher_prior not in get_args(TeacherPrior):
        raise unknown_name("value of 'teacher_prior'", teacher_prior, get_args(TeacherPrior))
    if unsupported not in get_args(Unsupported):
        raise unknown_name("value of 'unsupported'", unsupported, get_args(Unsupported))
    refusal = temperature_refusal(temperature)
    if refusal is not None:
        raise ConfigError(f"{refusal}; say another one")
    chosen = resolve_rule(rule)
    size = stats.counts_KC.shape
    anything = torch.full((size[0], 1, size[1]), 1 / size[1])
    checked = check_evidence(
        anything,
        replace(stats, counts_KC=stats.counts_KC.clamp(min=0)),
        min_support=min_support,
        epsilon=epsilon,
    )
    made = CommitteeRule(
        name=rule if isinstance(rule, str) else _name_of(rule),
        rule=chosen,
        stats=checked.stats,
        teacher_prior=teacher_prior,
        temperature=float(temperature),
        min_support=min_support,
        epsilon=epsilon,
        unsupported=unsupported,
        evidence=evidence,
        published_KC=checked.stats.counts_KC if published_KC is None else published_KC.clamp(min=0),
    )
    made.traced(torch.zeros_like(anything))  # a rule that lacks something says so now
    return made


def make_client_rules(
    rule: str | Rule,
    published: TeacherStats,
    tallies: Sequence[Sequence[MemberTally]],
    samples_NC: Sequence[Sequence[int]],
    *,
    members: Sequence[int],
    evidence: EvidenceSource,
    **settings: Any,  # noqa: ANN401  # those of make_committee_rule
) -> list[CommitteeRule]:
    """Return how each client's committee of the members at these places is combined; one if all are the same.

    Everybody's figures and tallies are looked at, also of who cannot be heard: what is usual follows from all.
    `tallies`: by member, then by client; `samples_NC`: what each client counted on.
    """
    source = evidence if resolve_rule(rule).uses_statistics else "reported"
    known_to = partial(evidence_of, published, teacher_prior=settings["teacher_prior"], source=source)
    known = [published]
    if source != "reported":
        known = [
            known_to([own[client] for own in tallies], samples_C=samples_C)
            for client, samples_C in enumerate(samples_NC)
        ]
    counts_KC = published.counts_KC
    rules = [make_committee_rule(rule, stats, evidence=evidence, published_KC=counts_KC, **settings) for stats in known]
    return [one.select(members) for one in rules]


def count_hits(
    rules: Sequence[CommitteeRule], said: Sequence[Tensor], labels_B: Tensor, *, log_prior_C: Tensor | None = None
) -> list[ClassHits]:
    """Count the hits per class of committees of the same members, block by block; these are understood once for all."""
    classes = rules[0].num_classes
    tallies = [_HitTally(classes) for _ in rules]
    for part in _blocks(said, classes):
        labels, q_KBC = labels_B[part], rules[0].heard(torch.stack([one[part] for one in said]))
        for tally, rule in zip(tallies, rules, strict=True):
            logits_BC = rule.combined(q_KBC)
            tally.add(logits_BC if log_prior_C is None else logits_BC + log_prior_C, labels)
    counts = tuple(torch.bincount(labels_B, minlength=classes).tolist())
    return [ClassHits(counts, tuple(one.hits.tolist()), tuple(one.losses.tolist())) for one in tallies]


def count_hits_by_client(
    rules: Sequence[CommitteeRule],
    said: Sequence[Tensor],
    labels_B: Tensor,
    *,
    sizes: Sequence[int],
    log_priors_NC: Tensor,
) -> list[ClassHits]:
    """Count the hits of every client's committee on its own samples, which lie one client after the other.

    One rule may stand for all clients; each one's own class shares are added to what its committee says.
    """
    hits, start = [], 0
    for client, size in enumerate(sizes):
        part, rule = slice(start, start := start + size), rules[client % len(rules)]
        hits += count_hits([rule], [one[part] for one in said], labels_B[part], log_prior_C=log_priors_NC[client])
    return hits


def committee_logits(rule: CommitteeRule, said: Sequence[Tensor], *, log_prior_C: Tensor | None = None) -> Tensor:
    """Return what a committee says, as logits [B,C], block by block."""
    logits = [
        rule.combined(rule.heard(torch.stack([one[part] for one in said]))) for part in _blocks(said, rule.num_classes)
    ]
    logits_BC = torch.cat([torch.empty(0, rule.num_classes), *logits])
    return logits_BC if log_prior_C is None else logits_BC + log_prior_C


def _blocks(said: Sequence[Tensor], num_classes: int) -> list[slice]:
    """Cut the samples into blocks that fit into memory for all members at once."""
    step = max(1, BLOCK_BYTES // (4 * len(said) * num_classes))
    return [slice(start, start + step) for start in range(0, len(said[0]), step)]


class _HitTally:
    """Hits and cross-entropies of a committee per class so far."""

    def __init__(self, classes: int) -> None:
        self.hits, self.losses = torch.zeros(classes, dtype=torch.int64), torch.zeros(classes, dtype=torch.float64)

    def add(self, logits_BC: Tensor, labels_B: Tensor) -> None:
        self.hits += torch.bincount(labels_B[logits_BC.argmax(dim=1) == labels_B], minlength=len(self.hits))
        misses_B = -torch.log_softmax(logits_BC, dim=1).gather(1, labels_B[:, None])[:, 0]
        self.losses.index_add_(0, labels_B, misses_B.double().clamp(max=1e9))


def _name_of(rule: Rule) -> str:
    return next((name for name, known in RULES.items() if known == rule), OWN_RULE)


def settings_of(rule: CommitteeRule) -> Mapping[str, Any]:
    """Return the settings as plain values; `make_committee_rule` takes them again."""
    names = ("teacher_prior", "temperature", "min_support", "epsilon", "unsupported", "evidence")
    return {"rule": rule.name, **{name: getattr(rule, name) for name in names}}
