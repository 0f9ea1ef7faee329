"""The CRAD rule on one batch: the vectorised rule against a loop over the classes, and against sorting."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

import crad
from benchmarks.harness import Section, Settings, interleave, speedup
from benchmarks.naive import class_loop_target
from crad.aggregation import Evidence, Rule, Selection
from crad.aggregation.filters import TIE_TOLERANCE
from crad.aggregation.weights import precision

SHAPES = ((9, 64, 10), (9, 64, 100), (9, 512, 100), (99, 64, 100), (9, 64, 1000))  # K, B, C


def run(settings: Settings) -> Section:
    """Every shape, about half of the (teacher, class) pairs unsupported, as under a skewed partition."""
    rows, numbers = [], []
    for shape in settings.choose(SHAPES, SHAPES, SHAPES[:1]):
        settings.say(f"K, B, C = {shape}")
        seconds = _measure(shape, repeats=settings.choose(31, 7, 1))
        over_loop, over_sort = speedup(seconds["loop"], seconds["crad"]), speedup(seconds["sort"], seconds["crad"])
        micro = {name: 1e6 * statistics.median(times) for name, times in seconds.items()}
        rows.append(
            [" x ".join(map(str, shape)), *(f"{micro[name]:,.0f}" for name in seconds), str(over_loop), str(over_sort)]
        )
        numbers.append({"shape": shape, "microseconds": micro, "over_loop": over_loop.median})
    return Section(
        "aggregation",
        "Aggregation of one batch, microseconds",
        ("K x B x C", "class loop", "by sorting", "crad", "ratio over loop", "ratio over sorting"),
        rows,
        notes=["Ratios are medians of paired runs with their quartiles; checks of the input are included in `crad`."],
        numbers=numbers,
    )


def _measure(shape: tuple[int, int, int], *, repeats: int) -> dict[str, list[float]]:
    q_KBC, counts_KC, accuracies_KC = random_evidence(*shape)
    return interleave(
        {
            "loop": lambda: class_loop_target(q_KBC, counts_KC, accuracies_KC),
            "sort": lambda: crad.aggregate(q_KBC, counts_KC, accuracies_KC, SORTED),
            "crad": lambda: crad.aggregate(q_KBC, counts_KC, accuracies_KC),
        },
        repeats=repeats,
        warmup=3,
    )


def random_evidence(num_teachers: int, num_samples: int, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions and statistics of any size, always the same."""
    draw = torch.Generator().manual_seed(1024)
    shape_KC = (num_teachers, num_classes)
    logits_KBC = 2 * torch.randn(num_teachers, num_samples, num_classes, generator=draw)
    is_held_KC = torch.randint(0, 2, shape_KC, generator=draw)
    counts_KC = torch.randint(2, 40, shape_KC, generator=draw).double() * is_held_KC
    return torch.softmax(logits_KBC, dim=2), counts_KC, torch.rand(shape_KC, generator=draw, dtype=torch.float64)


def keep_by_sorting(evidence: Evidence) -> Selection:
    """The package's filter with the median taken from a full sort, the usual vectorised way."""
    q_KBC = evidence.q_KBC
    supported_KC = evidence.counts_KC >= evidence.min_support
    supported_K1C, num_supported_C = supported_KC.unsqueeze(1), supported_KC.sum(dim=0)
    consensus_BC = (q_KBC * supported_K1C).sum(dim=0) / num_supported_C.clamp(min=1)
    deviation_KBC = (q_KBC - consensus_BC).abs()
    ordered_KBC = deviation_KBC.masked_fill(~supported_K1C, torch.inf).sort(dim=0).values
    middle_C = (num_supported_C - 1).clamp(min=0) // 2
    band_BC = ordered_KBC.gather(0, middle_C.expand(1, *consensus_BC.shape)).squeeze(0)
    keep_KBC = supported_K1C & (deviation_KBC <= band_BC + TIE_TOLERANCE)
    return Selection(keep_KBC, supported_KC, consensus_BC, band_BC)


SORTED = Rule(keep_by_sorting, precision)
