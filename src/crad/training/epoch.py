"""One local epoch: blocks of the shard in a seeded order, and steps over their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from crad.data.preprocessing import Preprocessor, SampleSet
from crad.device import stopwatch
from crad.errors import ConfigError
from crad.models import FittedModule
from crad.randomness import stream, torch_stream
from crad.training.canaries import Canaries
from crad.training.clipping import LOCAL, Clipper
from crad.training.losses import BatchLabels, Loss, WeighsClasses

BLOCK_BYTES = 256 * 2**20  # of inputs held at once; a shard is usually one block


@dataclass(frozen=True)
class Block:
    """A stretch of the epoch: augmented inputs and labels in the order the student will see them."""

    inputs: Tensor
    labels: Tensor
    mixed_with: Tensor | None = None  # labels of what was mixed in, where something was
    share: Tensor | None = None  # of each sample's own image; one where nothing was mixed in
    is_changed: Tensor | None = None  # which samples are not what was photographed; None: none
    is_labelled: Tensor | None = None  # which samples have a label; None: every one
    epoch: int = 0  # which pass of the round over the shard it belongs to
    seed: int = 0  # for a model that draws while it is fitted to the block
    canaries: Canaries | None = None  # of a privacy audit that were drawn with the samples
    batch_labels: BatchLabels = field(init=False)  # the labels as a loss takes them

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "batch_labels", BatchLabels(self.labels, self.mixed_with, self.share, self.is_labelled)
        )


@dataclass
class LossMeter:
    """Running means of the losses over the samples of an epoch."""

    samples: int = 0
    losses: dict[str, list[tuple[Tensor, int]]] = field(default_factory=dict)  # of every batch, and its size

    def add(self, loss: Loss, samples: int) -> None:
        """Count one batch; nothing is read, so a GPU need not be waited for."""
        self.samples += samples
        parts = {"total": loss.total, "cross_entropy": loss.cross_entropy, "distillation": loss.distillation}
        for name, part in {**parts, **loss.parts}.items():
            self.losses.setdefault(name, []).append((part.detach(), samples))

    def means(self) -> dict[str, float]:
        """Return the mean per sample of every part, summed in double precision in the order of the batches."""
        return {name: weighed_sum(batches) / max(1, self.samples) for name, batches in self.losses.items()}


def weighed_sum(batches: Sequence[tuple[Tensor, int]]) -> float:
    """Return the sum of numbers times sizes; what lies on a device is fetched at once."""
    if not batches:
        return 0.0
    numbers = fetched([number for number, _ in batches])
    return sum_in_turn(number * size for number, (_, size) in zip(numbers, batches, strict=True))


def sum_in_turn(numbers: Iterable[float]) -> float:
    """Return the sum, one number after the other; Python's own rounds otherwise from 3.12 on."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def fetched(numbers: Sequence[Tensor]) -> list[float]:
    """Return numbers from a device, all in one copy."""
    values: list[float] = torch.stack([number.reshape(()) for number in numbers]).tolist() if numbers else []
    return values


def epoch_blocks(
    shard: SampleSet,
    *,
    preprocessor: Preprocessor,
    batch_size: int,
    seed: int,
    purpose: tuple[str | int, ...],
    sample_values: int = 0,
    epoch: int = 0,
    is_whole: bool = False,
) -> Iterator[Block]:
    """Yield the shard once, shuffled and augmented, in blocks of whole batches that bound the memory.

    `sample_values` is how many floats the caller keeps per sample beside the inputs, say K x C teacher outputs.
    `is_whole`: the shard is one block, whatever its size, for a model that is fitted to all of it at once.
    """
    order = torch.randperm(len(shard.labels), generator=torch_stream(seed, *purpose, "shuffle")).to(shard.labels.device)
    # Augmented as a whole: where the blocks are cut must not change what a method sees.
    images = shard.samples[order]
    if preprocessor.augmentation != "none":
        images = preprocessor.augment(images, generator=torch_stream(seed, *purpose, "augment"))
    labels = shard.labels[order]
    bytes_per_sample = 4 * max(shard.samples.shape[1:].numel(), sample_values)
    step = batch_size * max(1, BLOCK_BYTES // (bytes_per_sample * batch_size))
    step = max(step, len(labels)) if is_whole else step
    fit_seed = int(stream(seed, *purpose, "fit").integers(2**31)) if is_whole else 0
    for start in range(0, len(labels), step):
        where = slice(start, start + step)
        yield Block(preprocessor.inputs(images[where]), labels[where], epoch=epoch, seed=fit_seed)


def train_on_block(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    block: Block,
    *,
    batch_size: int,
    clipper: Clipper,
    loss_of: Callable[[Tensor, slice], Loss],
    meter: LossMeter,
) -> None:
    """Take steps over the batches of a block; `loss_of(logits, where)` scores the samples at `where` in it.

    A model that is fitted in one call is fitted to what the loss asks for in the whole block.
    """
    if isinstance(model, FittedModule):
        _fit_to_block(model, block, batch_size=batch_size, loss_of=loss_of, meter=meter)
        return
    model.train()
    for start in range(0, len(block.labels), batch_size):
        where = slice(start, min(start + batch_size, len(block.labels)))
        if where.stop - where.start < 2:
            return  # batch norm needs two samples
        with stopwatch.part("student"):
            loss = loss_of(model(block.inputs[where]), where)
            optimizer.zero_grad(set_to_none=True)
            loss.total.backward()  # type: ignore[no-untyped-call]
            clipper.clip(model, LOCAL)
            optimizer.step()
            meter.add(loss, where.stop - where.start)


@torch.no_grad()
def _fit_to_block(
    model: FittedModule, block: Block, *, batch_size: int, loss_of: Callable[[Tensor, slice], Loss], meter: LossMeter
) -> None:
    """Fit a model to a block; the losses that are counted are those that it has afterwards."""
    asked: object = loss_of
    if not isinstance(asked, WeighsClasses):
        raise ConfigError(
            f"{type(model).__name__} is fitted to weighed labels, and this method has a loss of its own: choose "
            "networks, or a method that learns from labels and one target, such as crad"
        )
    model.eval()
    with stopwatch.part("student"):
        num_classes = model(block.inputs[:1]).shape[1]
        model.fit(block.inputs, asked.class_mass(num_classes), seed=block.seed)
        for start in range(0, len(block.labels), batch_size):
            where = slice(start, min(start + batch_size, len(block.labels)))
            meter.add(loss_of(model(block.inputs[where]), where), where.stop - where.start)
