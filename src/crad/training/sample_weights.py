"""How much each sample counts in the distillation: by what it tells of classes that the client lacks, and by how sure
its target is.

Weights stand before each sample's divergence and not before its classes: a student that reaches a target is right under
any weights. Shapes: B samples, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crad.training.losses import sharpened


def lacking_classes(counts_C: Tensor) -> Tensor:
    """Return how far each class is missing, [C]: 1 without a sample, 0 with an equal share of all or more."""
    counts_C = counts_C.double()
    return (1 - counts_C * len(counts_C) / counts_C.sum().clamp(min=1)).clamp(min=0)


def missing_class_weights(target_BC: Tensor, lacking_C: Tensor, *, strength: float, temperature: float) -> Tensor:
    """Return 1 + strength times the target's mass on lacking classes, brought to mean one, [B].

    The mass is the target's at temperature 1: softened, every target has some of everything.
    """
    sharp_BC = sharpened(target_BC, temperature=temperature)
    weight_B = 1 + strength * (sharp_BC @ lacking_C.to(sharp_BC))
    return (weight_B / weight_B.mean()).to(target_BC)


def rising_share(*, round_index: int, rounds: int) -> float:
    """Return the share of lambda that a round distils with; rounds count from 1, and none is without any."""
    return min(max(round_index, 1), rounds) / rounds


def sure_weights(target_BC: Tensor, is_changed_B: Tensor | None, *, threshold: float, temperature: float) -> Tensor:
    """Return 1 for a sample that is as it was photographed or whose target is sure, 0 for the others, [B].

    Sure: the largest probability, at temperature 1, is the threshold or more.
    """
    if is_changed_B is None:
        return torch.ones_like(target_BC[:, 0])
    is_sure_B = sharpened(target_BC, temperature=temperature).amax(dim=1) >= threshold
    return (~is_changed_B | is_sure_B.to(is_changed_B.device)).to(target_BC)
