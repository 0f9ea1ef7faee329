"""How well a model does, per class: the source of the statistics, the selection and both metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.data.preprocessing import ImageSet, Preprocessor
from crad.device import stopwatch
from crad.inference.engine import Run

EVALUATION_BATCH = 64  # larger ones are slower on a CPU
GPU_EVALUATION_BATCH = 1024  # a small batch leaves a GPU waiting for the next launch
PREPARED_FROM = 256  # images; below, folding and packing cost more than they save


@dataclass(frozen=True)
class ClassScore:
    """Per class: how many samples, how many were classified correctly, and their summed cross-entropy."""

    counts: tuple[int, ...]
    hits: tuple[int, ...]
    cross_entropy_sums: tuple[float, ...]
    accuracy: float = field(init=False)  # of all samples together, in percent
    class_accuracies: tuple[float, ...] = field(init=False)  # the share correct; 0 where the class has no samples

    def __post_init__(self) -> None:
        pairs = zip(self.hits, self.counts, strict=True)
        object.__setattr__(self, "accuracy", 100.0 * sum(self.hits) / max(1, sum(self.counts)))
        object.__setattr__(self, "class_accuracies", tuple(hits / count if count else 0.0 for hits, count in pairs))

    def class_cross_entropies(self) -> list[float]:
        """Return the mean cross-entropy (nats, T=1) per class; one without samples gets that of a blind guess, ln C.

        Zero would read as perfect and, under noised counts, make a teacher without data decide the class.
        """
        guess = math.log(len(self.counts))
        pairs = zip(self.cross_entropy_sums, self.counts, strict=True)
        return [total / count if count else guess for total, count in pairs]


def score(
    model: nn.Module,
    images: ImageSet,
    *,
    preprocessor: Preprocessor,
    num_classes: int,
    prepare: Callable[[nn.Module], Run] | None = None,
) -> ClassScore:
    """Run the model in evaluation mode over a labelled set; a large set is worth preparing the model for it."""
    [plain] = score_with_priors(
        model, images, [None], preprocessor=preprocessor, num_classes=num_classes, prepare=prepare
    )
    return plain


def evaluation_batch(device: torch.device) -> int:
    """Return how many samples go through a network at once; on the CPU always as many, or last bits would change."""
    return EVALUATION_BATCH if device.type == "cpu" else GPU_EVALUATION_BATCH


@torch.no_grad()
def score_with_priors(
    model: nn.Module,
    images: ImageSet,
    faces: Sequence[Tensor | None],
    *,
    preprocessor: Preprocessor,
    num_classes: int,
    prepare: Callable[[nn.Module], Run] | None = None,
    keep: list[Tensor] | None = None,
) -> list[ClassScore]:
    """Return the scores of one model under several class priors, each a vector [C] added to its logits.

    None adds nothing. The logits themselves go into `keep`, on the CPU, where somebody wants them. What comes out stays
    on the device until the last batch is through.
    """
    num_images, at_once = len(images.labels), evaluation_batch(images.labels.device)
    tallies, said = [_FaceTally() for _ in faces], []
    with stopwatch.part("evaluation"), evaluation_mode(model):
        is_large = num_images >= PREPARED_FROM
        run = prepare(model) if prepare is not None and is_large else model
        for start in range(0, num_images, at_once):
            chunk = slice(start, start + at_once)
            labels = images.labels[chunk]
            logits = run(preprocessor.inputs(images.images[chunk]))
            if keep is not None:
                said.append(logits)
            for tally, log_prior_C in zip(tallies, faces, strict=True):
                tally.add(logits if log_prior_C is None else logits + log_prior_C, labels)
        if keep is not None and said:
            keep.append(torch.cat(said).cpu())
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

    def score(self, labels_B: Tensor, num_classes: int) -> ClassScore:
        """Return the figures by class; the labels are on the CPU, and in the order of what was added."""
        # Summed in double on the CPU: the order of samples is fixed, and MPS has no double.
        sums = torch.zeros(num_classes, dtype=torch.float64)
        hits = torch.zeros(num_classes, dtype=torch.int64)
        if self._losses:
            sums.index_add_(0, labels_B, torch.cat(self._losses).cpu().double())
            hits = torch.bincount(labels_B[torch.cat(self._is_hit).cpu()], minlength=num_classes)
        counts = torch.bincount(labels_B, minlength=num_classes)
        return ClassScore(_tuple(counts), _tuple(hits), tuple(sums.tolist()))


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
