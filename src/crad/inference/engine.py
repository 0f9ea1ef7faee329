"""Running frozen peers on the student's own inputs (Eqs. 1-2).

A teacher's output on a sample is needed once per epoch, so it is computed teacher by teacher over a block of the
shard before the student trains on that block: the same augmented tensors, one teacher in memory at a time.

Shapes: K teachers, B samples, C classes, D channels, H and W the sides of the image.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from crad.device import is_out_of_memory, stopwatch
from crad.errors import ConfigError
from crad.inference.compiled import SharedModule
from crad.inference.folding import Pairs, find_pairs, fold_norms
from crad.inference.fused import FusedPlan, fill_slots, is_fusible, make_fused_plan
from crad.inference.winograd import Workspace

TEACHER_BATCH = 64  # larger ones are slower on a CPU
GPU_TEACHER_BATCH = 1024  # a small batch leaves a GPU waiting for the next launch

Run = Callable[[Tensor], Tensor]  # inputs [B,D,H,W] to logits [B,C]
Plans = dict[str, FusedPlan | None]  # by architecture; None: it has no plan and runs as it is
Teacher = Callable[[], Run]  # gives the frozen teacher, ready to run


class HasBytes(Protocol):
    """Something that knows how much memory it holds."""

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        ...


def soft_predictions(teachers: Sequence[Teacher], inputs: Tensor, *, temperature: float) -> Tensor:
    """Return the softened class probabilities of every teacher on the same inputs, [K,B,C]. Eq. 2."""
    with torch.no_grad():
        return torch.stack([torch.softmax(teacher()(inputs) / temperature, dim=1) for teacher in teachers])


class TeacherEngine:
    """Prepares snapshots to run fast on one device. For one thread at a time: its teachers share scratch memory."""

    def __init__(
        self, *, device: str, precision: str = "fp32", expected_samples: int = 0, plans: Plans | None = None
    ) -> None:
        """Set up; `expected_samples`: how many inputs one architecture's teachers will see, 0: too few for compiling.

        `plans`: what engines share that run the same architectures on images of one size.
        """
        check_precision(precision, device)
        self._device, self._precision, self._samples = device, precision, expected_samples
        self._plans: Plans = {} if plans is None else plans
        self._shared: dict[str, SharedModule] = {}
        self._pairs: dict[str, Pairs] = {}
        self._workspace = Workspace()

    def prepare(self, model: nn.Module, *, key: str) -> PreparedTeacher:
        """Return the model as it is now, ready to run; `key` names the architecture, whose plan is made once."""
        if model.training:
            model.eval()
        plan = self._plan_for(model, key) if self._device == "cpu" and is_fusible(model) else None
        if plan is None:
            plain = PlainForward(
                model, device=self._device, precision=self._precision, pairs=self._pairs_for(model, key)
            )
            held = list(plain.model.state_dict().values())
            forward: Run = partial(self._shared_for(key).run, plain) if self._samples else plain
            return PreparedTeacher(forward, held, batch=self._batch)
        slots, packed = fill_slots(plan, model, self._workspace)
        return PreparedTeacher(partial(plan.forward, slots), packed, batch=self._batch)

    @property
    def _batch(self) -> int:
        return TEACHER_BATCH if self._device == "cpu" else GPU_TEACHER_BATCH

    def _shared_for(self, key: str) -> SharedModule:
        if key not in self._shared:
            self._shared[key] = SharedModule(device=self._device, samples=self._samples, batch=self._batch)
        return self._shared[key]

    def _pairs_for(self, model: nn.Module, key: str) -> Pairs:
        if self._device == "cpu":
            return ()
        if key not in self._pairs:
            self._pairs[key] = find_pairs(model)
        return self._pairs[key]

    def _plan_for(self, model: nn.Module, key: str) -> FusedPlan | None:
        if key not in self._plans:
            try:
                self._plans[key] = make_fused_plan(model)
            except Exception:  # UnplannableError, or whatever a user's module does when it is traced: it runs as it is
                self._plans[key] = None
        return self._plans[key]


def check_precision(precision: str, device: str) -> None:
    """Refuse numbers that the device cannot compute with."""
    known = known_precisions(device)
    if precision not in known:
        raise ConfigError(f"precision {precision!r} is not available on {device!r}; available: {', '.join(known)}")


def known_precisions(device: str) -> tuple[str, ...]:
    """Return the numbers that a device computes with; emulated, as on GPUs before Ampere, bf16 only takes longer."""
    has_bf16 = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
    return ("fp32", "bf16") if has_bf16 else ("fp32",)


class PreparedTeacher:
    """One snapshot, ready to run; it shares no memory with the model it was made from."""

    def __init__(self, forward: Run, held: Sequence[HasBytes], *, batch: int) -> None:
        self._forward, self._held, self._batch = forward, held, batch
        self.nbytes = self._weigh()  # of weights held; an architecture's first teacher knows after its first call

    def _weigh(self) -> int:
        return sum(one.nbytes for one in self._held)

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        """Return logits [B,C]. Eq. 1."""
        with stopwatch.part("teachers"):
            logits_BC = torch.cat([self._forward(chunk) for chunk in torch.split(inputs, self._batch)])
        self.nbytes = self._weigh()
        return logits_BC


class PlainForward:
    """A copy of the module itself, run channels-last: for other devices and for what has no plan.

    `pairs`: the batch norms to fold.
    """

    def __init__(self, model: nn.Module, *, device: str, precision: str, pairs: Pairs = ()) -> None:
        copied = copy.deepcopy(model)
        fold_norms(copied, pairs)
        self.model = copied.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._device, self._layout = device, torch.channels_last
        self._is_bf16 = precision == "bf16"

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return logits [B,C] of one chunk."""
        try:
            return self._logits(inputs)
        except RuntimeError as error:
            if self._layout == torch.contiguous_format or is_out_of_memory(error):
                raise
            self._layout = torch.contiguous_format  # some modules take views that channels-last maps do not have
            self.model.to(memory_format=torch.contiguous_format)
            return self._logits(inputs)

    def _logits(self, inputs: Tensor) -> Tensor:
        layout = self._layout if inputs.dim() == 4 else torch.contiguous_format
        # A clone, because the module may write to its input.
        moved = to_device(inputs, self._device).clone(memory_format=layout)
        if not self._is_bf16:
            logits_BC: Tensor = self.model(moved)
            return logits_BC
        with torch.autocast(torch.device(self._device).type, torch.bfloat16):
            logits_BC = self.model(moved)
        return logits_BC.float()


def to_device(inputs: Tensor, device: str) -> Tensor:
    """Move inputs to the device; from pinned memory to a GPU, so that copying and computing overlap."""
    if device.startswith("cuda") and inputs.device.type == "cpu":
        return inputs.pin_memory().to(device, non_blocking=True)
    return inputs.to(device)
