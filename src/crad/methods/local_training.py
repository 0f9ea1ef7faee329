"""The training loop that every method shares: local epochs over the own shard, with a loss of the method's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from crad.config import DistillAugment
from crad.federation.method import RoundContext
from crad.federation.peer import Peer
from crad.models import FittedModule
from crad.training.distill_augment import augment_block
from crad.training.epoch import Block, LossMeter, epoch_blocks, train_on_block
from crad.training.losses import Loss
from crad.training.private_step import check_private, poisson_blocks, train_privately_on_block

BlockLoss = Callable[[Tensor, slice], Loss]  # logits of a batch, and where in the block it stands


def train_epochs(
    peer: Peer,
    context: RoundContext,
    *,
    loss_for: Callable[[Block], BlockLoss],
    distill_augment: DistillAugment = "same",
    sample_values: int = 0,
    epochs: int | None = None,
    words: tuple[str | int, ...] = (),
) -> dict[str, float]:
    """Train the peer's model for its local epochs and return the mean losses.

    `loss_for` is called once per block, before the student sees it; the other settings are those of `local_blocks`.
    """
    meter = LossMeter()
    blocks = local_blocks(
        peer, context, distill_augment=distill_augment, sample_values=sample_values, epochs=epochs, words=words
    )
    for block in blocks:
        train_peer(peer, block, loss_for(block), meter)
    return meter.means()


def local_blocks(
    peer: Peer,
    context: RoundContext,
    *,
    distill_augment: DistillAugment = "same",
    sample_values: int = 0,
    epochs: int | None = None,
    words: tuple[str | int, ...] = (),
) -> Iterator[Block]:
    """Yield the blocks of a peer's local epochs; before a student learns from one is the place to run teachers.

    Batches and augmentation depend on (seed, peer, round) alone, so every method sees the same ones; `words` name
    other epochs than the round's usual ones, `distill_augment` says how samples are changed before anybody sees them.
    A model that is fitted in one call has one epoch, in one block: a second fit would forget the first.
    """
    experiment, is_fitted = peer.experiment, isinstance(peer.model, FittedModule)
    round_purpose = context.purpose(peer, *words)
    if (plan := peer.context.privacy) is not None:
        check_private(peer.model, name=peer.architecture.id)
        yield from poisson_blocks(
            peer.train,
            preprocessor=peer.data.preprocessor,
            plan=plan,
            secret=peer.context.noise_seed,
            purpose=(*round_purpose, *peer.learned_from),
            canaries=peer.canaries,
            draws=peer.context.draws,
        )
        return
    planned = experiment.local_epochs if epochs is None else epochs
    for epoch in range(min(planned, 1) if is_fitted else planned):
        purpose = (*round_purpose, "epoch", epoch)
        blocks = epoch_blocks(
            peer.train,
            preprocessor=peer.data.preprocessor,
            batch_size=experiment.batch_size,
            seed=experiment.seed,
            purpose=purpose,
            sample_values=sample_values,
            epoch=epoch,
            is_whole=is_fitted,
        )
        for number, drawn in enumerate(blocks):
            of_block = (*purpose, "block", number)
            if distill_augment == "same":
                yield drawn
                continue
            yield augment_block(
                drawn,
                distill_augment,
                preprocessor=peer.data.preprocessor,
                seed=experiment.seed,
                purpose=of_block,
            )


def train_peer(peer: Peer, block: Block, loss_of: BlockLoss, meter: LossMeter) -> None:
    """Train the peer's model on one block, with its own optimiser and the settings of the run.

    In private training a block is one batch, and one step.
    """
    if (plan := peer.context.privacy) is not None:
        peer.note_first_weights()
        train_privately_on_block(
            peer.model,
            peer.optimizer,
            block,
            loss_of=loss_of,
            plan=plan,
            expected_size=peer.expected_batch,
            noise=peer.context.draws(
                peer.context.noise_seed,
                *("peer", peer.acts_as, "round", peer.round_index, "gradient-noise", block.seed),
                *peer.learned_from,
            ),
            meter=meter,
            watch=None if peer.canaries is None else peer.watch_canaries,
        )
        peer.private_steps += 1
        return
    train_on_block(
        peer.model,
        peer.optimizer,
        block,
        batch_size=peer.experiment.batch_size,
        clipper=peer.clipper,
        loss_of=loss_of,
        meter=meter,
    )
