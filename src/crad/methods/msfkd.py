"""MSFKD (Wang et al. 2023), multi-teacher selective distillation: a reconstruction, there is no public code.

Exchanged: every active client's softened predictions on the proxy images, to every other active one.
Adapted: every client selects teachers and images itself, on what it collected and its own predictions; the same
arithmetic on the same numbers gives everybody the same targets. See docs/methods/msfkd.md.

Shapes: K clients, B images, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from crad.federation.message import Message
from crad.federation.method import CommonImages, Learned, Payload, Phase, RoundContext
from crad.federation.peer import Peer
from crad.methods.alone import train_alone
from crad.methods.proxy import (
    PREDICTIONS,
    DigestSpec,
    collect_predictions,
    digest_targets,
    fault_of_probabilities,
    pack_predictions,
)
from crad.training.digest import logits_on
from crad.training.losses import softened_divergence


class Msfkd(DigestSpec):
    """A private epoch, then a digest of the agreeing and sure teachers on the surest half of the images."""

    common_images: ClassVar[CommonImages] = "proxy"
    payload: ClassVar[Payload] = "sent and received"
    is_reconstruction: ClassVar[bool] = True

    keep_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5

    def phases(self) -> Sequence[Phase]:
        """Train on the own data; publish predictions and digest what is selected of everybody's."""
        return [
            Phase("private", learn=train_alone),
            Phase(PREDICTIONS, publish=self._publish, learn=self._learn, has_statistics=False),
        ]

    def _publish(self, peer: Peer, context: RoundContext) -> Message:
        return pack_predictions(peer, _soft(peer), context)

    def _learn(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        outputs, refused = collect_predictions(_soft(peer), peer, messages, context, fault_of=fault_of_probabilities)
        chosen = select(torch.stack(list(outputs.values())), keep_fraction=self.keep_fraction)
        loss = digest_targets(
            peer,
            peer.data.proxy_inputs[chosen.kept],
            chosen.target_BC[chosen.kept],
            context,
            spec=self,
            loss_of=partial(softened_divergence, temperature=peer.experiment.temperature),
        )
        share_K = chosen.is_teacher_KB.cpu().double().mean(dim=1).tolist()
        notes = {
            "kept_images": len(chosen.kept),
            "kept_share": len(chosen.kept) / len(chosen.target_BC),
            "teacher_share": {str(index): round(share, 4) for index, share in zip(outputs, share_K, strict=True)},
            **({"refused": refused} if refused else {}),
        }
        return Learned({"digest": loss}, notes=notes)


@dataclass(frozen=True)
class Selected:
    """Which teachers speak for which image, what they say together, and which images are digested."""

    is_teacher_KB: Tensor
    target_BC: Tensor
    kept: Tensor  # indices of images, in order


def select(q_KBC: Tensor, *, keep_fraction: float) -> Selected:
    """Select per image those that predict the plurality label, the surer half of all first; then the surest images.

    Ties: the lowest label wins the plurality; equal entropies count as no higher than the median, which is the lower
    one for an even number; of images with the same entropy the earlier is kept.
    """
    num_classes = q_KBC.shape[2]
    votes_KB = q_KBC.argmax(dim=2)
    plurality_B = torch.nn.functional.one_hot(votes_KB, num_classes).sum(dim=0).argmax(dim=1)
    agrees_KB = votes_KB == plurality_B
    entropy_KB = entropy(q_KBC)
    sure_KB = agrees_KB & (entropy_KB <= entropy_KB.median(dim=0).values)
    is_teacher_KB = torch.where(sure_KB.any(dim=0), sure_KB, agrees_KB)
    weight_KB = is_teacher_KB.to(q_KBC.dtype)
    target_BC = torch.einsum("kb,kbc->bc", weight_KB, q_KBC) / weight_KB.sum(dim=0)[:, None]
    count = max(1, round(keep_fraction * len(target_BC)))
    surest = torch.argsort(entropy(target_BC), stable=True)[:count]
    return Selected(is_teacher_KB, target_BC, surest.sort().values)


def entropy(q: Tensor) -> Tensor:
    """Return the entropy in nats over the last dimension; a probability of zero adds nothing."""
    negative: Tensor = torch.special.xlogy(q, q).sum(dim=-1)
    return -negative


def _soft(peer: Peer) -> Tensor:
    logits_BC = logits_on(peer.model, peer.data.proxy_inputs)
    return torch.softmax(logits_BC / peer.experiment.temperature, dim=1)
