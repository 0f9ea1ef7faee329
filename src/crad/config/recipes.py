"""What a method stands for beside its rule: CRAD as published, and crad-plus."""

from __future__ import annotations

from dataclasses import dataclass

from crad.config.setting import (
    DistillAugment,
    DistillSchedule,
    EvidenceSource,
    FilterKind,
    LocalLoss,
    TeacherPrior,
)


@dataclass(frozen=True)
class Recipe:
    """How a student learns and whom it believes. What stands here is CRAD as published."""

    local_loss: LocalLoss = "plain"
    evidence: EvidenceSource = "reported"
    filter: FilterKind | None = None  # None: the rule's own
    distill_augment: DistillAugment = "same"
    teacher_prior: TeacherPrior = "keep"
    missing_weight: float = 0.0
    distill_schedule: DistillSchedule = "constant"


PUBLISHED = Recipe()
# Methods that are a rule under another recipe; a setting of the same name wins over it.
RECIPES: dict[str, Recipe] = {
    "crad-plus": Recipe(local_loss="balanced", evidence="pooled", filter="weighted-consensus", distill_augment="same"),
    "experts": Recipe(local_loss="balanced", teacher_prior="remove"),
}
