"""What a network is built for, and how: what every module of `crad.models.networks` needs to say which ones it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from crad.models.own_statistics import OwnStatistics

MIN_CHANNELS = 4


@dataclass(frozen=True)
class InputShape:
    """What a network is built for: one sample [in_channels, *image_size], and how many classes it tells apart."""

    num_classes: int
    in_channels: int  # of images; of a table its columns, of texts their tokens
    image_size: tuple[int, ...]  # height and width; of a series its length; nothing for a row
    kind: str = "image"  # of the data; a key of FAMILIES
    columns: tuple[int, ...] = ()  # of a table: how many categories each column has, 0 for numbers
    vocabulary: int = 0  # of texts: how many ids a token may have
    rate: int | None = None  # of recordings: samples a second

    def empty_samples(self, count: int) -> Tensor:
        """Return inputs that hold nothing, to try a network on: numbers, or ids where tokens have some."""
        dtype = torch.int64 if self.vocabulary else torch.float32
        return torch.zeros(count, self.in_channels, *self.image_size, dtype=dtype)

    def random_samples(self, count: int, *, generator: torch.Generator) -> Tensor:
        """Return inputs of which no two are alike, to look into a network with."""
        size = (count, self.in_channels, *self.image_size)
        if self.vocabulary:
            return torch.randint(0, self.vocabulary, size, generator=generator)
        return torch.randn(size, generator=generator)


class Builder(Protocol):
    """Makes an architecture's untrained network from torch's current random state."""

    def __call__(self, shape: InputShape, *, width: float) -> nn.Module:
        """Build a network for such samples; `width` is the factor on the channel counts."""
        ...


class FirstLayer(Protocol):
    """Makes the layer that prepares samples for a network of this name by its owner's statistics."""

    def __call__(self, name: str, shape: InputShape) -> OwnStatistics:
        """Return it unfitted; a name that is not built in is a user's own network."""
        ...


def scale_channels(channels: Sequence[int], width: float) -> list[int]:
    """Multiply channel counts by a width, at least four each."""
    return [max(MIN_CHANNELS, round(count * width)) for count in channels]
