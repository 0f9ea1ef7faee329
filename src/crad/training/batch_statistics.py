"""How far a batch is from what a network's batch norms have seen in training: mean and variance of every channel.

Shapes: B samples, D channels, then the sides of an image, the steps of a series, or nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class BatchMoments(torch.autograd.Function):
    """Mean and variance per channel of maps [B,D,...]; several times as fast as autograd's own on a CPU."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401  # torch's own
        """Return mean and variance, [D] and [D]."""
        dims = (0, *range(2, maps.dim()))
        mean_D = maps.mean(dim=dims)
        ctx.save_for_backward(maps, mean_D)
        return mean_D, maps.square().mean(dim=dims) - mean_D.square()

    @staticmethod
    def backward(ctx: Any, grad_mean_D: Tensor, grad_variance_D: Tensor) -> Tensor:  # noqa: ANN401
        """Return 1/n for the mean, 2 (x - mean) / n for the variance."""
        maps, mean_D = ctx.saved_tensors
        shape = (1, -1, *[1] * (maps.dim() - 2))
        slope_D = 2 * grad_variance_D * maps.shape[1] / maps.numel()
        offset_D = grad_mean_D * maps.shape[1] / maps.numel() - slope_D * mean_D
        return torch.addcmul(offset_D.view(shape), slope_D.view(shape), maps)


def has_batch_statistics(model: nn.Module) -> bool:
    """Tell whether a network keeps running statistics of batches."""
    return bool(_norms(model))


@contextmanager
def watched_statistics(model: nn.Module) -> Iterator[list[Tensor]]:
    """Watch, while the model runs, how far each batch norm's mean and variance are from the running ones (L2)."""
    distances: list[Tensor] = []

    def watch(norm: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, BATCH_NORMS)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean_D, variance_D = BatchMoments.apply(arguments[0])  # type: ignore[no-untyped-call]
        distances.append((mean_D - norm.running_mean).norm() + (variance_D - norm.running_var).norm())

    hooks = [norm.register_forward_pre_hook(watch) for norm in _norms(model)]
    try:
        yield distances
    finally:
        for hook in hooks:
            hook.remove()


def _norms(model: nn.Module) -> list[nn.Module]:
    return [one for one in model.modules() if isinstance(one, BATCH_NORMS) and one.running_mean is not None]
