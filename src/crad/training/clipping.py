"""Gradients shortened to a norm, and how often that happened: a method whose steps are shortened more learns slower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from crad.config import ClipNorm

# What steps are for: local epochs, towards labels, targets or both; common images; DFML's models at their aggregator.
LOCAL, DIGEST, MUTUAL = "local", "digest", "mutual"


@dataclass(frozen=True)
class ClippedSteps:
    """How many steps were taken, and of how many the gradient was longer than the norm."""

    steps: int
    clipped: int

    def __add__(self, other: ClippedSteps) -> ClippedSteps:
        """Return both together."""
        return ClippedSteps(self.steps + other.steps, self.clipped + other.clipped)


@dataclass
class Clipper:
    """Clips the gradients of steps to a norm, and counts them by what they are for."""

    clip_norm: ClipNorm  # the L2 norm of all gradients of a model together; "none": they are not clipped
    _norms: dict[str, list[Tensor]] = field(default_factory=dict, init=False)
    _unlimited: dict[str, int] = field(default_factory=dict, init=False)

    def clip(self, model: nn.Module, purpose: str) -> None:
        """Shorten the model's gradients to the norm, if they are longer; nothing is read: no GPU is waited for."""
        if isinstance(self.clip_norm, str):
            self._unlimited[purpose] = self._unlimited.get(purpose, 0) + 1
            return
        norm = nn.utils.clip_grad_norm_(model.parameters(), self.clip_norm)
        self._norms.setdefault(purpose, []).append(norm.detach())

    def counts(self) -> dict[str, ClippedSteps]:
        """Return the steps so far by what they are for; norms on a device are fetched at once."""
        counted = {purpose: ClippedSteps(steps, 0) for purpose, steps in self._unlimited.items()}
        for purpose, norms in self._norms.items():
            assert not isinstance(self.clip_norm, str), "norms are kept where there is a limit"
            counted[purpose] = ClippedSteps(len(norms), int((torch.stack(norms) > self.clip_norm).sum()))
        return counted


def added(before: Mapping[str, ClippedSteps], now: Mapping[str, ClippedSteps]) -> dict[str, ClippedSteps]:
    """Return the steps of both together, by what they are for."""
    nothing = ClippedSteps(0, 0)
    return {purpose: before.get(purpose, nothing) + now.get(purpose, nothing) for purpose in {**before, **now}}
