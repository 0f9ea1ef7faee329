"""Where the benchmarks touch the inside of the package: the teacher engine."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from crad.inference.engine import TeacherEngine

Run = Callable[[Tensor], Tensor]


def engine_teacher(model: nn.Module, *, key: str) -> Run:
    """A frozen model as the package runs it as a teacher."""
    return TeacherEngine(device="cpu", precision="fp32").prepare(model, key=key)
