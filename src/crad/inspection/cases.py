"""Where a rule did clearly well or badly: the searched test images of all students, by two stated rules.

Shapes: N clients that can teach, S students, K teachers of one student, B images, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crad.inspection.panel import Panel

CASES_EACH = 4  # successes and failures
MIN_MARGIN = 1e-4  # below, nothing is clear: a uniform rule against the uniform average, say

SUCCESS_RULE = (
    "Success: over all students and searched test images, the target for the true class exceeds what a uniform average "
    "of the same teachers would have said by most."
)
FAILURE_RULE = (
    "Failure: the teacher for which most samples of the true class speak was dropped as an outlier, and what it "
    "said exceeds the target by most; where that never happened, the target falls short of the uniform average by most."
)


@dataclass(frozen=True)
class Case:
    """A student and a test image where the rule did clearly well or badly for the true class, and by how much."""

    kind: str  # success or failure
    student: int
    image: int
    margin: float


def find_cases(panel: Panel, q_NBC: Tensor, *, students: Sequence[int]) -> list[Case]:
    """Return the clearest successes and failures in turn, at most one of each kind per image."""
    labels_B = panel.context.data.global_test.labels[: q_NBC.shape[1]]
    best: dict[str, list[Case]] = {"success": [], "failure": []}
    gains, losses, shortfalls = [], [], []
    for student in students:
        gain_B, loss_B, shortfall_B = margins(panel, student, q_NBC, labels_B)
        gains.append(gain_B)
        losses.append(loss_B)
        shortfalls.append(shortfall_B)
    lost_SB = torch.stack(losses)
    if not torch.isfinite(lost_SB).any():
        lost_SB = torch.stack(shortfalls)
    for kind, margin_SB in (("success", torch.stack(gains)), ("failure", lost_SB)):
        margin_B, student_B = margin_SB.max(dim=0)
        for image in margin_B.argsort(descending=True, stable=True).tolist()[:CASES_EACH]:
            if MIN_MARGIN < margin_B[image] < torch.inf:
                best[kind].append(Case(kind, students[int(student_B[image])], image, float(margin_B[image])))
    most = max(map(len, best.values()))
    return [best[kind][rank] for rank in range(most) for kind in best if rank < len(best[kind])]


def margins(panel: Panel, student: int, q_NBC: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return of every image's true class: target over uniform mean, dropped specialist over target, uniform over it.

    The second is minus infinity where the best-supported teacher was not dropped as an outlier.
    """
    chosen, trace = panel.of_student(student), panel.combine(student, q_NBC)
    rows_B = torch.arange(len(labels_B), device=labels_B.device)
    target_B = trace.target[rows_B, labels_B]
    uniform_B = q_NBC[chosen].mean(dim=0)[rows_B, labels_B]
    counts_KC = panel.stats(student).speaking_KC  # float64, which stays on the CPU: MPS has none
    specialist_B = counts_KC.argmax(dim=0).to(labels_B.device)[labels_B]
    states_B = trace.state[specialist_B.cpu().numpy(), np.arange(len(labels_B)), labels_B.cpu().numpy()]
    is_lost_B = torch.from_numpy(states_B == "outlier").to(labels_B.device)
    said_B = trace.corrected[specialist_B, rows_B, labels_B]
    lost_B = torch.where(is_lost_B, said_B - target_B, -torch.inf)
    return target_B - uniform_B, lost_B, uniform_B - target_B
