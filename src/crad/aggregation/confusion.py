"""Whether a teacher means by a class what the student means: its answers on the student's own labelled samples.

Labels shifted by one or a swapped pair look well in everything that a teacher says of itself: it is right about its own
labels. On the student's samples it calls one class by the name of another, again and again, and not the others.

Shapes: K teachers, B samples, C classes; a tally is [K, student's class, teacher's answer].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from crad.aggregation.statistics import TeacherStats, accuracy_variance, smoothed_accuracy

MAX_CELLS = 2**24  # of a tally; with more teachers and classes than that nothing is watched
MIN_SAMPLES = 20  # of the student's, of a class
MIN_CLAIMED, CLAIMED_ACCURACY = 5, 0.5  # what a teacher must say of itself to be taken at its word
SAID_SHARE, RIGHT_SHARE = 0.6, 0.2  # of these samples: called by the other name at least, by ours at most
FAVOURITE = 0.5  # of that share: where other samples are called so more often, the answer is only a favourite
DEVIATIONS = 3.0  # standard deviations by which two shares of the student's samples must lie apart
CLAIM_DEVIATIONS = 2.0  # the same for what a teacher says of itself, mostly of few samples


@dataclass(frozen=True)
class Confusion:
    """What the student calls `own` this teacher calls `said`, so its class `said` behaves like our class `own`."""

    teacher: int  # its place among the K
    own: int
    said: int
    samples: int  # of the student's, of the class `own`
    said_share: float
    right_share: float


class Confusions:
    """Counts what every teacher says about the samples of every class."""

    def __init__(self, num_teachers: int, num_classes: int) -> None:
        is_watched = num_teachers * num_classes**2 <= MAX_CELLS
        size = (num_teachers, num_classes, num_classes) if is_watched else (num_teachers, 0, 0)
        self.tally_KCC = torch.zeros(size, dtype=torch.int32)

    def add(self, q_KBC: Tensor, labels_B: Tensor, teachers_K: Tensor) -> None:
        """Count what these teachers, a mask over all, make of these samples."""
        num_classes = self.tally_KCC.shape[2]
        if num_classes == 0:
            return
        said_KB = q_KBC.argmax(dim=2).cpu()
        cells_KB = labels_B.cpu() * num_classes + said_KB
        for k, cells_B in zip(teachers_K.nonzero().flatten().tolist(), cells_KB, strict=True):
            counts_CC = torch.bincount(cells_B, minlength=num_classes**2).view(num_classes, num_classes)
            self.tally_KCC[k] += counts_CC.to(torch.int32)


def find_confusions(stats: TeacherStats, tally_KCC: Tensor) -> list[Confusion]:
    """Return what a teacher calls by another name than the student, although it says that it knows the class.

    Accused is only who claims to know a class, is hardly ever right about the student's samples of it, calls most of
    them by one other name, and does not call other samples so nearly as often. Two of these must hold beyond chance:
    that it does worse than it says, and that the name is no mere favourite of its.
    """
    if tally_KCC.numel() == 0:
        return []
    counts_KC, accuracies_KC = stats.counts_KC, stats.accuracies_KC
    tally_KCC = tally_KCC.to(torch.float64)
    samples_KC = tally_KCC.sum(dim=2)
    said_KC, favourite_KC = tally_KCC.max(dim=2)
    right_KC = tally_KCC.diagonal(dim1=1, dim2=2)
    knows_KC = (counts_KC >= MIN_CLAIMED) & (accuracies_KC >= CLAIMED_ACCURACY)
    is_suspect_KC = (
        knows_KC
        & (samples_KC >= MIN_SAMPLES)
        & (said_KC >= SAID_SHARE * samples_KC)
        & (right_KC <= RIGHT_SHARE * samples_KC)
        & (_wilson(right_KC, samples_KC, CLAIM_DEVIATIONS) < _least_claimed(stats))
        & _is_particular(tally_KCC, favourite_KC)
    )
    return [
        Confusion(
            teacher=k,
            own=own,
            said=int(favourite_KC[k, own]),
            samples=int(samples_KC[k, own]),
            said_share=float(said_KC[k, own] / samples_KC[k, own]),
            right_share=float(right_KC[k, own] / samples_KC[k, own]),
        )
        for k, own in is_suspect_KC.nonzero().tolist()
    ]


def _is_particular(tally_KCC: Tensor, favourite_KC: Tensor) -> Tensor:
    """Return whether the answer is given to samples of this class clearly more often than to all others, [K,C]."""
    samples_KC = tally_KCC.sum(dim=2)
    said_KC = tally_KCC.gather(2, favourite_KC.unsqueeze(2)).squeeze(2)
    others_KC = samples_KC.sum(dim=1, keepdim=True) - samples_KC
    elsewhere_KC = tally_KCC.sum(dim=1).gather(1, favourite_KC) - said_KC
    is_rarer_KC = elsewhere_KC * samples_KC <= FAVOURITE * said_KC * others_KC
    lies_apart_KC = _wilson(elsewhere_KC, others_KC, DEVIATIONS) < _wilson(said_KC, samples_KC, -DEVIATIONS)
    # Where there is hardly anything but this class nobody can tell a favourite from a meaning.
    return is_rarer_KC & lies_apart_KC & (others_KC >= MIN_SAMPLES)


def _least_claimed(stats: TeacherStats) -> Tensor:
    """Return the least accuracy that goes with what a teacher has measured of itself, [K,C]."""
    counts_KC, accuracies_KC = stats.counts_KC, stats.accuracies_KC
    deviation_KC = accuracy_variance(counts_KC, accuracies_KC).sqrt()
    return smoothed_accuracy(counts_KC, accuracies_KC) - CLAIM_DEVIATIONS * deviation_KC


def _wilson(hits: Tensor, among: Tensor, deviations: float) -> Tensor:
    """Return the upper end of Wilson's interval for a share, or the lower one; it needs no large numbers."""
    among = among.clamp(min=1)
    share, extra = hits / among, deviations**2 / among
    spread = (share * (1 - share) / among + extra / (4 * among)).sqrt()
    return (share + extra / 2 + deviations * spread) / (1 + extra)
