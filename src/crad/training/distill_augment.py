"""On which inputs student and teachers meet: the student's own samples as they are, mixed, or changed more strongly.

Both see the same tensor. Every second sample is changed, so that the others can still be counted as what they are.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from crad.config import DistillAugment
from crad.randomness import torch_stream
from crad.training.epoch import Block

LEAST_SHARE = 0.5  # of a mixed sample's own image
SQUARE = 0.5  # side of the grey square in a strongly changed image, as a share of the image's
BRIGHTNESS, CONTRAST = 0.4, 0.4  # at most so many standard deviations up or down; at most such a factor less or more


def augment_block(block: Block, distill_augment: DistillAugment, *, seed: int, purpose: tuple[str | int, ...]) -> Block:
    """Return the block as student and teachers see it; `same` gives it back untouched."""
    if distill_augment == "same":
        return block
    generator = torch_stream(seed, *purpose, distill_augment)
    is_changed = torch.arange(len(block.labels)) % 2 == 1
    return (mixed if distill_augment == "mixup" else strongly_changed)(block, is_changed, generator)


def mixed(block: Block, is_changed: Tensor, generator: torch.Generator) -> Block:
    """Mix the changed samples with another of the block; half of such an image or more stays its own."""
    device, size = block.labels.device, len(block.labels)
    partner = torch.randperm(size, generator=generator).to(device)
    drawn = LEAST_SHARE + (1 - LEAST_SHARE) * torch.rand(size, generator=generator)
    share = torch.where(is_changed, drawn, 1.0).to(device)
    weight = share.view(-1, 1, 1, 1)
    inputs = weight * block.inputs + (1 - weight) * block.inputs[partner]
    return replace(
        block,
        inputs=inputs.contiguous(memory_format=torch.channels_last),
        mixed_with=block.labels[partner],
        share=share,
        is_changed=is_changed.to(device),
    )


def strongly_changed(block: Block, is_changed: Tensor, generator: torch.Generator) -> Block:
    """Give changed samples another brightness and contrast per channel and a grey square somewhere."""
    device, inputs = block.inputs.device, block.inputs
    size, channels, height, width = inputs.shape
    shift = BRIGHTNESS * (2 * torch.rand(size, channels, 1, 1, generator=generator) - 1)
    scale = 1 + CONTRAST * (2 * torch.rand(size, channels, 1, 1, generator=generator) - 1)
    centre = torch.rand(2, size, generator=generator) * torch.tensor([[height], [width]])
    reach = torch.tensor([[height], [width]]) * SQUARE / 2
    rows = (torch.arange(height) - centre[0, :, None]).abs() < reach[0]
    columns = (torch.arange(width) - centre[1, :, None]).abs() < reach[1]
    is_grey = (rows[:, :, None] & columns[:, None, :]).unsqueeze(1).to(device)
    changed = torch.where(is_grey, 0.0, inputs * scale.to(device) + shift.to(device))
    chosen = torch.where(is_changed.view(-1, 1, 1, 1).to(device), changed, inputs)
    return replace(block, inputs=chosen.contiguous(memory_format=torch.channels_last), is_changed=is_changed.to(device))
