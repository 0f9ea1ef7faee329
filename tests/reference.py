"""The slow, obvious aggregation: METHOD.md sections 2-3 in plain Python, one number at a time.

It shares nothing with `crad.aggregation`, so that an error has to be made twice to go unnoticed. Everything
is a nested list of floats (float64): `q[k][b][c]`, `counts[k][c]`, `accuracies[k][c]`, `cross_entropy[k][c]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Matrix = Sequence[Sequence[float]]
Cube = Sequence[Matrix]

SUPPORTED_RULES = ("support-all",)  # everybody with support is kept
UNFILTERED_RULES = ("uniform", "uncertainty")
FILTERED_RULES = (
    "crad",
    "stage1",
    "inverse-sigma",
    "accuracy",
    "support",
    "softmax-variance",
    "lcb",
    "inverse-ce",
)
ALL_RULES = FILTERED_RULES + SUPPORTED_RULES + UNFILTERED_RULES
TIE_TOLERANCE = 1e-7


@dataclass(frozen=True)
class ClassVerdict:
    """What happened to one class of one sample; the lists run over the teachers."""

    state: list[str]
    weight: list[float]  # sums to one, or all zero when nobody may speak
    consensus: float
    band: float
    mass: float  # the target before the row is renormalised


@dataclass(frozen=True)
class ReferenceTrace:
    """The verdicts `[b][c]` and the target rows `[b][c]`."""

    verdicts: list[list[ClassVerdict]]
    target: list[list[float]]


def reference_trace(
    q: Cube,
    counts: Matrix,
    accuracies: Matrix,
    *,
    rule: str = "crad",
    min_support: float = 2,
    epsilon: float = 1e-8,
    unsupported: str = "consensus",
    cross_entropy: Matrix | None = None,
    teacher_prior: str = "keep",
    temperature: float = 1.0,
) -> ReferenceTrace:
    """Trace every sample and class through all stages."""
    if teacher_prior == "remove":
        q = [[without_prior(row, counts[k], temperature) for row in rows] for k, rows in enumerate(q)]
    num_teachers, num_samples, num_classes = len(q), len(q[0]), len(q[0][0])
    verdicts: list[list[ClassVerdict]] = []
    target: list[list[float]] = []
    for b in range(num_samples):
        rows = [q[k][b] for k in range(num_teachers)]
        certainties = [math.exp(-entropy(row)) for row in rows]
        row_verdicts = []
        for c in range(num_classes):
            ce = None if cross_entropy is None else [cross_entropy[k][c] for k in range(num_teachers)]
            row_verdicts.append(
                judge_class(
                    [row[c] for row in rows],
                    certainties=certainties,
                    n=[counts[k][c] for k in range(num_teachers)],
                    a=[accuracies[k][c] for k in range(num_teachers)],
                    ce=ce,
                    rule=rule,
                    min_support=min_support,
                    epsilon=epsilon,
                    unsupported=unsupported,
                )
            )
        verdicts.append(row_verdicts)
        target.append(renormalise([verdict.mass for verdict in row_verdicts], rows))
    return ReferenceTrace(verdicts, target)


def without_prior(row: Sequence[float], counts: Sequence[float], temperature: float) -> list[float]:
    """One teacher's prediction divided by its class shares to the power 1/T, back on the simplex."""
    samples = [max(0.0, count) + 0.5 for count in counts]
    masses = [p / (own / sum(samples)) ** (1 / temperature) for p, own in zip(row, samples, strict=True)]
    return [mass / sum(masses) for mass in masses]


def judge_class(
    speaks: Sequence[float],
    *,
    certainties: Sequence[float],
    n: Sequence[float],
    a: Sequence[float],
    ce: Sequence[float] | None,
    rule: str,
    min_support: float,
    epsilon: float,
    unsupported: str,
) -> ClassVerdict:
    """Both stages for one class of one sample; `speaks[k]` is teacher k's probability of the class."""
    teachers = range(len(speaks))
    plain_mean = sum(speaks) / len(speaks)

    if rule in UNFILTERED_RULES:
        state = ["kept" for _ in teachers]
        consensus = plain_mean
        band = 0.0
    else:
        supported = [k for k in teachers if n[k] >= min_support]
        if not supported:
            share = 1 / len(speaks) if unsupported == "consensus" else 0.0
            mass = plain_mean if unsupported == "consensus" else 0.0
            return ClassVerdict(["unsupported"] * len(speaks), [share] * len(speaks), plain_mean, 0.0, mass)
        consensus = sum(speaks[k] for k in supported) / len(supported)
        deviations = [abs(speaks[k] - consensus) for k in supported]
        band = max(deviations) if rule in SUPPORTED_RULES else lower_median(deviations)
        state = []
        for k in teachers:
            if k not in supported:
                state.append("unsupported")
            elif abs(speaks[k] - consensus) <= band + TIE_TOLERANCE:
                state.append("kept")
            else:
                state.append("outlier")

    kept = [k for k in teachers if state[k] == "kept"]
    weights = {k: weigh(rule, k, certainties, n, a, ce, kept, epsilon) for k in kept}
    if all(weight == 0 for weight in weights.values()):
        weights = dict.fromkeys(kept, 1.0)
    total = sum(weights.values())
    mass = sum(weights[k] * speaks[k] for k in kept) / (total + epsilon)
    return ClassVerdict(state, [weights.get(k, 0.0) / total for k in teachers], consensus, band, mass)


def weigh(
    rule: str,
    k: int,
    certainties: Sequence[float],
    n: Sequence[float],
    a: Sequence[float],
    ce: Sequence[float] | None,
    kept: Sequence[int],
    epsilon: float,
) -> float:
    """The last column of METHOD.md's table, for teacher k."""
    smoothed, variance = agresti_coull(n[k], a[k])
    if rule == "crad":
        return 1 / (variance + epsilon)
    if rule in ("uniform", "stage1"):
        return 1.0
    if rule == "uncertainty":
        return certainties[k] / sum(certainties[j] for j in kept)
    if rule == "inverse-sigma":
        return 1 / (math.sqrt(variance) + epsilon)
    if rule == "accuracy":
        return a[k]
    if rule in ("support", "support-all"):
        return n[k]
    if rule == "softmax-variance":
        return math.exp(-variance) / sum(math.exp(-agresti_coull(n[j], a[j])[1]) for j in kept)
    if rule == "lcb":
        return max(0.0, smoothed - math.sqrt(variance))
    assert rule == "inverse-ce", rule
    assert ce is not None
    return 1 / (ce[k] + epsilon)


def agresti_coull(n: float, a: float) -> tuple[float, float]:
    """The smoothed accuracy and its variance (Eq. 7)."""
    smoothed = (a * n + 2) / (n + 4)
    return smoothed, smoothed * (1 - smoothed) / (n + 4)


def entropy(row: Sequence[float]) -> float:
    """In nats, with 0 log 0 = 0."""
    return -sum(p * math.log(p) for p in row if p > 0)


def lower_median(values: Sequence[float]) -> float:
    """The middle value, or the smaller of the two in the middle."""
    return sorted(values)[(len(values) - 1) // 2]


def renormalise(masses: Sequence[float], rows: Matrix) -> list[float]:
    """The row on the simplex; a row in which nobody put any mass is the plain mean of all peers."""
    total = sum(masses)
    if total == 0:
        return [sum(row[c] for row in rows) / len(rows) for c in range(len(masses))]
    return [mass / total for mass in masses]
