"""What the methods with common unlabelled images share: publish predictions on them, collect the others', digest.

Shapes: K clients, B images, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from crad.errors import SnapshotError
from crad.federation.message import Message, open_message, pack
from crad.federation.method import Before, MethodSpec, RoundContext
from crad.federation.peer import Peer
from crad.training.digest import DigestLoss, digest, restore_optimizer, store_optimizer
from crad.training.optimizer import lr_factor
from crad.training.uncompiled import uncompiled

PREDICTIONS = "predictions"
DIGEST = "digest"
MAX_LOGIT = 1e6
ROW_TOLERANCE = 1e-3


class DigestSpec(MethodSpec):
    """The settings of a digest."""

    needs_gradients: ClassVar[bool] = True

    digest_lr: Annotated[float, Field(gt=0)] = 2e-4
    digest_batch: Annotated[int, Field(ge=2)] = 128
    digest_epochs: Annotated[int, Field(ge=1)] = 1
    digest_samples: Annotated[int, Field(ge=0), Before(0)] = 0  # a round, whatever the set's size; 0: by digest_epochs

    def epochs_over(self, samples: int) -> int:
        """Return how many epochs a digest of so many samples has: as many as asked for, or to see enough of them."""
        return max(1, math.ceil(self.digest_samples / samples)) if self.digest_samples else self.digest_epochs


def pack_predictions(peer: Peer, values_BC: Tensor, context: RoundContext) -> Message:
    """Pack a client's outputs on the common images, as it sends them."""
    return pack({PREDICTIONS: values_BC}, kind=PREDICTIONS, peer=peer.index, round_index=context.round_index)


def collect_predictions(
    own_BC: Tensor,
    peer: Peer,
    messages: Mapping[int, Message],
    context: RoundContext,
    *,
    fault_of: Callable[[Tensor], str] | None = None,
) -> tuple[dict[int, Tensor], dict[str, str]]:
    """Collect everybody's outputs by client, the own ones among them, in order; and why some were refused.

    `fault_of` says what is wrong with somebody's outputs, or nothing.
    """
    outputs, refused = {peer.index: own_BC}, {}
    for sender, message in messages.items():
        try:
            expected = {PREDICTIONS: own_BC}
            body = open_message(
                message, sender=sender, round_index=context.round_index, kind=PREDICTIONS, expected=expected
            )
            outputs[sender] = body[PREDICTIONS].to(own_BC.device)
            fault = (fault_of or fault_of_logits)(outputs[sender])
            if fault:
                del outputs[sender]
                raise SnapshotError(f"peer {sender} sent predictions {fault}")
        except SnapshotError as error:
            refused[str(sender)] = str(error)
    return {index: outputs[index] for index in sorted(outputs)}, refused


def fault_of_logits(logits_BC: Tensor) -> str:
    """Say if finite numbers are so large that a mean or a loss of them is not."""
    return f"beyond {MAX_LOGIT:g}" if logits_BC.numel() and float(logits_BC.abs().max()) > MAX_LOGIT else ""


def fault_of_probabilities(q_BC: Tensor) -> str:
    """Say if rows are no distributions, as far as floats are."""
    is_fine = bool((q_BC >= 0).all()) and bool(((q_BC.sum(dim=1) - 1).abs() <= ROW_TOLERANCE).all())
    return "" if is_fine else "whose rows are no probabilities"


def digest_targets(
    peer: Peer, inputs: Tensor, target_BC: Tensor, context: RoundContext, *, spec: DigestSpec, loss_of: DigestLoss
) -> float:
    """Draw the peer's model to the targets; its optimiser is not that of the private epochs and goes on next round.

    Its learning rate is the method's own and follows the schedule: else it would outweigh private epochs that fade.
    """
    experiment = peer.experiment
    lr = spec.digest_lr * lr_factor(experiment, context.round_index)
    optimizer = uncompiled(torch.optim.Adam)(peer.model.parameters(), lr=lr)
    restore_optimizer(peer.memory, DIGEST, peer.model, optimizer)
    losses = [
        digest(
            peer.model,
            optimizer,
            inputs,
            target_BC,
            loss_of=loss_of,
            batch_size=spec.digest_batch,
            clipper=peer.clipper,
            seed=experiment.seed,
            purpose=context.purpose(peer, DIGEST, epoch),
        )
        for epoch in range(spec.epochs_over(len(inputs)))
    ]
    store_optimizer(peer.memory, DIGEST, peer.model, optimizer)
    return sum(losses) / len(losses)
