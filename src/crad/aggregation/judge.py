"""One student's view of its teachers over a round: what they publish, what it counts itself, and the target from both.

Shapes: K teachers, B samples, C classes; `sound_K` is a mask over all K, and q holds the rows of the sound ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from crad.aggregation.combine import Combination, combine
from crad.aggregation.confusion import Confusion, Confusions, find_confusions
from crad.aggregation.correction import correct
from crad.aggregation.evidence import check_evidence
from crad.aggregation.rules import Rule
from crad.aggregation.statistics import TeacherStats
from crad.aggregation.verification import Tally, credibility, verify
from crad.config import EvidenceSource, FilterKind, TeacherPrior, Unsupported


@dataclass(frozen=True)
class TeacherJudge:
    """By which rule and on what evidence the teachers are judged, and what the student has counted of it so far."""

    rule: Rule
    source: EvidenceSource
    published: TeacherStats
    tally: Tally
    confusions: Confusions
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
        return cls(rule.with_filter(filter_kind), source, published, Tally(*size), Confusions(*size), teacher_prior)

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
        min_support: float,
        epsilon: float,
        unsupported: Unsupported,
        temperature: float = 1.0,
    ) -> Combination:
        """Combine the sound teachers' predictions at this temperature by the rule, on what is known of them by now."""
        stats = known_stats(self.published, self.tally, source=self.source).select(sound_K)
        evidence = check_evidence(q_KBC, stats, min_support=min_support, epsilon=epsilon)
        published_KC = self.published.counts_KC[sound_K]
        evidence = correct(
            evidence, teacher_prior=self.teacher_prior, temperature=temperature, published_KC=published_KC
        )
        return combine(evidence, self.rule, unsupported=unsupported)

    def findings(self) -> tuple[list[Confusion], list[float] | None]:
        """Return who means other classes than the student, and how far each teacher's figures are believed, 0 to 1.

        The second is None where they are not checked.
        """
        confused = find_confusions(self.published, self.confusions.tally_KCC)
        return confused, None if self.source == "reported" else credibility(self.published, self.tally).tolist()


def known_stats(published: TeacherStats, tally: Tally | None, *, source: EvidenceSource) -> TeacherStats:
    """Return the published figures, those that the student counted, or both."""
    return published if source == "reported" or tally is None else verify(published, tally, source=source)
