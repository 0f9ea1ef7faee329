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
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from crad.federation.message import Message
from crad.federation.method import Before, CommonImages, Learned, Payload, Phase, RoundContext
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

Ties = Literal["lowest", "probability"]  # which label wins a tied vote: the lowest, or by its mean probability


class Msfkd(DigestSpec):
    """A private epoch, then a digest of the agreeing and sure teachers on the surest half of the images."""

    common_images: ClassVar[CommonImages] = "proxy"
    payload: ClassVar[Payload] = "sent and received"
    is_reconstruction: ClassVar[bool] = True

    keep_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    ties: Annotated[Ties, Before("lowest")] = "lowest"

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
        q_KBC = torch.stack(list(outputs.values()))
        chosen = select(q_KBC, keep_fraction=self.keep_fraction, ties=self.ties)
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


def select(q_KBC: Tensor, *, keep_fraction: float, ties: Ties = "lowest") -> Selected:
    """Select per image those that predict the plurality label, the surer half of all first; then the surest images.

    Ties: `ties` says which label wins the plurality; equal entropies count as no higher than the median, which is the
    lower one for an even number; of images with the same entropy the earlier is kept.
    """
    votes_KB = q_KBC.argmax(dim=2)
    agrees_KB = votes_KB == plurality(q_KBC, votes_KB, ties=ties)
    entropy_KB = entropy(q_KBC)
    sure_KB = agrees_KB & (entropy_KB <= entropy_KB.median(dim=0).values)
    is_teacher_KB = torch.where(sure_KB.any(dim=0), sure_KB, agrees_KB)
    weight_KB = is_teacher_KB.to(q_KBC.dtype)
    target_BC = torch.einsum("kb,kbc->bc", weight_KB, q_KBC) / weight_KB.sum(dim=0)[:, None]
    count = max(1, round(keep_fraction * len(target_BC)))
    surest = torch.argsort(entropy(target_BC), stable=True)[:count]
    return Selected(is_teacher_KB, target_BC, surest.sort().values)


def plurality(q_KBC: Tensor, votes_KB: Tensor, *, ties: Ties = "lowest") -> Tensor:
    """Return the label with the most votes for every image, [B].

    Of several with as many, the one to which all clients together give the highest mean probability, or the lowest; the
    lowest too where even the means are the same.
    """
    votes_BC = torch.nn.functional.one_hot(votes_KB, q_KBC.shape[2]).sum(dim=0)
    if ties == "lowest":
        return votes_BC.argmax(dim=1)
    is_winner_BC = votes_BC == votes_BC.max(dim=1, keepdim=True).values
    return torch.where(is_winner_BC, q_KBC.mean(dim=0), -1.0).argmax(dim=1)


def entropy(q: Tensor) -> Tensor:
    """Return the entropy in nats over the last dimension; a probability of zero adds nothing."""
    negative: Tensor = torch.special.xlogy(q, q).sum(dim=-1)
    return -negative


def _soft(peer: Peer) -> Tensor:
    logits_BC = logits_on(peer.model, peer.data.proxy_inputs)
    return torch.softmax(logits_BC / peer.experiment.temperature, dim=1)
