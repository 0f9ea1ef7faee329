"""Learning from targets on unlabelled images: what the methods with a proxy or transfer set share.

Shapes: B images, C classes, D channels, H and W the sides of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.data.preprocessing import in_usual_layout
from crad.randomness import torch_stream
from crad.training.clipping import DIGEST, Clipper
from crad.training.epoch import weighed_sum
from crad.training.evaluation import evaluation_batch, evaluation_mode

DigestLoss = Callable[[Tensor, Tensor], Tensor]  # logits [B,C] and targets [B,C] to a mean


@torch.no_grad()
def logits_on(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the model's raw logits in evaluation mode, [B,C]."""
    with evaluation_mode(model):
        chunks = torch.split(inputs, evaluation_batch(inputs.device))
        return torch.cat([model(chunk) for chunk in chunks])


def absolute_difference(logits_BC: Tensor, target_BC: Tensor) -> Tensor:
    """Return FedMD's L1 distance between raw logits, mean over samples and classes."""
    return F.l1_loss(logits_BC, target_BC)


def digest(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    target_BC: Tensor,
    *,
    loss_of: DigestLoss,
    batch_size: int,
    clipper: Clipper,
    seed: int,
    purpose: tuple[str | int, ...],
) -> float:
    """Train one epoch towards the targets in a seeded order; return the mean loss. A last batch of one is dropped."""
    order = torch.randperm(len(inputs), generator=torch_stream(seed, *purpose, "shuffle"))
    losses: list[tuple[Tensor, int]] = []
    model.train()
    for chosen in torch.split(order.to(inputs.device), batch_size):
        if len(chosen) < 2:
            break  # batch norm needs two samples
        batch = in_usual_layout(inputs[chosen])
        loss = loss_of(model(batch), target_BC[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clipper.clip(model, DIGEST)
        optimizer.step()
        losses.append((loss.detach(), len(chosen)))
    return weighed_sum(losses) / max(1, sum(size for _, size in losses))


def store_optimizer(
    memory: MutableMapping[str, Tensor], name: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put an optimiser's moments into a memory of tensors, under `name`."""
    for key, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            memory[f"{name}/{moment}/{key}"] = torch.as_tensor(value)


def restore_optimizer(
    memory: Mapping[str, Tensor], name: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Give an optimiser the moments that were stored under `name`, if there are any."""
    parameters = dict(model.named_parameters())
    for label, tensor in memory.items():
        owner, moment, key = label.split("/", 2) if label.count("/") >= 2 else ("", "", "")
        if owner == name and key in parameters:
            kept = tensor.clone() if tensor.dim() == 0 else torch.empty_like(parameters[key]).copy_(tensor)
            optimizer.state[parameters[key]][moment] = kept
