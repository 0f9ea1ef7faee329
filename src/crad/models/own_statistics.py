"""Layers that prepare raw samples by their owner's statistics: buffers, set before the first round, never trained.

They stand first in a network, so that they travel with its weights and a teacher is run on a sample prepared as its
owner would have prepared it (decision 0018).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

MAX_DEVIATIONS = 10.0  # a standardised value further out says no more: an outlier, or another unit


class OwnStatistics(nn.Module):
    """A first layer whose buffers are statistics of its owner's training samples."""

    def fit(self, samples: Tensor) -> None:
        """Take the statistics from training samples."""
        raise NotImplementedError

    def seen_channels(self, in_channels: int) -> int:
        """Return how many channels, or values of a row, a network behind this layer is given."""
        return in_channels


class Prepared(nn.Module):
    """Any network behind the layer that prepares what it sees: one of ours, or a user's own."""

    def __init__(self, layer: OwnStatistics, network: nn.Module) -> None:
        super().__init__()
        self.encoder, self.network = layer, network

    def forward(self, samples: Tensor) -> Tensor:
        """Return logits [B, C]."""
        logits_BC: Tensor = self.network(self.encoder(samples))
        return logits_BC


def fit_own_statistics(model: nn.Module, samples: Tensor) -> None:
    """Fill a network's first layer from its owner's training samples."""
    for layer in _layers(model):
        layer.fit(samples.to(next(layer.buffers()).device))


def set_own_statistics(model: nn.Module, statistics: Mapping[str, Sequence[float]]) -> None:
    """Fill a network's first layer with statistics that were written down, by the names of its buffers."""
    for layer in _layers(model):
        layer.load_state_dict({name: torch.tensor(values) for name, values in statistics.items()})


def has_own_statistics(model: nn.Module) -> bool:
    """Return whether a network prepares its inputs by its owner's statistics."""
    return any(True for _ in _layers(model))


def _layers(model: nn.Module) -> Iterator[OwnStatistics]:
    return (module for module in model.modules() if isinstance(module, OwnStatistics))
