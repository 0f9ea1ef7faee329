"""Where the benchmarks touch the inside of the package: the teacher engine, and the parts that a round consists of."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

import crad.federation.peer
import crad.methods.local_training
from crad.inference.engine import PreparedTeacher, TeacherEngine

Run = Callable[[Tensor], Tensor]

# Where the pure computing of a round is done: the label it counts under, and the function that does it.
COMPUTING = {
    "teachers": (PreparedTeacher, "__call__"),
    "student": (crad.methods.local_training, "train_on_block"),
    "evaluation": (crad.federation.peer, "score"),
}


def engine_teacher(model: nn.Module, *, key: str) -> Run:
    """A frozen model as the package runs it as a teacher."""
    return TeacherEngine(device="cpu", precision="fp32").prepare(model, key=key)


@contextmanager
def computing_timed(seconds: defaultdict[str, float]) -> Iterator[None]:
    """Add up, by label, the seconds spent in teacher inference, student steps and evaluation."""
    inside: list[str] = []  # evaluation may run a prepared model: its time counts once, under the outer label
    with ExitStack() as stack:
        for label, (place, name) in COMPUTING.items():
            stack.enter_context(patch.object(place, name, _timed(getattr(place, name), label, seconds, inside)))
        yield


def _timed(
    function: Callable[..., Any], label: str, seconds: defaultdict[str, float], inside: list[str]
) -> Callable[..., Any]:
    @wraps(function)
    def timed(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401  # whatever it wraps
        if inside:
            return function(*arguments, **keywords)
        inside.append(label)
        started = time.perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            inside.clear()
            seconds[label] += time.perf_counter() - started

    return timed
