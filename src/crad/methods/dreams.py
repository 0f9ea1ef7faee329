"""Inputs of classes that a client lacks, made from experts' snapshots alone: what its own images never show.

After DeepInversion (Yin et al. 2020): inputs are optimised until those experts that know a class see it in them, and
until their batch norms see the statistics that they saw in training. Nothing is sent, no generator is trained, nobody's
samples but the client's own are touched. See docs/methods/experts.md.

Shapes: B inputs, C classes, D channels, K experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from crad.aggregation.correction import bounded_log_shares_of
from crad.data.preprocessing import in_usual_layout
from crad.errors import ConfigError
from crad.federation.context import RunContext
from crad.federation.method import RoundContext
from crad.federation.peer import Peer, new_model
from crad.federation.teachers import Snapshot
from crad.methods.distillation import PROBED_IMAGES, trainable_models
from crad.randomness import torch_stream
from crad.training.batch_statistics import has_batch_statistics, watched_statistics
from crad.training.sample_weights import lacking_classes
from crad.training.uncompiled import uncompiled

DREAMS = "dreams"
BATCH = 64  # inputs that are optimised together: enough for statistics, little enough for any memory
Start = Literal["own", "noise"]


@dataclass(frozen=True)
class DreamPlan:
    """How many inputs are made, from what, and what is asked of them."""

    per_class: int  # of a class of which the client has nothing; fewer of one that it has some of
    steps: int
    lr: float  # of Adam, in deviations of the client's own inputs
    experts: int  # asked in each step, drawn by the seed
    start: Start
    statistics_weight: float
    variation_weight: float


@dataclass(frozen=True)
class _Expert:
    """A snapshot that gradients go through, and for which classes it is worth hearing."""

    model: nn.Module
    counts_C: Tensor  # its published samples
    log_shares_C: Tensor | None  # taken out of what it says; None: they are out already


def refuse_without_statistics(context: RunContext) -> None:
    """Refuse data that no gradient reaches, and federations in which no network has a batch norm."""
    kind = context.data.dataset.kind
    if kind == "text":
        raise ConfigError("dreams are made for inputs that can change a little, and words cannot: set dreams = 0")
    known = {context.architecture_of(client) for client in range(context.experiment.clients)}
    allowance = context.allowance
    built = [new_model(context, one, seed=0) for one in known if allowance is None or allowance.has(one)]
    if built and not any(map(has_batch_statistics, built)):
        names = ", ".join(sorted(one.id for one in known))
        raise ConfigError(f"dreams need a network with batch norm, and none of {names} has one: set dreams = 0")


def wanted_labels(labels_B: Tensor, *, num_classes: int, per_class: int) -> Tensor:
    """Return the classes of the inputs to make: of each as many as it is lacking."""
    lacking_C = lacking_classes(torch.bincount(labels_B.cpu(), minlength=num_classes))
    return torch.repeat_interleave(torch.arange(num_classes), (per_class * lacking_C).round().long())


def make_dreams(
    peer: Peer, snapshots: Sequence[Snapshot], context: RoundContext, plan: DreamPlan, refused: dict[str, str]
) -> tuple[Tensor, float]:
    """Return inputs of the classes that the client lacks, [B,...], and the last loss; none where nobody can say."""
    inputs = peer.data.preprocessor.inputs(peer.train.samples)
    labels_B = wanted_labels(peer.train.labels, num_classes=peer.num_classes, per_class=plan.per_class)
    models = trainable_models(peer.context, snapshots, inputs[:PROBED_IMAGES], refused)
    is_corrected = peer.context.recipe.teacher_prior == "remove"
    experts = []
    for one in (one for one in snapshots if one.peer in models):
        counts_C = torch.tensor(one.statistics.counts).clamp(min=0)
        shares_C = bounded_log_shares_of(counts_C).float().to(inputs.device) if is_corrected else None
        model = models[one.peer].eval().requires_grad_(False)
        experts.append(_Expert(model, counts_C.float().to(inputs.device), shares_C))
    if not experts or len(labels_B) < 2 or not len(inputs):
        return inputs[:0], 0.0
    seed, purpose = peer.experiment.seed, context.purpose(peer, DREAMS)
    order = torch.randperm(len(labels_B), generator=torch_stream(seed, *purpose, "order"))
    made, losses = [], []
    for number, chosen in enumerate(torch.split(order, BATCH)):
        draws = torch_stream(seed, *purpose, "batch", number)
        wanted_B = labels_B[chosen].to(inputs.device)
        dreamt, loss = _dream(inputs, wanted_B, experts, plan, draws)
        made.append(dreamt)
        losses.append(loss)
    return in_usual_layout(torch.cat(made)), sum(losses) / len(losses)


def _dream(
    own: Tensor, labels_B: Tensor, experts: Sequence[_Expert], plan: DreamPlan, draws: torch.Generator
) -> tuple[Tensor, float]:
    """Optimise one batch, in deviations of the client's own inputs, and within what they reach."""
    dims = (0, *range(2, own.dim()))
    known = torch.where(own.isfinite(), own, 0.0)
    shape = (1, -1, *[1] * (own.dim() - 2))
    mean, deviation = known.mean(dim=dims).view(shape), known.std(dim=dims).clamp(min=1e-6).view(shape)
    lowest, highest = ((bound(known, dim=dims).view(shape) - mean) / deviation for bound in (torch.amin, torch.amax))
    if plan.start == "own":
        chosen = torch.randint(len(own), (len(labels_B),), generator=draws).to(own.device)
        first = (known[chosen] - mean) / deviation
    else:
        first = torch.randn((len(labels_B), *own.shape[1:]), generator=draws).to(own.device)
    moved = in_usual_layout(first.clone()).requires_grad_()
    optimizer = uncompiled(torch.optim.Adam)([moved], lr=plan.lr)
    last = moved.new_zeros(())
    for _ in range(plan.steps):
        drawn = torch.randperm(len(experts), generator=draws)[: plan.experts]
        loss = dream_loss([experts[int(one)] for one in drawn], moved * deviation + mean, labels_B, plan)
        loss = loss + plan.variation_weight * variation(moved)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            moved.copy_(torch.minimum(torch.maximum(moved, lowest), highest))
        last = loss.detach()
    return (moved.detach() * deviation + mean), float(last)


