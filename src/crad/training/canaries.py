"""Canaries of a privacy audit: made-up records whose gradients are known, in the data or not by a coin.

Shapes: K canaries, B of them at once, W weights.

A canary's gradient points along one weight of its own, up or down, and is far longer than the clipping norm: the
production step clips it like any record's. Whether it was there shows in how far that weight has moved, if anywhere;
and, to one who knows all records and takes their part out, in the noised sums of all steps, which the account takes for
published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crad.errors import ConfigError
from crad.randomness import torch_stream

LENGTH = 10.0  # of a canary's gradient before it is clipped, in clipping norms
# In a peer's memory, of every canary: its weight before training, its coin, how far the weight has moved, and how far
# the released sums of all steps have, without the records' part.
FIRST, COINS, SCORES = "canaries.first", "canaries.coins", "canaries.scores"
STEP_SCORES = "canaries.step_scores"


@dataclass(frozen=True)
class Canaries:
    """Each canary's weight, by its place among all weights in a row, the sign of its gradient, and its coin."""

    places_K: Tensor
    signs_K: Tensor
    is_included_K: Tensor

    def __len__(self) -> int:
        return len(self.places_K)

    def __getitem__(self, which: Tensor) -> Canaries:
        return Canaries(self.places_K[which], self.signs_K[which], self.is_included_K[which])

    def included(self) -> Canaries:
        """Return those that are among the records."""
        return self[self.is_included_K]

    def weights_of(self, model: nn.Module) -> Tensor:
        """Return the model's weights at the canaries' places, [K]."""
        row = torch.cat([one.detach().flatten() for one in model.parameters() if one.requires_grad])
        return row[self.places_K.to(row.device)].cpu()

    def scores(self, model: nn.Module, first_K: Tensor) -> Tensor:
        """Return how far the weights have moved against the canaries' gradients, as one who was included moves them."""
        return self.signs_K * (first_K.cpu() - self.weights_of(model))

    def step_scores(self, released_W: Tensor) -> Tensor:
        """Return how far one step's released sum, all weights in a row, goes along the canaries' gradients, [K]."""
        return self.signs_K * released_W[self.places_K.to(released_W.device)].cpu()


def draw_canaries(
    model: nn.Module, count: int, *, name: str, seed: int, purpose: tuple[str | int, ...] = ()
) -> Canaries:
    """Draw a weight of its own, a sign and a coin for every canary."""
    weights = sum(one.numel() for one in model.parameters() if one.requires_grad)
    if count > weights:
        raise ConfigError(f"canaries = {count}: model {name!r} has {weights} weights, and each takes one of its own")

    def generator(word: str) -> torch.Generator:
        return torch_stream(seed, *purpose, "canaries", word)

    return Canaries(
        torch.randperm(weights, generator=generator("places"))[:count],
        torch.randint(0, 2, (count,), generator=generator("signs")) * 2.0 - 1.0,
        torch.rand(count, generator=generator("coins")) < 0.5,
    )


def canary_gradients(
    drawn: Canaries, weights: Mapping[str, Tensor], *, max_norm: float, at_once: int
) -> Iterator[dict[str, Tensor]]:
    """Yield the gradients of canaries as those of samples come: for every weight a tensor [B, ...], not yet clipped."""
    for start in range(0, len(drawn), at_once):
        some, before, gradients = drawn[torch.arange(start, min(start + at_once, len(drawn)))], 0, {}
        for name, weight in weights.items():
            here = ((some.places_K >= before) & (some.places_K < before + weight.numel())).nonzero().flatten()
            one = torch.zeros(len(some), weight.numel())
            one[here, some.places_K[here] - before] = LENGTH * max_norm * some.signs_K[here]
            gradients[name] = one.reshape(len(some), *weight.shape).to(weight)
            before += weight.numel()
        yield gradients
