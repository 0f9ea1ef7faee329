"""DFML (Khalil et al. 2024): mutual learning of all participants' models on one participant's data.

Exchanged: every active client's model to the round's aggregator, a client drawn again each round, and back.
Adapted: rebuilt from the paper's description; see docs/methods/dfml.md. The aggregator is a peer like any other and
uses its own private data; it is no server.

Shapes: M models, B samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from crad.errors import SnapshotError
from crad.federation.message import SNAPSHOT, Message, open_message, pack
from crad.federation.method import Before, Learned, MethodSpec, Phase, RoundContext, publish_snapshot
from crad.federation.peer import Peer
from crad.federation.topology import RoundParticipants, Routes
from crad.methods.alone import own_labels
from crad.methods.distillation import PROBED_IMAGES, decode_all, trainable_models
from crad.methods.local_training import train_epochs
from crad.randomness import stream
from crad.training.clipping import MUTUAL, Clipper
from crad.training.digest import logits_on
from crad.training.epoch import Block, epoch_blocks, fetched, sum_in_turn
from crad.training.losses import log_shares, private_cross_entropy, softened_divergence
from crad.training.optimizer import make_optimizer

RETURNED = "returned"
PEAK, KEPT_PEAK = "peak", "kept-peak"  # of this cycle so far; of the last time that alpha was as high, in any cycle
PEAKS = {"cycle": (PEAK,), "kept": (KEPT_PEAK,), "both": (PEAK, KEPT_PEAK)}


class Dfml(MethodSpec):
    """How long they learn together, how models are weighed, over how many rounds alpha goes, which peaks are kept."""

    needs_gradients: ClassVar[bool] = True

    mutual_epochs: Annotated[int, Field(ge=0)] = 1  # 0: models come back as they went, what is left is the private loss
    teacher_weights: Literal["size", "uniform"] = "size"
    period: Annotated[int, Field(ge=2)] = 10
    peaks: Annotated[Literal["cycle", "kept", "both"], Before("cycle")] = "cycle"

    def phases(self) -> Sequence[Phase]:
        """Train privately; send models to the aggregator, which lets them learn from each other; send them back."""
        return [
            Phase("private", learn=_train_reweighted),
            Phase(SNAPSHOT, publish=publish_snapshot, learn=self._learn_mutually, routes=_to_aggregator),
            Phase(
                RETURNED,
                publish=_give_back,
                learn=self._take_back,
                routes=_from_aggregator,
                is_addressed=True,
                has_statistics=False,
            ),
        ]

    def _learn_mutually(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        snapshots, refused = decode_all(messages, context)
        group = {peer.index: peer.model, **trainable_models(peer.context, snapshots, _probe(peer), refused)}
        models = {index: group[index] for index in sorted(group)}
        alpha = alpha_at(context.round_index, period=self.period)
        loss = mutual_epochs(
            peer, models, context, epochs=self.mutual_epochs, alpha=alpha, is_by_size=self.teacher_weights == "size"
        )
        for index, model in models.items():
            if index != peer.index:
                stored = {f"{RETURNED}/{index}/{name}": tensor for name, tensor in model.state_dict().items()}
                peer.memory |= stored
        notes = {"aggregator": True, **({"refused": refused} if refused else {})}
        return Learned({"mutual": loss}, notes=notes)

    def _take_back(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        peer.memory = {name: kept for name, kept in peer.memory.items() if not name.startswith(RETURNED)}
        refused = {}
        for sender, message in messages.items():
            try:
                expected, now = peer.model.state_dict(), context.round_index
                tensors = open_message(message, sender=sender, round_index=now, kind=RETURNED, expected=expected)
                self._load(peer, tensors, sender)
            except SnapshotError as error:
                refused[str(sender)] = str(error)  # it goes on with its own
        alpha = alpha_at(context.round_index, period=self.period)
        self._keep_peaks(peer, context.round_index)
        return Learned(notes={"alpha": alpha, **({"refused": refused} if refused else {})})

    def _load(self, peer: Peer, tensors: Mapping[str, Tensor], sender: int) -> None:
        own = {name: tensor.clone() for name, tensor in peer.model.state_dict().items()}
        peer.model.load_state_dict(tensors)
        if not bool(logits_on(peer.model, _probe(peer)).isfinite().all()):
            peer.model.load_state_dict(own)
            raise SnapshotError(f"peer {sender} sent back a model that gives non-finite predictions")

    def _keep_peaks(self, peer: Peer, round_index: int) -> None:
        """Keep the weights of the highest alpha so far: of this cycle, or of all that the client took part in."""
        cycle, place = divmod(round_index - 1, self.period)
        for name in PEAKS[self.peaks]:
            # Alphas of two cycles are compared for the one that is kept: they must be alike to the last bit.
            now = torch.tensor([cycle, alpha_at(round_index if name == PEAK else place + 1, period=self.period)])
            last = peer.memory.get(name)
            if last is None or (name == PEAK and int(last[0]) != cycle) or bool(now[1] >= last[1].cpu()):
                peer.keep_variant(name)
                peer.memory[name] = now


def _probe(peer: Peer) -> Tensor:
    """Return a few of the own images: enough to see that a model gives numbers."""
    return peer.data.preprocessor.inputs(peer.train.samples[:PROBED_IMAGES])


def alpha_at(round_index: int, *, period: int) -> float:
    """Return the weight of mutual learning: 0 in the first round, 1 half a period later, and down again."""
    return (1 - math.cos(2 * math.pi * (round_index - 1) / period)) / 2


def others_mean(q_MBC: Tensor, weights_M: Tensor) -> Tensor:
    """Return for every model the weighted mean of the other models' predictions, [M,B,C]."""
    weighted_MBC = weights_M[:, None, None] * q_MBC
    rest_M = weights_M.sum() - weights_M
    return (weighted_MBC.sum(dim=0) - weighted_MBC) / rest_M[:, None, None]


