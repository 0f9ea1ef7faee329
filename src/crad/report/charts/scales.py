"""Axes that stay readable however few results there are: a run of one round, one point, or all values alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

FEW_ROUNDS = 10  # each of them is named
STEPS = (1, 2, 5, 10)


def padded_domain(values: Sequence[float], *, least: float, bounds: tuple[float, float] | None = None) -> list[float]:
    """Return a domain around the values with a little room at its ends; never narrower than `least`.

    `bounds`: what no value can leave, such as 0 and 100 percent; beyond them there is only room for half a mark.
    """
    low, high = min(values), max(values)
    span = max(high - low, least)
    ends = [low - 0.06 * span, high + 0.06 * span]
    if high - low < least:
        ends = [(low + high - least) / 2, (low + high + least) / 2]
    if bounds is not None:
        lowest, highest = bounds[0] - 0.02 * span, bounds[1] + 0.02 * span
        if high - low < least:  # at a bound all the room is on the other side
            shift = max(0.0, lowest - ends[0]) - max(0.0, ends[1] - highest)
            ends = [end + shift for end in ends]
        ends = [max(lowest, ends[0]), min(highest, ends[1])]
    return [round(end, 3) for end in ends]


def round_domain(last: int, planned: int) -> list[float]:
    """Return the rounds that an axis shows, for a run that has come to `last` and may still go on to `planned`.

    The whole run where that is not far; a live page of 300 rounds grows in steps, or its first curve would be a dot.
    """
    end = min(max(planned, last), _round_number_above(max(last, FEW_ROUNDS)))
    return [0.5, end + 0.5] if end <= FEW_ROUNDS else [0, end]


def round_ticks(domain: Sequence[float]) -> list[int]:
    """Return the rounds that are named on an axis of this domain: whole ones, at most seven or so."""
    end = math.floor(domain[1])
    step = next(step for step in _round_numbers() if end / step <= 7 or (step == 1 and end <= FEW_ROUNDS))
    return [tick for tick in range(0, end + 1, step) if tick >= domain[0]]


def _round_number_above(value: int) -> int:
    return next(number for number in _round_numbers() if number >= value)


def _round_numbers() -> list[int]:
    return [factor * 10**power for power in range(9) for factor in STEPS[:3]]
