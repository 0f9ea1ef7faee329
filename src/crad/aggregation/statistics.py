"""Class accuracy as a statistical estimate (Eq. 6)."""

from __future__ import annotations

from torch import Tensor


def smoothed_accuracy(counts_KC: Tensor, accuracies_KC: Tensor) -> Tensor:
    """Agresti-Coull: two imagined hits and two misses keep the variance above zero. Eq. 6, left."""
    return (accuracies_KC * counts_KC + 2) / (counts_KC + 4)


def accuracy_variance(counts_KC: Tensor, accuracies_KC: Tensor) -> Tensor:
    """Variance of a class accuracy that was measured on so many samples. Eq. 6, right."""
    smoothed_KC = smoothed_accuracy(counts_KC, accuracies_KC)
    return smoothed_KC * (1 - smoothed_KC) / (counts_KC + 4)
