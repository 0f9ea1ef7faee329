"""FedMD (Li & Wang 2019): agree on the logits of common unlabelled images, then go back to the own data.

Exchanged: every active client's raw logits on the proxy images, to every other active one.
Adapted: the mean is taken by every client on what it collected, not by a server; no pretraining by default.
Source: the paper and its authors' public code; see docs/methods/fedmd.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from crad.federation.message import Message
from crad.federation.method import CommonImages, Learned, Payload, Phase, RoundContext
from crad.federation.peer import Peer
from crad.methods.alone import own_labels, train_alone
from crad.methods.local_training import train_epochs
from crad.methods.proxy import PREDICTIONS, DigestSpec, collect_predictions, digest_targets, pack_predictions
from crad.training.digest import absolute_difference, logits_on

PRETRAINED = "pretrained"


class FedMd(DigestSpec):
    """Raw logits, their mean, an L1 digest, then the private epoch."""

    common_images: ClassVar[CommonImages] = "proxy"
    payload: ClassVar[Payload] = "sent and received"

    pretrain_epochs: Annotated[int, Field(ge=0)] = 0  # private epochs before the first exchange

    def phases(self) -> Sequence[Phase]:
        """Pretrain, once and if asked to; publish logits, digest their mean, revisit the private data."""
        pretraining = [Phase("pretrain", learn=self._pretrain)] if self.pretrain_epochs else []
        return [*pretraining, Phase(PREDICTIONS, publish=self._publish, learn=self._learn, has_statistics=False)]

    def _pretrain(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        if PRETRAINED in peer.memory:
            return Learned()
        loss_for = partial(own_labels, log_prior_C=peer.log_prior_C)
        losses = train_epochs(peer, context, loss_for=loss_for, epochs=self.pretrain_epochs, words=("pretrain",))
        peer.memory[PRETRAINED] = torch.ones(1)
        return Learned({"pretrain": losses["total"]})

    def _publish(self, peer: Peer, context: RoundContext) -> Message:
        return pack_predictions(peer, logits_on(peer.model, peer.data.proxy_inputs), context)

    def _learn(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        proxy = peer.data.proxy_inputs
        outputs, refused = collect_predictions(logits_on(peer.model, proxy), peer, messages, context)
        consensus_BC = consensus(list(outputs.values()))
        loss = digest_targets(peer, proxy, consensus_BC, context, spec=self, loss_of=absolute_difference)
        private = train_alone(peer, messages, context)
        notes = {"teachers": sorted(outputs), **({"refused": refused} if refused else {})}
        return Learned({**private.losses, "digest": loss}, notes=notes)


def consensus(logits: Sequence[Tensor]) -> Tensor:
    """Return the plain mean of everybody's logits, [B,C]."""
    return torch.stack(list(logits)).mean(dim=0)