def mutual_epochs(
    peer: Peer,
    models: Mapping[int, nn.Module],
    context: RoundContext,
    *,
    epochs: int,
    alpha: float,
    is_by_size: bool,
) -> float:
    """Let all models learn from each other on the peer's training data; return the mean loss."""
    experiment = peer.experiment
    if len(models) < 2:
        return 0.0
    parameters = [float(sum(parameter.numel() for parameter in model.parameters())) for model in models.values()]
    weights_M = torch.tensor(parameters if is_by_size else [1.0] * len(parameters), dtype=torch.float64)
    weights_M = (weights_M / weights_M.sum()).float().to(peer.context.device)
    trained = [
        _Trained(model, make_optimizer(model, experiment, round_index=context.round_index)) for model in models.values()
    ]
    log_share_C = log_shares(peer.train.labels, num_classes=peer.num_classes)
    losses, sizes = [], []  # of every model, and of every batch
    for epoch in range(epochs):
        blocks = epoch_blocks(
            peer.train,
            preprocessor=peer.data.preprocessor,
            batch_size=experiment.batch_size,
            seed=experiment.seed,
            purpose=context.purpose(peer, "mutual", epoch),
        )
        for block in blocks:
            for where in _batches(block, experiment.batch_size):
                inputs, labels_B = block.inputs[where], block.labels[where]
                losses += _mutual_step(
                    trained, inputs, labels_B, weights_M, log_share_C, alpha=alpha, clipper=peer.clipper
                )
                sizes.append(len(labels_B))
    total, numbers = 0.0, iter(fetched(losses))
    for size in sizes:
        total += sum_in_turn(next(numbers) for _ in trained) / len(trained) * size
    return total / max(1, sum(sizes))


@dataclass(frozen=True)
class _Trained:
    model: nn.Module
    optimizer: torch.optim.Optimizer


def _mutual_step(
    trained: Sequence[_Trained],
    inputs: Tensor,
    labels_B: Tensor,
    weights_M: Tensor,
    log_share_C: Tensor,
    *,
    alpha: float,
    clipper: Clipper,
) -> list[Tensor]:
    """Take one step of every model, towards the others' outputs before the step; return their losses."""
    logits = [one.model.train()(inputs) for one in trained]
    with torch.no_grad():
        targets_MBC = others_mean(torch.softmax(torch.stack(logits), dim=2), weights_M)
    losses = []
    for one, logits_BC, target_BC in zip(trained, logits, targets_MBC, strict=True):
        private = private_cross_entropy(logits_BC, labels_B, log_share_C)
        mutual = softened_divergence(logits_BC, target_BC, temperature=1.0)
        loss = (1 - alpha) * private + alpha * mutual
        one.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clipper.clip(one.model, MUTUAL)
        one.optimizer.step()
        losses.append(loss.detach())
    return losses


def _batches(block: Block, batch_size: int) -> list[slice]:
    starts = range(0, len(block.labels), batch_size)
    slices = [slice(start, min(start + batch_size, len(block.labels))) for start in starts]
    return [one for one in slices if one.stop - one.start >= 2]  # batch norm needs two samples


def _train_reweighted(peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
    log_share_C = log_shares(peer.train.labels, num_classes=peer.num_classes)
    return Learned(train_epochs(peer, context, loss_for=partial(own_labels, log_prior_C=log_share_C)))


def _give_back(peer: Peer, context: RoundContext) -> Message | None:
    prefix = f"{RETURNED}/{context.receiver}/"
    tensors = {name.removeprefix(prefix): kept for name, kept in peer.memory.items() if name.startswith(prefix)}
    if not tensors:
        return None  # what it sent was refused
    return pack(tensors, kind=RETURNED, peer=peer.index, round_index=context.round_index)


def _aggregator(participants: RoundParticipants) -> int:
    rng = stream(participants.context.experiment.seed, "round", participants.round_index, "aggregator")
    return participants.clients[int(rng.integers(len(participants.clients)))]


def _to_aggregator(participants: RoundParticipants) -> Routes:
    aggregator = _aggregator(participants)
    return {aggregator: tuple(index for index in participants.clients if index != aggregator)}


def _from_aggregator(participants: RoundParticipants) -> Routes:
    aggregator = _aggregator(participants)
    return {index: () if index == aggregator else (aggregator,) for index in participants.clients}
