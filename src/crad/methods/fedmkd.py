"""FedMKD (Lin et al. 2025): the peers' uniform mean and the own model of the round's start as two teachers.

Exchanged: as Uniform KD, every active client's snapshot to every other active one.
Adapted reconstruction: there is no public code; it is put onto the decentralised exchange of snapshots. See
docs/methods/fedmkd.md.

Shapes: B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from crad.aggregation import RULES
from crad.federation.message import SNAPSHOT, Message
from crad.federation.method import Learned, MethodSpec, Phase, RoundContext, publish_snapshot
from crad.federation.peer import Peer
from crad.inference.engine import soft_predictions
from crad.methods.distillation import distil, student_loss
from crad.methods.local_training import BlockLoss
from crad.training.epoch import Block
from crad.training.losses import Loss, private_cross_entropy, softened_divergence


class FedMkd(MethodSpec):
    """`mu` is the own model's share of the distillation; `pooled` counts it as one more peer instead."""

    is_reconstruction: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = True  # two targets

    mu: Annotated[float, Field(ge=0, le=1)] = 0.5
    mode: Literal["two teachers", "pooled"] = "two teachers"

    def phases(self) -> Sequence[Phase]:
        """Publish snapshots, distil from the others' mean and from the own one."""
        return [Phase(SNAPSHOT, publish=publish_snapshot, learn=self._learn)]

    def _learn(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        experiment = peer.experiment
        own = context.teachers.freeze(peer.model, peer.architecture.id)
        shares = [0.0]

        def loss_towards(block: Block, target_BC: Tensor, peers: int) -> BlockLoss:
            shares.append(1 / (peers + 1) if self.mode == "pooled" else self.mu)
            [own_BC] = soft_predictions([lambda: own], block.inputs, temperature=experiment.temperature)
            if self.mode == "pooled":
                return student_loss(peer, block, pooled(target_BC, own_BC, peers=peers))
            return lambda logits_BC, where: two_teacher_loss(
                logits_BC,
                block.labels[where],
                target_BC[where],
                own_BC[where],
                temperature=experiment.temperature,
                distill_weight=experiment.distill_weight,
                mu=self.mu,
                log_prior_C=peer.log_prior_C,
            )

        learned = distil(peer, messages, context, rule=RULES["uniform"], loss_towards=loss_towards)
        return Learned(learned.losses, learned.trust, {**learned.notes, "own_share": shares[-1]})


def pooled(target_BC: Tensor, own_BC: Tensor, *, peers: int) -> Tensor:
    """Return the mean of the peers and the own model, each counting once."""
    return (peers * target_BC + own_BC) / (peers + 1)


def two_teacher_loss(
    logits_BC: Tensor,
    labels_B: Tensor,
    peers_BC: Tensor,
    own_BC: Tensor,
    *,
    temperature: float,
    distill_weight: float,
    mu: float,
    log_prior_C: Tensor | None = None,
) -> Loss:
    """Return (1 - lambda) CE + lambda T^2 [(1 - mu) KL(peers || student) + mu KL(own || student)], batch mean."""
    cross_entropy = private_cross_entropy(logits_BC, labels_B, log_prior_C)
    from_peers = softened_divergence(logits_BC, peers_BC, temperature=temperature)
    from_own = softened_divergence(logits_BC, own_BC, temperature=temperature)
    distillation = (1 - mu) * from_peers + mu * from_own
    total = (1 - distill_weight) * cross_entropy + distill_weight * distillation
    return Loss(total, cross_entropy, distillation, {"from_peers": from_peers, "from_own": from_own})
