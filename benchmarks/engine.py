"""Where the benchmarks touch the inside of the package: the teacher engine, and the parts that a round consists of."""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import crad.learning.teachers as teachers

Run = Callable[[Tensor], Tensor]

# Where the pure computing of a round is done: the label it counts under, and the function that does it.
COMPUTING = {
    "teachers": ("crad.learning.teachers", "teacher_logits"),
    "student": ("crad.methods.training", "train_on_block"),
    "evaluation": ("crad.federation.peer", "score"),
}


def engine_teacher(model: nn.Module, *, key: str) -> Run:
    """A frozen model as the package runs it as a teacher."""
    engine = getattr(teachers, "TeacherEngine", None)
    if engine is None:
        as_in_a_round = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return partial(teachers.teacher_logits, as_in_a_round)
    run: Run = engine(device="cpu", precision="fp32").prepare(model, key=key)
    return run


@contextmanager
def computing_timed(seconds: defaultdict[str, float]) -> Iterator[None]:
    """Add up, by label, the seconds spent in teacher inference, student steps and evaluation."""
    with ExitStack() as stack:
        for label, (module_name, name) in COMPUTING.items():
            module = importlib.import_module(module_name)
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, _timed(getattr(module, name), label, seconds)))
        engine = getattr(teachers, "TeacherEngine", None)
        if engine is not None:
            stack.enter_context(patch.object(engine, "prepare", _prepare_timed(engine.prepare, seconds)))
        yield


def _timed(function: Callable[..., Any], label: str, seconds: defaultdict[str, float]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401  # whatever it wraps
        started = time.perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            seconds[label] += time.perf_counter() - started

    return timed


def _prepare_timed(prepare: Callable[..., Run], seconds: defaultdict[str, float]) -> Callable[..., Run]:
    @wraps(prepare)
    def timed(*arguments: Any, **keywords: Any) -> Run:  # noqa: ANN401  # whatever it wraps
        return _timed(prepare(*arguments, **keywords), "teachers", seconds)

    return timed
