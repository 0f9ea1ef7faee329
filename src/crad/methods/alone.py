"""The floor and the ceiling: training without anybody else.

`local`: every client on its own shard; tells a client whether joining helped. Exchanged: nothing.
`centralized`: one model on the pooled shards, which no federation may do; simulation only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from crad.federation.context import RunContext
from crad.federation.message import Message
from crad.federation.method import Learned, Method, Phase, RoundContext
from crad.federation.peer import Peer, PeerSpec
from crad.methods.local_training import BlockLoss, train_epochs
from crad.training.epoch import Block
from crad.training.losses import PrivateLoss


def train_alone(peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
    """Train the local epochs of one client on its own labels."""
    loss_for = partial(own_labels, log_prior_C=peer.log_prior_C)
    return Learned(train_epochs(peer, context, loss_for=loss_for))


def own_labels(block: Block, *, log_prior_C: Tensor | None = None) -> BlockLoss:
    """Return the cross-entropy on the labels of a block."""
    return PrivateLoss(block.batch_labels, log_prior_C)


def one_member_for_all(context: RunContext) -> list[PeerSpec]:
    """Return a roster of one that holds every shard."""
    return [PeerSpec(0, clients=tuple(range(context.experiment.clients)), architecture=context.architecture_of(0))]


ALONE = Phase("alone", learn=train_alone)  # whoever has it draws what `local` draws
LOCAL = Method("local", phases=(ALONE,), is_private=True)
CENTRALIZED = Method("centralized", phases=(ALONE,), roster=one_member_for_all)
