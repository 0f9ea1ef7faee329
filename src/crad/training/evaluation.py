"""How well a model does, per class: the source of the statistics, the selection and both metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.aggregation import ClassHits
from crad.data.preprocessing import Preprocessor, SampleSet
from crad.device import stopwatch
from crad.inference.engine import Run

EVALUATION_BATCH = 64  # larger ones are slower on a CPU
GPU_EVALUATION_BATCH = 1024  # a small batch leaves a GPU waiting for the next launch
PREPARED_FROM = 256  # images; below, folding and packing cost more than they save


def evaluation_batch(device: torch.device) -> int:
    """Return how many samples go through a network at once; on the CPU always as many, or last bits would change."""
    return EVALUATION_BATCH if device.type == "cpu" else GPU_EVALUATION_BATCH


@dataclass(frozen=True)
class ScoredSet:
    """A labelled set that a model is scored on, under which priors, and where what it says goes."""

    images: SampleSet
    faces: Sequence[Tensor | None] = ()  # class priors, each a vector [C] added to the logits; None adds nothing
    keep: list[Tensor] | None = None  # gets the logits themselves, on the CPU; None: nobody wants them


@torch.no_grad()
def score_sets(
    model: nn.Module,
    sets: Sequence[ScoredSet],
    *,
    preprocessor: Preprocessor,
    num_classes: int,
    prepare: Callable[[nn.Module], Run] | None = None,
) -> list[list[ClassHits]]:
    """Return what a model makes of several sets, of each under its priors.

    A large set is worth preparing the model for it, once for all. What comes out stays on the device until a set's last
    batch is through.
    """
    prepared: Run | None = None
    scores = []
    with stopwatch.part("evaluation"), evaluation_mode(model):
        for asked in sets:
            is_large = len(asked.images.labels) >= PREPARED_FROM
            if prepare is not None and is_large and prepared is None:
                prepared = prepare(model)
            run = prepared if prepared is not None and is_large else model
            scores.append(_score(run, asked, preprocessor, num_classes))
    return scores


def _score(run: Run, asked: ScoredSet, preprocessor: Preprocessor, num_classes: int) -> list[ClassHits]:
    images, faces = asked.images, asked.faces
    tallies, said = [_FaceTally() for _ in faces], []
    at_once = evaluation_batch(images.labels.device)
    for start in range(0, len(images.labels), at_once):
        chunk = slice(start, start + at_once)
        labels = images.labels[chunk]
        logits = run(preprocessor.inputs(images.samples[chunk]))
        if asked.keep is not None:
            said.append(logits)
        for tally, log_prior_C in zip(tallies, faces, strict=True):
            tally.add(logits if log_prior_C is None else logits + log_prior_C, labels)
    if asked.keep is not None and said:
        asked.keep.append(torch.cat(said).cpu())
    labels_B = images.labels.cpu()
    return [tally.score(labels_B, num_classes) for tally in tallies]


class _FaceTally:
    """Whether each sample was classified correctly, and its cross-entropy, batch by batch."""

    def __init__(self) -> None:
        self._is_hit: list[Tensor] = []
        self._losses: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        self._is_hit.append(logits.argmax(dim=1) == labels)
        self._losses.append(F.cross_entropy(logits, labels, reduction="none"))

    def score(self, labels_B: Tensor, num_classes: int) -> ClassHits:
        """Return the figures by class; the labels are on the CPU, and in the order of what was added."""
        # Summed in double on the CPU: the order of samples is fixed, and MPS has no double.
        sums = torch.zeros(num_classes, dtype=torch.float64)
        hits = torch.zeros(num_classes, dtype=torch.int64)
        if self._losses:
            sums.index_add_(0, labels_B, torch.cat(self._losses).cpu().double())
            hits = torch.bincount(labels_B[torch.cat(self._is_hit).cpu()], minlength=num_classes)
        counts = torch.bincount(labels_B, minlength=num_classes)
        return ClassHits(_tuple(counts), _tuple(hits), tuple(sums.tolist()))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Hold a model in evaluation mode; every part gets back the mode it had, also one that a user froze."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def _tuple(values: Tensor) -> tuple[int, ...]:
    return tuple(int(value) for value in values.tolist())
