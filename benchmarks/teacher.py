"""One frozen teacher on a batch of 64: the engine against the eager NCHW loop, and both against the GEMM peak."""

from __future__ import annotations

import statistics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.engine import engine_teacher
from benchmarks.harness import (
    Section,
    Settings,
    count_flops,
    gemm_gflops,
    gemm_work,
    interleave,
    share_of_peak,
    speedup,
)
from crad.models import Architecture, build_model

MODELS = ("resnet18", "resnet18-half", "cnn6")
BATCH = 64
NUM_CLASSES = 10
STEPS = 3  # of training, 16 images each


def run(settings: Settings) -> Section:
    """Full width, 32x32x3, ten classes, after a few steps of training so that batch norm has moved."""
    rows, numbers = [], []
    for name in settings.choose(MODELS, MODELS, MODELS[-1:]):
        settings.say(name)
        row = _measure(
            Architecture(name, settings.choose(1.0, 1.0, 0.125)),
            batch=settings.choose(BATCH, BATCH, 16 * STEPS),
            repeats=settings.choose(15, 3, 1),
        )
        numbers.append(row)
        rows.append(
            [
                name,
                f"{1000 * row['naive_s']:.0f}",
                f"{1000 * row['engine_s']:.0f}",
                row["ratio_text"],
                share_of_peak(row["flops"], row["naive_s"], row["peak_gflops"]),
                share_of_peak(row["flops"], row["engine_s"], row["peak_gflops"]),
                f"{row['difference']:.1e}",
            ]
        )
    peak = statistics.median(row["peak_gflops"] for row in numbers)
    return Section(
        "teacher",
        "Teacher inference, one batch of 64, one thread",
        (
            "model",
            "naive, ms",
            "engine, ms",
            "ratio",
            "naive, of GEMM peak",
            "engine, of GEMM peak (effective)",
            "largest logit difference / std",
        ),
        rows,
        notes=[
            f"GEMM peak measured in between: {peak:.0f} GFLOP/s on one thread. Effective: operations of the direct "
            "convolution over the time taken, so an algorithm that needs fewer may exceed 100 %."
        ],
        numbers=numbers,
    )


def _measure(architecture: Architecture, *, batch: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    inputs = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    channels_last = inputs.contiguous(memory_format=torch.channels_last)
    naive = trained(architecture, inputs)
    engine = engine_teacher(trained(architecture, inputs), key=architecture.id)
    seconds = interleave(
        {"naive": lambda: logits_of(naive, inputs), "engine": lambda: engine(channels_last), "gemm": gemm_work()},
        repeats=repeats,
    )
    expected = logits_of(naive, inputs)
    ratio = speedup(seconds["naive"], seconds["engine"])
    return {
        "model": architecture.name,
        "naive_s": statistics.median(seconds["naive"]),
        "engine_s": statistics.median(seconds["engine"]),
        "ratio": ratio.median,
        "ratio_text": str(ratio),
        "flops": count_flops(lambda: logits_of(naive, inputs)),
        "peak_gflops": gemm_gflops(seconds["gemm"]),
        "difference": float((engine(channels_last) - expected).abs().max() / expected.std()),
    }


@torch.no_grad()
def logits_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """The naive teacher: just call it."""
    logits: Tensor = model(inputs)
    return logits


def trained(architecture: Architecture, inputs: Tensor) -> nn.Module:
    """A model whose weights and running statistics have moved away from where they begin; always the same."""
    model = build_model(architecture, num_classes=NUM_CLASSES, in_channels=3, image_size=(32, 32), seed=1024).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    labels = torch.arange(16) % NUM_CLASSES
    for step in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[step * 16 : step * 16 + 16]), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()
