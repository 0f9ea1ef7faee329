"""What guesses about canaries prove: a lower bound on epsilon from one run (Steinke, Nasr, Jagielski 2023).

Numbers in, numbers out. Every canary was in the training data or not, by a coin of its own. Who guesses r of these
coins from what was published, and leaves the others open, is right v times or more under (epsilon, delta)-differential
privacy with a small chance only: that of r coins of bias e^epsilon / (1 + e^epsilon), and a term for delta.

An alarm for gross faults, no evidence of privacy: even a perfect attack on r canaries proves no more than `ceiling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HALVINGS = 40  # of the interval in which the bound lies
# Of the canaries, fixed in advance: tails for much noise, all for none.
GUESSED_SHARES = (0.1, 1 / 3, 1.0)
# Only that some were in: without noise an included one that no batch has drawn looks as if it had been left out.
GUESSED_IN = 1 / 3


@dataclass(frozen=True)
class Guesses:
    """How many coins were thrown, guessed, and guessed rightly."""

    canaries: int
    guesses: int
    correct: int

    def __add__(self, other: Guesses) -> Guesses:
        """Return both together: canaries of two clients are records of one federation."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Guesses(*(one + another for one, another in pairs))


@dataclass(frozen=True)
class Bound:
    """The guesses that prove most, what they prove, and what they would prove if all were right."""

    guesses: Guesses
    epsilon: float
    ceiling: float


def count_guesses(scores: Sequence[float], is_included: Sequence[bool], *, share: float) -> Guesses:
    """Guess that the highest scores were included and the lowest were not, this share of all canaries."""
    order = sorted(range(len(scores)), key=lambda place: (scores[place], place))
    each = int(share * len(order) / 2)
    if not each:
        return Guesses(len(order), 0, 0)
    correct = sum(not is_included[place] for place in order[:each])
    correct += sum(bool(is_included[place]) for place in order[-each:])
    return Guesses(len(order), 2 * each, correct)


def count_guesses_in(scores: Sequence[float], is_included: Sequence[bool], *, share: float) -> Guesses:
    """Guess that the highest scores, this share of all canaries, were included; leave the others open."""
    order = sorted(range(len(scores)), key=lambda place: (scores[place], place))
    count = int(share * len(order))
    return Guesses(len(order), count, sum(bool(is_included[place]) for place in order[len(order) - count :]))


def best_bound(candidates: Sequence[Guesses], *, delta: float, confidence: float) -> Bound:
    """Return the best of several bounds; all of them hold together with the confidence (Bonferroni)."""
    each = 1 - (1 - confidence) / len(candidates)
    found = [
        Bound(
            one,
            epsilon_lower_bound(one, delta=delta, confidence=each),
            epsilon_lower_bound(Guesses(one.canaries, one.guesses, one.guesses), delta=delta, confidence=each),
        )
        for one in candidates
    ]
    best = max(found, key=lambda bound: (bound.epsilon, bound.ceiling))
    return Bound(best.guesses, best.epsilon, max(bound.ceiling for bound in found))


def epsilon_lower_bound(guesses: Guesses, *, delta: float, confidence: float) -> float:
    """Return the largest epsilon that so many right guesses refute; zero: they refute none."""
    level = 1 - confidence
    if p_value(guesses, epsilon=0.0, delta=delta) >= level:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(guesses, epsilon=high, delta=delta) < level:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(guesses, epsilon=middle, delta=delta) < level else (low, middle)
    return low


def p_value(guesses: Guesses, *, epsilon: float, delta: float) -> float:
    """Return how likely as many right guesses are at most, if training is (epsilon, delta)-private.

    beta + 2 m delta max_i P[v - i <= X < v] / i, where X is binomial and beta = P[X >= v].
    """
    r, v = guesses.guesses, guesses.correct
    assert 0 <= v <= r <= guesses.canaries, "no more right than guessed, no more guessed than there are"
    chances = binomial_chances(r, 1 / (1 + math.exp(-epsilon)))
    beta = math.fsum(chances[v:])
    below, alpha = 0.0, 0.0
    for i in range(1, v + 1):
        below += chances[v - i]
        alpha = max(alpha, below / i)
    return min(1.0, beta + 2 * guesses.canaries * delta * alpha)


def binomial_chances(trials: int, chance: float) -> list[float]:
    """Return how likely 0, 1, ... successes of so many trials are."""
    if chance >= 1.0:  # rounded: epsilon above 36
        return [0.0] * trials + [1.0]
    yes, no, whole = math.log(chance), math.log1p(-chance), math.lgamma(trials + 1)
    return [
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * yes + (trials - k) * no)
        for k in range(trials + 1)
    ]
