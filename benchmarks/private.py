"""What a step of private training costs beside a plain one, and beside other ways to the same clipped sum."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import Section, Settings, interleave, speedup
from crad.models import Architecture, build_model
from crad.training.epoch import Block, LossMeter
from crad.training.losses import Loss
from crad.training.private_step import clipped_sums

MODELS = ("cnn6-gn", "resnet18-half-gn", "resnet18-gn")
BATCH, NUM_CLASSES, MAX_NORM = 64, 10, 1.0
WAYS = ("plain", "ours", "opacus", "ghost")


def run(settings: Settings) -> Section:
    """32x32x3, ten classes, group norm, cross-entropy: gradients of one batch, without the optimiser's step."""
    rows, numbers = [], []
    for width in settings.choose((0.125, 0.5), (0.125,), (0.125,)):
        for name in settings.choose(MODELS, MODELS, MODELS[:1]):
            settings.say(f"{name} at width {width:g}")
            row = _measure(
                Architecture(name, width),
                batch=settings.choose(BATCH, BATCH, 4),
                repeats=settings.choose(7, 3, 1),
            )
            numbers.append(row)
            cells = [f"{1000 * row[f'{way}_s']:.0f}" for way in WAYS]
            rows.append([f"{name}@{width:g}", *cells, *(row[f"{way}_ratio"] for way in WAYS[1:]), row["difference"]])
    return Section(
        "private",
        "Gradients of one batch of 64, clipped sample by sample, one thread",
        (
            "model",
            "plain, ms",
            "ours (torch.func), ms",
            "Opacus hooks, ms",
            "Opacus ghost clipping, ms",
            "ours / plain",
            "hooks / plain",
            "ghost / plain",
            "largest difference of ghost from ours / largest",
        ),
        rows,
        notes=["Plain: the mean gradient of the same network, as in training that is not private. All on one thread."],
        numbers=numbers,
    )


def _measure(architecture: Architecture, *, batch: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)
    inputs, labels = torch.randn(batch, 3, 32, 32, generator=generator), torch.arange(batch) % NUM_CLASSES
    ways = {
        "plain": _plain(_built(architecture), inputs, labels),
        "ours": _ours(_built(architecture), inputs, labels),
        "opacus": _opacus(_built(architecture), inputs, labels, is_ghost=False),
        "ghost": _opacus(_built(architecture), inputs, labels, is_ghost=True),
    }
    seconds = interleave(ways, repeats=repeats)
    ours, ghost = ways["ours"](), ways["ghost"]()
    difference = max(float((ours[name] - ghost[name]).abs().max()) for name in ours)
    largest = max(float(one.abs().max()) for one in ours.values())
    return {
        "model": architecture.id,
        **{f"{way}_s": statistics.median(seconds[way]) for way in WAYS},
        **{f"{way}_ratio": str(speedup(seconds[way], seconds["plain"])) for way in WAYS[1:]},
        "difference": f"{difference / largest:.0e}",
    }


Way = Callable[[], dict[str, Tensor]]


def _built(architecture: Architecture) -> nn.Module:
    return build_model(architecture, num_classes=NUM_CLASSES, in_channels=3, image_size=(32, 32), seed=1024).train()


def _plain(model: nn.Module, inputs: Tensor, labels: Tensor) -> Way:
    def work() -> dict[str, Tensor]:
        model.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}

    return work


def _ours(model: nn.Module, inputs: Tensor, labels: Tensor) -> Way:
    block = Block(inputs, labels, epoch=0, seed=0)

    def loss_of(logits_BC: Tensor, where: slice) -> Loss:
        total = F.cross_entropy(logits_BC, labels[where])
        return Loss(total, cross_entropy=total, distillation=torch.zeros(()))

    return lambda: clipped_sums(model, block, loss_of=loss_of, max_norm=MAX_NORM, meter=LossMeter())


def _opacus(model: nn.Module, inputs: Tensor, labels: Tensor, *, is_ghost: bool) -> Way:
    """Return the same sum by Opacus' hooks, or by its ghost clipping: norms first, then one weighted pass."""
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping

    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # hooks need what went in
    if not is_ghost:
        hooked = GradSampleModule(model, loss_reduction="mean")

        def by_hooks() -> dict[str, Tensor]:
            hooked.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.autograd.backward(F.cross_entropy(hooked(inputs), labels))
            each: dict[str, Tensor] = {name: getattr(one, "grad_sample") for name, one in model.named_parameters()}  # noqa: B009
            norms_B = torch.stack([one.flatten(start_dim=1).norm(dim=1) for one in each.values()]).norm(dim=0)
            share_B = (MAX_NORM / norms_B).clamp(max=1.0)
            return {name: torch.einsum("b,b...->...", share_B, one) for name, one in each.items()}

        return by_hooks
    ghost = GradSampleModuleFastGradientClipping(
        model, loss_reduction="mean", max_grad_norm=MAX_NORM, use_ghost_clipping=True
    )

    def by_ghost() -> dict[str, Tensor]:
        ghost.zero_grad()
        ghost.enable_hooks()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses_B = F.cross_entropy(ghost(inputs), labels, reduction="none")
            torch.autograd.backward(losses_B.mean(), retain_graph=True)
            share_B = ghost.get_clipping_coef()
            model.zero_grad()
            ghost.disable_hooks()
            torch.autograd.backward((share_B * losses_B).sum())
        return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}

    return by_ghost
