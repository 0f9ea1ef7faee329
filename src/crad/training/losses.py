"""The student's loss (Eq. 9), and the private part of it under the client's own class prior.

Shapes: B samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from crad.device import as_double

SMALLEST_LOG = -1e9  # of the share of a class that is not there
LARGEST_CLASS_WEIGHT = 10.0  # of a rare class among samples that are weighed, however rare it is


@dataclass(frozen=True)
class Loss:
    """One batch's loss and its two parts; a part that does not apply is zero."""

    total: Tensor
    cross_entropy: Tensor
    distillation: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # what a method wants to see beside them


@dataclass(frozen=True)
class BatchLabels:
    """The labels of some samples; those of mixed ones have a second label, with the rest of the share."""

    first_B: Tensor
    second_B: Tensor | None = None
    share_B: Tensor | None = None  # of the first; one for a sample that is not mixed
    is_known_B: Tensor | None = None  # which samples have a label at all; None: every one

    def __len__(self) -> int:
        return len(self.first_B)

    def __getitem__(self, where: slice | Tensor) -> BatchLabels:
        parts = (self.first_B, self.second_B, self.share_B, self.is_known_B)
        chosen = (None if part is None else part[where] for part in parts)
        return BatchLabels(*chosen)  # type: ignore[arg-type]  # the first is never None

    def mass(self, num_classes: int) -> Tensor:
        """Return what they say of each class, [B,C]: one for the label, or divided among the two of a mixed sample.

        Of a sample without a label they say nothing.
        """
        first_BC = F.one_hot(self.first_B, num_classes).float()
        if self.is_known_B is not None:
            first_BC = first_BC * self.is_known_B[:, None]
        if self.second_B is None or self.share_B is None:
            return first_BC
        second_BC = F.one_hot(self.second_B, num_classes)
        return self.share_B[:, None] * first_BC + (1 - self.share_B[:, None]) * second_BC


@runtime_checkable
class WeighsClasses(Protocol):
    """A loss that can also say what it asks for as weights of classes, for models that are fitted in one call."""

    def class_mass(self, num_classes: int) -> Tensor:
        """Return how much each class counts for each sample of the stretch, [B,C]."""
        ...


def distillation_loss(
    logits_BC: Tensor,
    labels_B: Tensor | BatchLabels,
    target_BC: Tensor,
    *,
    temperature: float,
    distill_weight: float,
    log_prior_C: Tensor | None = None,
    weight_B: Tensor | None = None,
) -> Loss:
    """Return (1 - lambda) CE + lambda T^2 KL(target || student), batch mean. Eq. 9; samples may weigh unequally."""
    cross_entropy = private_cross_entropy(logits_BC, labels_B, log_prior_C)
    distillation = softened_divergence(logits_BC, target_BC, temperature=temperature, weight_B=weight_B)
    total = (1 - distill_weight) * cross_entropy + distill_weight * distillation
    return Loss(total, cross_entropy, distillation)


@dataclass(frozen=True)
class StudentLoss:
    """Eq. 9 on a stretch of samples: called with the logits of a batch and where in the stretch it stands."""

    labels: BatchLabels
    target_BC: Tensor
    temperature: float
    distill_weight: float
    log_prior_C: Tensor | None = None
    weight_B: Tensor | None = None  # of each sample in the distillation; None: all alike

    def __call__(self, logits_BC: Tensor, where: slice) -> Loss:
        """Return the loss of a batch."""
        return distillation_loss(
            logits_BC,
            self.labels[where],
            self.target_BC[where],
            temperature=self.temperature,
            distill_weight=self.distill_weight,
            log_prior_C=self.log_prior_C,
            weight_B=None if self.weight_B is None else self.weight_B[where],
        )

    def class_mass(self, num_classes: int) -> Tensor:
        """Return (1 - lambda) for the label and lambda for the target, sharpened back to temperature 1, [B,C]."""
        own_BC = private_mass(self.labels, num_classes, self.log_prior_C)
        target_BC = sharpened(self.target_BC, temperature=self.temperature).to(own_BC)
        if self.weight_B is not None:
            target_BC = target_BC * self.weight_B[:, None]
        return (1 - self.distill_weight) * own_BC + self.distill_weight * target_BC


