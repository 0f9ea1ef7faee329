"""Which members of a committee are worth their cost: chosen by what they add on images of known classes.

Greedy: from the client's own model on, the member that helps most is added until there are as many as asked for; of
these committees the best is taken. Whoever is not in it harms it, adds nothing, or is one too many.

Shapes: K members, B images, C classes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crad.errors import ConfigError

SMALLEST_GAIN = 1e-3  # of the mean log-likelihood, without which a member that brings no hit is not worth its cost
NORMAL_QUANTILE = 1.959964  # what a normal value stays within on both sides with 95 % probability
TIMED_IMAGES, TIMED_RUNS = 64, 3

Answer = Callable[[Sequence[int]], Tensor]  # the probabilities [B,C] of some members, by their places


@dataclass(frozen=True)
class MemberGain:
    """One committee against another on the same images, in percentage points of accuracy, with its 95 % interval."""

    points: float
    low: float
    high: float

    @property
    def is_harm(self) -> bool:
        """Return whether it is a loss beyond chance: the whole interval lies below zero."""
        return self.high < 0

    def __str__(self) -> str:
        return f"{self.points:+.1f} points ({self.low:+.1f} to {self.high:+.1f})"


@dataclass(frozen=True)
class CommitteeCost:
    """What one prediction takes: milliseconds for 64 images on one core, as measured here, and megabytes of weights."""

    milliseconds: float
    megabytes: float

    def __str__(self) -> str:
        return f"{self.milliseconds:.1f} ms for {TIMED_IMAGES} images, {self.megabytes:.2f} MB"


@dataclass(frozen=True)
class ChoiceStep:
    """A member that was taken, and the committee with it."""

    client: int
    accuracy: float  # percent, of the committee so far on the images by which it was chosen
    gain: MemberGain | None  # over the committee without it; None of the first
    cost: CommitteeCost  # of the committee so far


@dataclass(frozen=True)
class MemberChoice:
    """Who was taken, in order, at what gain and cost, and what the others would do to the result."""

    images: int  # by which they were chosen
    face: str
    steps: tuple[ChoiceStep, ...]
    others: Mapping[int, MemberGain]  # what each of the others would add to it
    everybody: ChoiceStep  # all members together; its client is the last of them
    gain: MemberGain  # over the first member alone, on the images by which they were chosen: too good by the choosing
    checked_gain: (
        MemberGain  # the same of members chosen on one half of the images and measured on the other, both ways
    )


def choose(
    answer: Answer,
    labels_B: Tensor,
    *,
    clients: Sequence[int],
    first: int | None,
    size: int,
    costs: Sequence[CommitteeCost],
) -> tuple[list[int], MemberChoice]:
    """Return the places of the chosen members, and how they were chosen; `first` is the place to begin with."""
    judge = _Judge(answer, labels_B, len(clients))
    everywhere = torch.ones(len(labels_B), dtype=torch.bool)
    path = judge.best_path(everywhere, first=first, size=size)
    steps = []
    for number, member in enumerate(path):
        together = path[: number + 1]
        gain = judge.gain(together, path[:number]) if number else None
        steps.append(ChoiceStep(clients[member], judge.accuracy(together), gain, total_cost(costs, together)))
    everybody = list(range(len(clients)))
    return path, MemberChoice(
        images=len(labels_B),
        face="",
        steps=tuple(steps),
        others={clients[k]: judge.gain([*path, k], path) for k in everybody if k not in path},
        everybody=ChoiceStep(clients[-1], judge.accuracy(everybody), None, total_cost(costs, everybody)),
        gain=judge.gain(path, path[:1]),
        checked_gain=judge.checked_gain(first=first, size=size),
    )


class _Judge:
    """What committees are worth on labelled images; each is asked once."""

    def __init__(self, answer: Answer, labels_B: Tensor, members: int) -> None:
        self._answer, self._labels_B, self._members = answer, labels_B, members
        self._known: dict[frozenset[int], tuple[Tensor, Tensor]] = {}

    def accuracy(self, members: Sequence[int]) -> float:
        """Return the percent of all images that are right."""
        return 100 * float(self._judged(members)[0].double().mean())

    def gain(self, members: Sequence[int], before: Sequence[int]) -> MemberGain:
        """Return what the first committee has over the second on all images."""
        return paired_gain(self._judged(members)[0], self._judged(before)[0])

    def best_path(self, where_B: Tensor, *, first: int | None, size: int) -> list[int]:
        """Add the member that helps most until there are enough; return the best of the committees on the way.

        Whoever was only carried along, because everybody else did harm just then, is left out again.
        """
        path = [] if first is None else [first]
        best: list[int] = list(path)
        while len(path) < min(size, self._members):
            rest = [k for k in range(self._members) if k not in path]
            path = max(([*path, k] for k in rest), key=lambda members: self._worth(members, where_B))
            if not best or self._worth(path, where_B) > self._worth(best, where_B):
                best = list(path)
        for member in best[:0:-1]:  # the latest first; never the one to begin with
            without = [one for one in best if one != member]
            if self._is_as_good(without, best, where_B):
                best = without
        return best

    def _is_as_good(self, fewer: Sequence[int], more: Sequence[int], where_B: Tensor) -> bool:
        (hits, likelihood), (hits_of_more, likelihood_of_more) = self._worth(fewer, where_B), self._worth(more, where_B)
        return hits >= hits_of_more and likelihood >= likelihood_of_more - SMALLEST_GAIN

    def checked_gain(self, *, first: int | None, size: int) -> MemberGain:
        """Choose on every second image and measure on the others, both ways: no image is measured by its own choice."""
        is_even_B = torch.arange(len(self._labels_B)) % 2 == 0
        now_B, before_B = torch.zeros_like(is_even_B), torch.zeros_like(is_even_B)
        for chosen_B in (is_even_B, ~is_even_B):
            if not chosen_B.any():
                continue
            path = self.best_path(chosen_B, first=first, size=size)
            now_B[~chosen_B] = self._judged(path)[0][~chosen_B]
            before_B[~chosen_B] = self._judged(path[:1])[0][~chosen_B]
        return paired_gain(now_B, before_B)

    def _worth(self, members: Sequence[int], where_B: Tensor) -> tuple[int, float]:
        """Return how many of some images are right, and as a tie-break how probable their classes are held to be."""
        is_right_B, log_likelihood_B = self._judged(members)
        return int(is_right_B[where_B].sum()), float(log_likelihood_B[where_B].mean())

    def _judged(self, members: Sequence[int]) -> tuple[Tensor, Tensor]:
        key = frozenset(members)
        if key not in self._known:
            said_BC = self._answer(sorted(members))
            of_label_B = said_BC.gather(1, self._labels_B.unsqueeze(1)).squeeze(1)
            self._known[key] = said_BC.argmax(dim=1) == self._labels_B, of_label_B.clamp(min=1e-30).double().log()
        return self._known[key]


def paired_gain(now_B: Tensor, before_B: Tensor) -> MemberGain:
    """Return how much more is right now than before on the same images, with its 95 % interval after Bonett and Price.

    (Adjusted Wald interval for paired proportions, 2012: one imagined image of either kind of change, so that it has a
    width where nothing changed.)
    """
    gained, lost = int((now_B & ~before_B).sum()), int((before_B & ~now_B).sum())
    count = len(now_B)
    up, down = (gained + 1) / (count + 2), (lost + 1) / (count + 2)
    half = NORMAL_QUANTILE * math.sqrt((up + down - (up - down) ** 2) / (count + 2))
    low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    return MemberGain(100 * (gained - lost) / count, 100 * low, 100 * high)


def total_cost(costs: Sequence[CommitteeCost], members: Sequence[int]) -> CommitteeCost:
    """Return the cost of members that run one after the other."""
    return CommitteeCost(sum(costs[k].milliseconds for k in members), sum(costs[k].megabytes for k in members))


def measured_cost(run: Callable[[], object], nbytes: int) -> CommitteeCost:
    """Measure what a member takes; `run` runs it on 64 images."""
    run()  # the first time allocates
    seconds = []
    for _ in range(TIMED_RUNS):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return CommitteeCost(1000 * statistics.median(seconds), nbytes / 1e6)


def check_size(size: int) -> None:
    """Refuse a number of members that is none."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"a committee of {size!r} members: say a whole number, 1 or more")
