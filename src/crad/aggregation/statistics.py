"""Class accuracy as a statistical estimate (Eq. 6), and what a teacher's word for a class is worth (Eq. 7)."""

from __future__ import annotations

from torch import Tensor

from crad.aggregation.evidence import Evidence


def smoothed_accuracy(counts_KC: Tensor, accuracies_KC: Tensor) -> Tensor:
    """Agresti-Coull: two imagined hits and two misses keep the variance above zero. Eq. 6, left."""
    return (accuracies_KC * counts_KC + 2) / (counts_KC + 4)


def accuracy_variance(counts_KC: Tensor, accuracies_KC: Tensor) -> Tensor:
    """Variance of a class accuracy that was measured on so many samples. Eq. 6, right."""
    smoothed_KC = smoothed_accuracy(counts_KC, accuracies_KC)
    return smoothed_KC * (1 - smoothed_KC) / (counts_KC + 4)


def reliability(evidence: Evidence) -> Tensor:
    """Inverse variance of the class accuracy, [K,C]. Eq. 7.

    Where false alarms are known, the accuracy is a recall r beside a false-alarm rate f, and the weight is
    max(0, r~ - f~) / (var(r) + var(f)): nothing for a teacher that says the class no more often when it is there.
    """
    counts_KC, accuracies_KC = evidence.counts_KC, evidence.accuracies_KC
    variance_KC = accuracy_variance(counts_KC, accuracies_KC)
    if evidence.false_alarms_KC is None or evidence.others_KC is None:
        return 1 / (variance_KC + evidence.epsilon)
    alarm_KC = smoothed_accuracy(evidence.others_KC, evidence.false_alarms_KC)
    alarm_variance_KC = accuracy_variance(evidence.others_KC, evidence.false_alarms_KC)
    separation_KC = (smoothed_accuracy(counts_KC, accuracies_KC) - alarm_KC).clamp(min=0)
    return separation_KC / (variance_KC + alarm_variance_KC + evidence.epsilon)