@dataclass(frozen=True)
class PrivateLoss:
    """The cross-entropy on the own labels of a stretch of samples, called as `StudentLoss` is."""

    labels: BatchLabels
    log_prior_C: Tensor | None = None

    def __call__(self, logits_BC: Tensor, where: slice) -> Loss:
        """Return the loss of a batch."""
        return private_loss(logits_BC, self.labels[where], self.log_prior_C)

    def class_mass(self, num_classes: int) -> Tensor:
        """Return the labels as weights of classes, [B,C]."""
        return private_mass(self.labels, num_classes, self.log_prior_C)


def private_mass(labels: BatchLabels, num_classes: int, log_prior_C: Tensor | None = None) -> Tensor:
    """Return the labels as weights of classes, [B,C]; under a prior every class weighs the same in total.

    That is what the prior in the private loss comes to: a model that knows nothing of how often its owner sees a class.
    No class counts more than ten times as much for it: a few samples would be all that is learned.
    """
    mass_BC = labels.mass(num_classes)
    if log_prior_C is None:
        return mass_BC
    balance_C = (-as_double(log_prior_C) - math.log(num_classes)).exp().clamp(max=LARGEST_CLASS_WEIGHT)
    return mass_BC * balance_C.to(mass_BC)


def sharpened(target_BC: Tensor, *, temperature: float) -> Tensor:
    """Return probabilities at temperature T as they would be at temperature 1: to the power of T, normalised, float64.

    On the CPU where the device has no float64.
    """
    return torch.softmax(temperature * as_double(target_BC).clamp(min=1e-30).log(), dim=1)


def private_loss(logits_BC: Tensor, labels_B: Tensor | BatchLabels, log_prior_C: Tensor | None = None) -> Loss:
    """Return the cross-entropy on the own labels alone."""
    cross_entropy = private_cross_entropy(logits_BC, labels_B, log_prior_C)
    return Loss(cross_entropy, cross_entropy, cross_entropy.new_zeros(()))


def private_cross_entropy(
    logits_BC: Tensor, labels_B: Tensor | BatchLabels, log_prior_C: Tensor | None = None
) -> Tensor:
    """Return CE(z, y), or CE(z + log prior, y).

    Then z need not learn how often a client sees each class. Mean over the samples of the batch that have a label; zero
    where none has.
    """
    if log_prior_C is not None:
        logits_BC = logits_BC + log_prior_C
    if isinstance(labels_B, Tensor):
        return F.cross_entropy(logits_BC, labels_B)
    if labels_B.is_known_B is not None:
        logits_BC, labels_B = logits_BC[labels_B.is_known_B], labels_B[labels_B.is_known_B]
        if not len(labels_B):
            return logits_BC.sum()
    if labels_B.second_B is None or labels_B.share_B is None:
        return F.cross_entropy(logits_BC, labels_B.first_B)
    first_B = F.cross_entropy(logits_BC, labels_B.first_B, reduction="none")
    second_B = F.cross_entropy(logits_BC, labels_B.second_B, reduction="none")
    return (labels_B.share_B * first_B + (1 - labels_B.share_B) * second_B).mean()


def log_shares(labels_B: Tensor, *, num_classes: int) -> Tensor:
    """Return the logarithm of every class's share of the data in use, [C].

    A class that is not there gets -1e9: it drops out of a softmax, and no gradient pushes it down.
    """
    return log_count_shares(torch.bincount(labels_B, minlength=num_classes))


def log_count_shares(counts_C: Tensor) -> Tensor:
    """Return the same from the number of samples of every class; of several clients at once, [N,C]."""
    counts_C = counts_C.float()
    return (counts_C / counts_C.sum(dim=-1, keepdim=True)).log().clamp(min=SMALLEST_LOG)


def softened_divergence(
    logits_BC: Tensor, target_BC: Tensor, *, temperature: float, weight_B: Tensor | None = None
) -> Tensor:
    """Return T^2 KL(target || student), batch mean; the target holds probabilities at temperature T."""
    student_BC = F.log_softmax(logits_BC / temperature, dim=1)
    if weight_B is not None:
        apart_B = F.kl_div(student_BC, target_BC.detach(), reduction="none").sum(dim=1)
        return temperature**2 * (weight_B * apart_B).mean()
    return temperature**2 * F.kl_div(student_BC, target_BC.detach(), reduction="batchmean")
