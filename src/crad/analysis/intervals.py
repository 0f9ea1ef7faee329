"""Differences between two methods with the same seeds, and how sure one can be of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from crad.analysis.comparison import Figure, over_seeds

LEVEL = 0.95
NORMAL_QUANTILE = 1.959964  # what a normal value stays within on both sides, at that level


@dataclass(frozen=True)
class Paired:
    """One method minus another, seed by seed."""

    figure: Figure
    seeds: tuple[int, ...]  # that both were run with

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return where the mean difference lies with 95 % confidence, by Student's t; None of one seed alone."""
        return t_interval(self.figure)

    @property
    def sign(self) -> int:
        """1 where the whole interval is above zero, -1 where it is below, else 0: nothing is shown."""
        if self.interval is None:
            return 0
        low, high = self.interval
        return (low > 0) - (high < 0)


def paired(own: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Return the difference of values by seed; seeds that only one has are left out, None where no seed is common."""
    seeds = tuple(seed for seed in own if seed in theirs)
    if not seeds:
        return None
    return Paired(over_seeds([own[seed] - theirs[seed] for seed in seeds]), seeds)


def t_interval(figure: Figure) -> tuple[float, float] | None:
    """Return where a mean lies with 95 % confidence, by Student's t over its values; None of one value alone."""
    number = len(figure.values)
    if number < 2:
        return None
    half = t_quantile(number - 1) * figure.deviation / math.sqrt(number)
    return figure.mean - half, figure.mean + half


def gain_interval(by_seed: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return where the mean gain of the clients lies, from every client's gain seed by seed; None with one seed.

    The interval over the seeds' means, as wide as that over all (seed, client) pairs at least: two seeds that agree by
    luck prove nothing.
    """
    over_clients = over_seeds([statistics.fmean(own) for own in by_seed])
    intervals = t_interval(over_clients), t_interval(over_seeds([gain for own in by_seed for gain in own]))
    if intervals[0] is None or intervals[1] is None:
        return None
    half = max((high - low) / 2 for low, high in (intervals[0], intervals[1]))
    return over_clients.mean - half, over_clients.mean + half


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """Return between which percents a share of hits lies with 95 % confidence, after Wilson; all of them of no samples.

    Unlike the textbook's it has a width where all samples, or none, are hits, which is common of twenty.
    """
    if not count:
        return 0.0, 100.0
    share, spread = hits / count, NORMAL_QUANTILE**2 / count
    middle = share + spread / 2
    half = math.sqrt(spread * (share * (1 - share) + spread / 4))
    ends = ((middle - half) / (1 + spread), (middle + half) / (1 + spread))
    return max(0.0, 100 * ends[0]), min(100.0, 100 * ends[1])


@cache
def t_quantile(freedom: int, *, level: float = LEVEL) -> float:
    """Return what Student's t with so many degrees of freedom stays within on both sides, with this probability."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # halved to the precision of a double
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return the probability that |t| stays below sqrt(freedom) tan(angle): for whole freedom a finite sum."""
    cosine, is_odd = math.cos(angle), freedom % 2
    term, total = (cosine if is_odd else 1.0), 0.0
    for number in range(1 + is_odd, freedom, 2):
        total += term
        term *= cosine**2 * number / (number + 1)
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if is_odd else total
