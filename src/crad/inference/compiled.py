"""torch.compile for teachers without a plan, in runs long enough to repay the compiling.

The choice follows from the architecture, the length of the run and the machine's compiler, never from a timing: the
same in every process of a run, unless compiling fails in one of them. Weights stay inputs of the compiled code: frozen
into it, new ones would be ignored.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from typing import Protocol

import torch
from torch import Tensor, nn

from crad.models.operations import CountedOperations
from crad.randomness import forked_generators

COMPILE_SECONDS = 60.0  # for one architecture in one process; measured 10-46
SAVED = 0.1  # share of the plain module's time; measured 0.07-0.20
FLOPS_PER_SECOND, FLOPS_PER_SECOND_ELSEWHERE = 1e11, 1e13  # of the plain module: one CPU thread, other devices


class Forward(Protocol):
    """A module and how to run it: inputs [B,D,H,W] to logits [B,C]."""

    model: nn.Module

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return logits of one chunk."""
        ...


def is_worth_compiling(*, flops_per_sample: float, samples: int, device: str) -> bool:
    """Return whether compiling saves a run more time than it takes."""
    rate = FLOPS_PER_SECOND if device == "cpu" else FLOPS_PER_SECOND_ELSEWHERE
    return flops_per_sample * samples / rate * SAVED > COMPILE_SECONDS


class SharedModule:
    """One architecture's compiled module; the snapshots' weights are loaded into it in turn."""

    def __init__(self, *, device: str, samples: int, batch: int) -> None:
        self._device, self._samples, self._batch = device, samples, batch
        self._shape: torch.Size | None = None  # of a full chunk
        self._compiled: Forward | None = None
        self._loaded: weakref.ref[Forward] | None = None

    def run(self, plain: Forward, inputs: Tensor) -> Tensor:
        """Return the plain forward's logits.

        Compiled for full chunks, as it is for others, so nothing compiles again.
        """
        if self._shape is None and len(inputs) == self._batch:
            self._shape, self._compiled = inputs.shape, self._try(plain, torch.zeros_like(inputs))
        if self._compiled is None or inputs.shape != self._shape:
            return plain(inputs)
        if self._loaded is None or self._loaded() is not plain:
            for ours, its in zip(_tensors(self._compiled), _tensors(plain), strict=True):
                ours.copy_(its)
            self._loaded = weakref.ref(plain)
        return self._compiled(inputs)

    def _try(self, plain: Forward, zeros: Tensor) -> Forward | None:
        # On zeros and copies, random state put back: it must not matter which process is the one to try.
        with warnings.catch_warnings(), forked_generators(self._device):
            warnings.simplefilter("ignore")
            try:
                flops = _flops_per_sample(copy.deepcopy(plain), zeros[:2])
                if is_worth_compiling(flops_per_sample=flops, samples=self._samples, device=self._device):
                    return _compile(copy.deepcopy(plain), zeros, needs_cxx=self._device == "cpu")
            except Exception:  # noqa: S110 - no compiler, no headers, more than one graph: it runs as it is
                pass
        return None


def _flops_per_sample(plain: Forward, inputs: Tensor) -> float:
    versions = [tensor._version for tensor in _tensors(plain)]
    with CountedOperations() as counted:
        plain(inputs)
    is_pure = versions == [tensor._version for tensor in _tensors(plain)]  # else its buffers must stay its own
    return counted.flops / len(inputs) if is_pure else 0.0


def _compile(plain: Forward, inputs: Tensor, *, needs_cxx: bool) -> Forward:
    from torch._dynamo import config as tracing
    from torch._inductor import config as building
    from torch._inductor.cpp_builder import get_cpp_compiler

    if needs_cxx:
        get_cpp_compiler()  # raises if there is none
    plain.model = torch.compile(plain.model, fullgraph=True, dynamic=False)  # type: ignore[assignment]
    # Compiled code is found again by others of the same class: see their hooks, and let earlier runs not count.
    rules = {"skip_nnmodule_hook_guards": False, "recompile_limit": 2**30, "accumulated_recompile_limit": 2**30}
    with tracing.patch(rules), building.patch(compile_threads=1, freezing=False):
        plain(inputs)
    with tracing.patch(error_on_recompile=True):  # raises if its forward left something behind for the next call
        plain(inputs)
    return plain


def _tensors(forward: Forward) -> list[Tensor]:
    return [*forward.model.parameters(), *forward.model.buffers()]
