"""An exponential mean of a model's weights over the rounds: steadier than the model, and published in its place.

With the share s that the past keeps, the mean over rounds 1 to t is

    m_t = sum_i s^(t-i) w_i / sum_i s^(t-i),  or  m_t = m_(t-1) + (1 - s) / (1 - s^t) (w_t - m_(t-1)):

the first model counts like every other and not, as in a mean that begins with it, 1 / (1 - s) times as much.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def newest_share(share: float, rounds: int) -> float:
    """Return what the newest of so many models has of their mean: all of it in round 1, 1 - share in the end."""
    return (1 - share) / (1 - share**rounds)


@torch.no_grad()
def average_weights(model: nn.Module, before: Mapping[str, Tensor], *, share: float, rounds: int) -> None:
    """Turn a model's weights into their mean with those of the rounds before; buffers stay the model's own."""
    for name, weight in model.named_parameters():
        weight.copy_(torch.lerp(before[name].to(weight), weight, newest_share(share, rounds)))
