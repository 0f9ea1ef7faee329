"""What is known per class: of one model, `ClassHits`; of teachers, `TeacherStats`, and what follows (Eqs. 6 and 7).

Shapes: K teachers, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class ClassHits(NamedTuple):
    """What a model or a committee makes of labelled samples, by class."""

    counts: tuple[int, ...]  # samples
    hits: tuple[int, ...]  # of them, classified correctly
    cross_entropy_sums: tuple[float, ...]  # over them


@dataclass(frozen=True)
class TeacherStats:
    """The class statistics of K teachers: what they published, and what a student counted of them itself.

    Published: counts, accuracies, sometimes cross-entropies. Counted on the student's own samples: the rest.
    """

    counts_KC: Tensor  # validation samples held
    accuracies_KC: Tensor  # share of them classified correctly
    cross_entropies_KC: Tensor | None = None  # mean over them
    support_KC: Tensor | None = None  # samples that speak for a teacher; None: its counts
    false_alarms_KC: Tensor | None = None  # share of the samples of other classes that it takes for this one
    others_KC: Tensor | None = None  # how many samples of other classes that share was counted on
    effective_KC: Tensor | None = None  # samples by which a teacher is weighed; None: its counts

    @property
    def speaking_KC(self) -> Tensor:  # noqa: N802  # tensors carry their shape in the name
        """Return how many samples speak for each teacher."""
        return self.counts_KC if self.support_KC is None else self.support_KC

    @property
    def weighing_KC(self) -> Tensor:  # noqa: N802  # tensors carry their shape in the name
        """Return by how many samples each teacher is weighed, where samples are the weight."""
        return self.counts_KC if self.effective_KC is None else self.effective_KC

    def select(self, teachers_K: Tensor) -> TeacherStats:
        """Return the statistics of some teachers, by a mask or their places."""
        return TeacherStats(**{name: value[teachers_K] for name, value in vars(self).items() if value is not None})


def smoothed_accuracy(counts_KC: Tensor, accuracies_KC: Tensor) -> Tensor:
    """Return Agresti-Coull's estimate: two imagined hits and two misses keep the variance above zero. Eq. 6, left."""
    return (accuracies_KC * counts_KC + 2) / (counts_KC + 4)


def accuracy_variance(counts_KC: Tensor, accuracies_KC: Tensor) -> Tensor:
    """Return the variance of a class accuracy that was measured on so many samples. Eq. 6, right."""
    smoothed_KC = smoothed_accuracy(counts_KC, accuracies_KC)
    return smoothed_KC * (1 - smoothed_KC) / (counts_KC + 4)


def reliability(stats: TeacherStats, *, epsilon: float) -> Tensor:
    """Return the inverse variance of the class accuracy, [K,C]. Eq. 7.

    Where false alarms are known, the accuracy is a recall r beside a false-alarm rate f, and the weight is
    max(0, r~ - f~) / (var(r) + var(f)): nothing for a teacher that says the class no more often when it is there.
    """
    variance_KC = accuracy_variance(stats.counts_KC, stats.accuracies_KC)
    if stats.false_alarms_KC is None or stats.others_KC is None:
        return 1 / (variance_KC + epsilon)
    alarm_variance_KC = accuracy_variance(stats.others_KC, stats.false_alarms_KC)
    return separation(stats) / (variance_KC + alarm_variance_KC + epsilon)


def separation(stats: TeacherStats) -> Tensor:
    """Return how much more often a teacher says a class when it is there, max(0, r~ - f~), [K,C].

    One where false alarms are not known.
    """
    if stats.false_alarms_KC is None or stats.others_KC is None:
        return torch.ones_like(stats.counts_KC)
    recall_KC = smoothed_accuracy(stats.counts_KC, stats.accuracies_KC)
    return (recall_KC - alarm_rate(stats.others_KC, stats.false_alarms_KC)).clamp(min=0)


def alarm_rate(others_KC: Tensor, false_alarms_KC: Tensor) -> Tensor:
    """Return how often a teacher says a class that is not there, [K,C]: smoothed, but not below what was counted.

    Else whoever says a class always, and claims enough samples of it, would seem to tell it from others.
    """
    return torch.maximum(smoothed_accuracy(others_KC, false_alarms_KC), false_alarms_KC)
