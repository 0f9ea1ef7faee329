"""The student's loss (Eq. 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """One batch's loss and its two parts; a part that does not apply is zero."""

    total: Tensor
    cross_entropy: Tensor
    distillation: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # what a method wants to see beside them


def distillation_loss(
    logits_BC: Tensor, labels_B: Tensor, target_BC: Tensor, *, temperature: float, distill_weight: float
) -> Loss:
    """(1 - lambda) CE + lambda T^2 KL(target || student), batch mean. Eq. 9."""
    cross_entropy = F.cross_entropy(logits_BC, labels_B)
    distillation = softened_divergence(logits_BC, target_BC, temperature=temperature)
    total = (1 - distill_weight) * cross_entropy + distill_weight * distillation
    return Loss(total, cross_entropy, distillation)


def private_loss(logits_BC: Tensor, labels_B: Tensor) -> Loss:
    """Cross-entropy on the own labels alone."""
    cross_entropy = F.cross_entropy(logits_BC, labels_B)
    return Loss(cross_entropy, cross_entropy, cross_entropy.new_zeros(()))


def softened_divergence(logits_BC: Tensor, target_BC: Tensor, *, temperature: float) -> Tensor:
    """T^2 KL(target || student), batch mean; the target holds probabilities at temperature T."""
    student_BC = F.log_softmax(logits_BC / temperature, dim=1)
    return temperature**2 * F.kl_div(student_BC, target_BC.detach(), reduction="batchmean")
