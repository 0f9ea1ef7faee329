"""Peer distillation under an aggregation rule: CRAD, its ablations, Uniform KD and Uncertainty KD.

Paper: CRAD, "Class-wise Reliability-Aware Distillation for Decentralized Heterogeneous Federated Learning".
Exchanged: every active client's snapshot (weights, architecture id, class statistics), to every other active one.
Adapted: nothing; the settled points are in `docs/decisions/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from crad.aggregation import Rule, check_evidence, combine
from crad.federation.message import Message
from crad.federation.method import Learned, Method, Phase, RoundContext
from crad.federation.peer import SNAPSHOT, Peer
from crad.federation.teachers import Snapshot, TeacherShelf
from crad.learning.epoch import Block
from crad.learning.losses import distillation_loss
from crad.learning.teachers import soft_predictions
from crad.methods.alone import train_alone
from crad.methods.training import BlockLoss, train_epochs


def distillation_method(name: str, rule: str | Rule | None = None) -> Method:
    """The method that publishes snapshots and distils from them under a rule; the rule's name is the default."""

    def publish(peer: Peer, context: RoundContext) -> Message:
        return peer.snapshot(context.round_index)

    def learn(peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        return distil(peer, messages, context, rule=name if rule is None else rule)

    return Method(name, phases=(Phase(SNAPSHOT, learn=learn, publish=publish),))


def distil(peer: Peer, messages: Mapping[int, Message], context: RoundContext, *, rule: str | Rule) -> Learned:
    """The local epochs of one student against the frozen snapshots of its peers."""
    if not messages:
        return train_alone(peer, messages, context)  # nobody to learn from: no target, only own labels
    snapshots = [
        context.shelf.decode(message, sender=sender, round_index=context.round_index)
        for sender, message in sorted(messages.items())
    ]
    experiment, trust = peer.world.experiment, TrustMeter()

    def loss_for(block: Block) -> BlockLoss:
        target_BC = make_target(peer, block.inputs, snapshots, context.shelf, rule=rule, trust=trust)
        return lambda logits_BC, where: distillation_loss(
            logits_BC,
            block.labels[where],
            target_BC[where],
            temperature=experiment.temperature,
            distill_weight=experiment.distill_weight,
        )

    losses = train_epochs(peer, context, loss_for=loss_for, sample_values=len(snapshots) * peer.num_classes)
    return Learned(losses, trust={s.peer: row for s, row in zip(snapshots, trust.means(), strict=True)})


def make_target(
    peer: Peer,
    inputs: Tensor,
    snapshots: Sequence[Snapshot],
    shelf: TeacherShelf,
    *,
    rule: str | Rule,
    trust: TrustMeter,
) -> Tensor:
    """The combined prediction of all teachers for these inputs, [B,C]."""
    experiment = peer.world.experiment
    teachers = [partial(shelf.lend, snapshot) for snapshot in snapshots]
    q_KBC = soft_predictions(teachers, inputs, temperature=experiment.temperature)
    evidence = check_evidence(
        q_KBC,
        torch.tensor([s.statistics.counts for s in snapshots]),
        torch.tensor([s.statistics.accuracies for s in snapshots]),
        cross_entropy=torch.tensor([s.statistics.cross_entropies for s in snapshots]),
        min_support=experiment.min_support,
        epsilon=experiment.epsilon,
    )
    made = combine(evidence, rule, unsupported=experiment.unsupported)
    trust.add(made.share_KBC)
    return made.target_BC


class TrustMeter:
    """Mean over the samples of the share that each teacher had in each class."""

    def __init__(self) -> None:
        self._sum_KC: Tensor | None = None
        self._samples = 0

    def add(self, share_KBC: Tensor) -> None:
        """Count the samples of one block."""
        total_KC = share_KBC.sum(dim=1).cpu()
        self._sum_KC = total_KC if self._sum_KC is None else self._sum_KC + total_KC
        self._samples += share_KBC.shape[1]

    def means(self) -> list[list[float]]:
        """[K,C], rounded to what a chart can show."""
        assert self._sum_KC is not None, "no block was counted"
        return [[round(value, 4) for value in row] for row in (self._sum_KC / self._samples).tolist()]
