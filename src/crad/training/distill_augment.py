"""On which inputs student and teachers meet: the student's own samples as they are, mixed, or changed more strongly.

Both see the same tensor. Every second sample is changed, so that the others can still be counted as what they are.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from crad.config import DistillAugment
from crad.data.preprocessing import Preprocessor, in_usual_layout
from crad.randomness import torch_stream
from crad.training.epoch import Block

LEAST_SHARE = 0.5  # of a mixed sample's own


def augment_block(
    block: Block,
    distill_augment: DistillAugment,
    *,
    preprocessor: Preprocessor,
    seed: int,
    purpose: tuple[str | int, ...],
) -> Block:
    """Return the block as student and teachers see it; `same` gives it back untouched."""
    if distill_augment == "same":
        return block
    generator = torch_stream(seed, *purpose, distill_augment)
    is_changed = torch.arange(len(block.labels)) % 2 == 1
    change = mixed if distill_augment == "mixup" else strongly_changed
    return change(block, is_changed, generator, preprocessor)


def mixed(block: Block, is_changed: Tensor, generator: torch.Generator, preprocessor: Preprocessor) -> Block:
    """Mix the changed samples with another of the block; half of such a sample or more stays its own."""
    device, size = block.labels.device, len(block.labels)
    partner = torch.randperm(size, generator=generator).to(device)
    drawn = LEAST_SHARE + (1 - LEAST_SHARE) * torch.rand(size, generator=generator)
    share = torch.where(is_changed, drawn, 1.0).to(device)
    return replace(
        block,
        inputs=preprocessor.mix(block.inputs, block.inputs[partner], share, generator=generator),
        mixed_with=block.labels[partner],
        share=share,
        is_changed=is_changed.to(device),
    )


def strongly_changed(block: Block, is_changed: Tensor, generator: torch.Generator, preprocessor: Preprocessor) -> Block:
    """Change every second sample as far as its kind allows."""
    device, inputs = block.inputs.device, block.inputs
    changed = preprocessor.change_strongly(inputs, generator=generator)
    where = is_changed.view(-1, *[1] * (inputs.dim() - 1)).to(device)
    chosen = in_usual_layout(torch.where(where, changed, inputs))
    return replace(block, inputs=chosen, is_changed=is_changed.to(device))
