"""On which inputs student and teachers meet: the student's own samples as they are, mixed, in parts, or changed
more strongly.

Both see the same tensor. Every second sample is changed, so that the others can still be counted as what they are.
"""

from __future__ import annotations

from collections.abc import Callable
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
    return CHANGES[distill_augment](block, is_changed, generator, preprocessor)


def mixed(block: Block, is_changed: Tensor, generator: torch.Generator, preprocessor: Preprocessor) -> Block:
    """Mix the changed samples with another of the block; half of such a sample or more stays its own."""
    partner, share = _partners(block, is_changed, generator)
    return replace(
        block,
        inputs=preprocessor.mix(block.inputs, block.inputs[partner], share, generator=generator),
        mixed_with=block.labels[partner],
        share=share,
        is_changed=is_changed.to(block.labels.device),
    )


def cut_in(block: Block, is_changed: Tensor, generator: torch.Generator, preprocessor: Preprocessor) -> Block:
    """Put a piece of another sample of the block into the changed ones; about half or more stays a sample's own."""
    partner, share = _partners(block, is_changed, generator)
    inputs, own = preprocessor.cut(block.inputs, block.inputs[partner], share, generator=generator)
    return replace(
        block,
        inputs=inputs,
        mixed_with=block.labels[partner],
        share=own,
        is_changed=is_changed.to(block.labels.device),
    )


def strongly_changed(block: Block, is_changed: Tensor, generator: torch.Generator, preprocessor: Preprocessor) -> Block:
    """Change every second sample as far as its kind allows."""
    return _where_changed(block, preprocessor.change_strongly(block.inputs, generator=generator), is_changed)


def cropped(block: Block, is_changed: Tensor, generator: torch.Generator, preprocessor: Preprocessor) -> Block:
    """Show a part of every second sample in place of the whole."""
    return _where_changed(block, preprocessor.crop(block.inputs, generator=generator), is_changed)


def patched(block: Block, is_changed: Tensor, generator: torch.Generator, preprocessor: Preprocessor) -> Block:
    """Make every second sample of a part of its own and a piece of a part of another."""
    return cut_in(cropped(block, is_changed, generator, preprocessor), is_changed, generator, preprocessor)


CHANGES: dict[str, Callable[[Block, Tensor, torch.Generator, Preprocessor], Block]] = {
    "mixup": mixed,
    "strong": strongly_changed,
    "cutmix": cut_in,
    "crops": cropped,
    "patches": patched,
}


def _partners(block: Block, is_changed: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return with which sample each is mixed, and the share that stays its own: all of it unless it is changed."""
    device, size = block.labels.device, len(block.labels)
    partner = torch.randperm(size, generator=generator).to(device)
    drawn = LEAST_SHARE + (1 - LEAST_SHARE) * torch.rand(size, generator=generator)
    return partner, torch.where(is_changed, drawn, 1.0).to(device)


def _where_changed(block: Block, changed: Tensor, is_changed: Tensor) -> Block:
    inputs, device = block.inputs, block.inputs.device
    where = is_changed.view(-1, *[1] * (inputs.dim() - 1)).to(device)
    return replace(block, inputs=in_usual_layout(torch.where(where, changed, inputs)), is_changed=is_changed.to(device))
