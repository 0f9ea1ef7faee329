"""One student's view of its teachers over a round: what they publish, what it counts itself, and the target from both.

Shapes: K teachers, B samples, C classes; `sound_K` is a mask over all K, and q holds the rows of the sound ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crad.aggregation.combine import Combination, combine
from crad.aggregation.confusion import Confusion, Confusions, find_confusions
from crad.aggregation.correction import correct
from crad.aggregation.evidence import check_evidence
from crad.aggregation.rules import Rule
from crad.aggregation.statistics import TeacherStats
from crad.aggregation.verification import Tally, credibility, verify
from crad.config import EvidenceSource, FilterKind, TeacherPrior, Unsupported


class TrustMeter:
    """Mean over the samples of the share that each teacher had in each class."""

    def __init__(self, num_teachers: int, num_classes: int) -> None:
        self._sum_KC = torch.zeros(num_teachers, num_classes)
        self._samples = 0
        self.teachers = num_teachers  # in the newest block

    def add(self, share_KBC: Tensor, sound_K: Tensor) -> None:
        """Count the samples of one block; teachers that were left out get nothing."""
        self._sum_KC[sound_K] += share_KBC.sum(dim=1).cpu()
        self._samples += share_KBC.shape[1]
        self.teachers = int(sound_K.sum())

    def means(self) -> list[list[float]]:
        """Return the means, [K,C], rounded to what a chart can show."""
        means_KC = self._sum_KC / max(1, self._samples)
        return [[round(value, 4) for value in row] for row in means_KC.tolist()]


@dataclass(frozen=True)
class TeacherFindings:
    """What a student knows of its teachers after a round."""

    trust: Sequence[list[float]]  # [K,C], the mean share of the say that it gave each teacher in each class
    confused: Sequence[Confusion]  # who means other classes than the student
    credibility: Sequence[float] | None  # how far each teacher's figures are believed, 0 to 1; None: not checked


@dataclass(frozen=True)
class TeacherJudge:
    """By which rule and on what evidence the teachers are judged, and what the student has counted of it so far."""

    rule: Rule
    source: EvidenceSource
    published: TeacherStats
    tally: Tally
    confusions: Confusions
    trust: TrustMeter
    teacher_prior: TeacherPrior = "keep"

    @classmethod
    def begin(
        cls,
        rule: Rule,
        published: TeacherStats,
        *,
        filter_kind: FilterKind | None,
        source: EvidenceSource,
        teacher_prior: TeacherPrior = "keep",
    ) -> TeacherJudge:
        """Begin a round with nothing counted; the filter may be another than the rule's own."""
        size = published.counts_KC.shape
        counted = Tally(*size), Confusions(*size), TrustMeter(*size)
        return cls(rule.with_filter(filter_kind), source, published, *counted, teacher_prior)

    def count(self, q_KBC: Tensor, labels_B: Tensor, sound_K: Tensor) -> None:
        """Count what the sound teachers make of the student's samples: as evidence, where it counts at all.

        What teachers take for what is always counted; it decides nothing. Both are counted on what teachers say as
        they say it, which is what their published accuracies were measured on.
        """
        self.confusions.add(q_KBC, labels_B, sound_K)
        if self.source != "reported":
            self.tally.add(q_KBC, labels_B, sound_K)

    def combine(
        self,
        q_KBC: Tensor,
        sound_K: Tensor,
        *,
        counted: tuple[Tensor, Tensor] | None = None,
        min_support: float,
        epsilon: float,
        unsupported: Unsupported,
        temperature: float = 1.0,
    ) -> Combination:
        """Combine the sound teachers' predictions at this temperature by the rule, on what is known of them by now.

        `counted`: their predictions on samples whose labels count, and these; counted before anything is combined.
        """
        if counted is not None:
            self.count(*counted, sound_K)
        stats = known_stats(self.published, self.tally, source=self.source).select(sound_K)
        evidence = check_evidence(q_KBC, stats, min_support=min_support, epsilon=epsilon)
        published_KC = self.published.counts_KC[sound_K]
        evidence = correct(
            evidence, teacher_prior=self.teacher_prior, temperature=temperature, published_KC=published_KC
        )
        made = combine(evidence, self.rule, unsupported=unsupported)
        self.trust.add(made.share_KBC, sound_K)
        return made

    def findings(self) -> TeacherFindings:
        """Return what the student knows of its teachers by now."""
        return TeacherFindings(
            trust=self.trust.means(),
            confused=find_confusions(self.published, self.confusions.tally_KCC),
            credibility=None if self.source == "reported" else credibility(self.published, self.tally).tolist(),
        )


def known_stats(published: TeacherStats, tally: Tally | None, *, source: EvidenceSource) -> TeacherStats:
    """Return the published figures, those that the student counted, or both."""
    return published if source == "reported" or tally is None else verify(published, tally, source=source)