def dream_loss(experts: Sequence[_Expert], inputs: Tensor, labels_B: Tensor, plan: DreamPlan) -> Tensor:
    """Return the cross-entropy of the wanted classes under these experts, plus the distance of batch statistics.

    Each is heard on an input by how many samples of the wanted class it has; where nobody has any, nothing is asked.
    """
    said, apart = [], []
    for expert in experts:
        with watched_statistics(expert.model) as distances:
            logits_BC = expert.model(inputs.clone())  # a module may write to its input
        apart += [torch.stack(distances).mean()] if distances else []
        corrected_BC = logits_BC if expert.log_shares_C is None else logits_BC - expert.log_shares_C
        said.append(torch.log_softmax(corrected_BC, dim=1).gather(1, labels_B[:, None]).squeeze(1))
    weight_KB = torch.stack([expert.counts_C[labels_B] for expert in experts])
    is_asked_B = weight_KB.sum(dim=0) > 0
    # In logarithms throughout: a class that all think impossible still has a slope to climb.
    log_weight_KB = torch.log_softmax(torch.where(is_asked_B, weight_KB, 1.0).log(), dim=0)
    surprise_B = torch.where(is_asked_B, -torch.logsumexp(log_weight_KB + torch.stack(said), dim=0), 0.0)
    distance = torch.stack(apart).mean() if apart else surprise_B.new_zeros(())
    return surprise_B.mean() + plan.statistics_weight * distance


def variation(inputs: Tensor) -> Tensor:
    """Return the mean difference between neighbours in every direction that inputs have beside batch and channels."""
    steps = [inputs.diff(dim=dim).abs().mean() for dim in range(2, inputs.dim()) if inputs.shape[dim] > 1]
    return torch.stack(steps).sum() if steps else inputs.new_zeros(())
