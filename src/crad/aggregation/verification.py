"""What a student counts itself: every teacher's hits and false alarms on the student's own labelled samples.

Nobody can forge these counts, and they cost nothing: the teachers run on these samples anyway. They are evidence of the
same proportion as the published accuracy, so the two add up, as far as the published figures are credible.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from crad.aggregation.statistics import TeacherStats, accuracy_variance, smoothed_accuracy
from crad.config import EvidenceSource

# A teacher may do this much worse on the student's samples, which are augmented, than it says of itself.
SLACK = 0.1


class Tally:
    """Counts over the samples seen so far."""

    def __init__(self, num_teachers: int, num_classes: int) -> None:
        self.samples_C = torch.zeros(num_classes, dtype=torch.float64)
        self.hits_KC = torch.zeros(num_teachers, num_classes, dtype=torch.float64)
        self.alarms_KC = torch.zeros(num_teachers, num_classes, dtype=torch.float64)

    def add(self, q_KBC: Tensor, labels_B: Tensor, teachers_K: Tensor, *, is_new: bool = True) -> None:
        """Count what these teachers, a mask over all, make of these samples; they are new unless others saw them."""
        num_classes = len(self.samples_C)
        said_KB = q_KBC.argmax(dim=2).cpu()
        labels_B = labels_B.cpu()
        if is_new:
            self.samples_C += torch.bincount(labels_B, minlength=num_classes)
        for k, said_B in zip(teachers_K.nonzero().flatten().tolist(), said_KB, strict=True):
            is_hit_B = said_B == labels_B
            self.hits_KC[k] += torch.bincount(said_B[is_hit_B], minlength=num_classes)
            self.alarms_KC[k] += torch.bincount(said_B[~is_hit_B], minlength=num_classes)

    @property
    def others_C(self) -> Tensor:  # noqa: N802  # tensors carry their shape in the name
        """Return how many samples are of other classes, [C]."""
        return self.samples_C.sum() - self.samples_C


def verify(
    stats: TeacherStats, tally: Tally, *, source: EvidenceSource, claimed_KC: Tensor | None = None
) -> TeacherStats:
    """Return the published figures and the student's own together.

    `pooled` adds the two. `own` takes the student's alone for the classes it holds. For a class it does not hold there
    is only what was published. Published counts shrink with the teacher's credibility, by this tally unless told
    otherwise, and are believed for no more than is usual. A sample of the student's speaks for a teacher only if the
    teacher got it right.
    """
    if claimed_KC is None:
        claimed_KC = stats.counts_KC * credibility(stats, tally).unsqueeze(1)
    published_KC = usual_claims(claimed_KC)
    if source == "own":
        published_KC = torch.where(tally.samples_C > 0, 0.0, published_KC)
    total_KC = published_KC + tally.samples_C
    hits_KC = published_KC * stats.accuracies_KC + tally.hits_KC
    return replace(
        stats,
        counts_KC=total_KC,
        accuracies_KC=(hits_KC / total_KC.clamp(min=1e-12)).clamp(max=1),
        support_KC=published_KC + tally.hits_KC,
        false_alarms_KC=tally.alarms_KC / tally.others_C.clamp(min=1),
        others_KC=tally.others_C.expand_as(total_KC),
    )


def usual_claims(claimed_KC: Tensor) -> Tensor:
    """Cut claims down to what is usual: nobody holds more of a class than the median of everybody's largest class.

    Of a class that a student lacks it can check no claim, and one false one would decide the class. Who claims nothing
    is not counted; of an even number the lower median is taken.
    """
    largest_K = claimed_KC.amax(dim=1)
    claiming_K = largest_K[largest_K > 0]
    return claimed_KC.clamp(max=float(claiming_K.median())) if len(claiming_K) else claimed_KC


def credibility(stats: TeacherStats, tally: Tally) -> Tensor:
    """Return how far each teacher's published figures can be believed, 0 to 1, [K].

    exp(-z^2 / 2), where z says by how many standard deviations its hits on the student's samples fall short of what it
    published, beyond the slack. Doing better than published costs nothing.
    """
    counts_KC, accuracies_KC = stats.counts_KC, stats.accuracies_KC
    said_KC = (counts_KC > 0).to(counts_KC) * tally.samples_C  # the student's samples about which it says something
    smoothed_KC = smoothed_accuracy(counts_KC, accuracies_KC)
    expected_K = (said_KC * smoothed_KC).sum(dim=1)
    hits_K = torch.where(counts_KC > 0, tally.hits_KC, 0.0).sum(dim=1)
    variance_K = (
        said_KC * smoothed_KC * (1 - smoothed_KC) + said_KC**2 * accuracy_variance(counts_KC, accuracies_KC)
    ).sum(dim=1)
    shortfall_K = (expected_K - hits_K - SLACK * said_KC.sum(dim=1)).clamp(min=0)
    return torch.exp(-(shortfall_K**2) / (2 * variance_K.clamp(min=1e-12)))
