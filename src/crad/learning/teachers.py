"""Running frozen peers on the student's own inputs (Eqs. 1-2).

A teacher's output on a sample is needed once per epoch, so it is computed teacher by teacher over a block of the
shard before the student trains on that block: the same augmented tensors, one teacher in memory at a time.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

TEACHER_BATCH = 64  # larger ones are slower on a CPU

Teacher = Callable[[], nn.Module]  # gives the frozen model, ready to run; the next call may reuse its memory


@torch.no_grad()
def teacher_logits(model: nn.Module, inputs: Tensor) -> Tensor:
    """Logits of one frozen teacher in evaluation mode, [B,C]. Eq. 1."""
    model.eval()
    return torch.cat([model(chunk) for chunk in torch.split(inputs, TEACHER_BATCH)])


def soft_predictions(teachers: Sequence[Teacher], inputs: Tensor, *, temperature: float) -> Tensor:
    """Softened class probabilities of every teacher on the same inputs, [K,B,C]. Eq. 2."""
    return torch.stack([torch.softmax(teacher_logits(teacher(), inputs) / temperature, dim=1) for teacher in teachers])
