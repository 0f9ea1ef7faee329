"""Running frozen peers on the student's own inputs (Eqs. 1-2).

A teacher's output on a sample is needed once per epoch, so it is computed teacher by teacher over a block of the
shard before the student trains on that block: the same augmented tensors, one teacher in memory at a time.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TEACHER_BATCH = 64  # larger ones are slower on a CPU

Run = Callable[[Tensor], Tensor]


class PreparedTeacher:
    nbytes = 0

    def __init__(self, model):
        import copy

        self.model = copy.deepcopy(model)
        self.nbytes = sum(t.nbytes for t in model.state_dict().values())

    @torch.no_grad()
    def __call__(self, inputs):
        return torch.cat([self.model(chunk) for chunk in torch.split(inputs, TEACHER_BATCH)])


class TeacherEngine:
    def __init__(self, *, device, precision="fp32", expected_samples=0):
        pass

    def prepare(self, model, *, key):
        return PreparedTeacher(model)


def soft_predictions(teachers, inputs: Tensor, *, temperature: float) -> Tensor:
    """Softened class probabilities of every teacher on the same inputs, [K,B,C]. Eq. 2."""
    return torch.stack([torch.softmax(teacher()(inputs) / temperature, dim=1) for teacher in teachers])
