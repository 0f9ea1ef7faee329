"""Every equation of the aggregation against numbers worked out by hand.

Shapes: K teachers, B samples, C classes. Where a comment shows arithmetic, it leaves out epsilon (1e-8), which
moves the sixth digit at most; "published" marks a figure of the paper's appendix, "chosen" one of ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch

import crad
from crad.aggregation import TeacherStats

CLOSE = 1e-6

Unsupported = Literal["consensus", "zero"]


def tensor(values: Sequence[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_sample(*rows: Sequence[float]) -> torch.Tensor:
    """q [K,1,C] from one row per teacher."""
    return tensor([[row] for row in rows])


def same_for_every_class(per_teacher: Sequence[float], num_classes: int) -> torch.Tensor:
    """[K,C] from one value per teacher."""
    return tensor([[value] * num_classes for value in per_teacher])


def spread(probabilities: Sequence[float], num_classes: int = 10) -> torch.Tensor:
    """q [K,1,C]: each teacher's probability on class 0, the rest spread evenly over the other classes."""
    return one_sample(*[[p] + [(1 - p) / (num_classes - 1)] * (num_classes - 1) for p in probabilities])


def assert_row(target_BC: torch.Tensor, expected: Sequence[float], tolerance: float = CLOSE) -> None:
    assert target_BC.shape == (1, len(expected))
    assert target_BC[0].tolist() == pytest.approx(list(expected), abs=tolerance)


# Smoothing and precision (Eqs. 7-8), seen through the weights of two teachers that agree.


def weights_of(*stats: tuple[float, float], rule: str = "crad") -> list[float]:
    """The normalised weights, on one class, of two teachers (n, a) that predict the same."""
    q_KBC = one_sample(*[[0.5, 0.5]] * len(stats))
    counts = same_for_every_class([n for n, _ in stats], 2)
    accuracies = same_for_every_class([a for _, a in stats], 2)
    weight_KBC = crad.explain(q_KBC, counts, accuracies, rule=rule).weight
    return [float(weight) for weight in weight_KBC[:, 0, 0]]


# (n=12, a=0.5): a~ = (6 + 2) / 16 = 0.5, var = 0.25 / 16 = 1/64, precision 64. The yardstick below.
YARDSTICK = (12, 0.5)


@pytest.mark.parametrize(
    ("n", "a", "precision"),
    [
        # a~ = (8 + 2) / 14 = 5/7, var = (10/49) / 14, precision = 14 * 49 / 10
        (10, 0.8, 68.6),
        # a~ = (78 + 2) / 100 = 0.8, var = 0.16 / 100 = 0.0016
        (96, 0.8125, 625.0),
        # a~ = (0 + 2) / 6 = 1/3, var = (2/9) / 6 = 1/27: no hit in two still has a finite precision
        (2, 0.0, 27.0),
        # a~ = 182 / 184, var = (182 * 2 / 184^2) / 184, precision = 184^3 / 364 = 6229504 / 364
        (180, 1.0, 17_114.0),
        (180, 0.0, 17_114.0),
        # a~ = (144 + 2) / 184 = 146 / 184, precision = 184^3 / (146 * 38) = 6229504 / 5548
        (180, 0.8, 1_122.8),
    ],
)
def test_precision_is_the_inverse_of_the_agresti_coull_variance(n: float, a: float, precision: float) -> None:
    weight, yardstick = weights_of((n, a), YARDSTICK)
    assert 64 * weight / yardstick == pytest.approx(precision, rel=2e-3)


def test_always_wrong_weighs_the_same_as_always_right() -> None:
    """Known and kept: the filter, not the weight, stops a confidently wrong teacher."""
    assert weights_of((180, 0.0), (180, 1.0)) == pytest.approx([0.5, 0.5], abs=1e-9)


def test_decisive_teacher_outweighs_a_good_one_with_the_same_evidence() -> None:
    # 17114 / (17114 + 1122.8) = 0.93843
    assert weights_of((180, 0.0), (180, 0.8)) == pytest.approx([0.93843, 0.06157], abs=1e-4)


def test_private_count_enters_support_and_variance_as_it_is() -> None:
    # n = 2.3 is supported: a~ = (1.15 + 2) / 6.3 = 0.5, var = 0.25 / 6.3, precision 25.2; n = 1.7 is not.
    weights = weights_of((2.3, 0.5), (1.7, 0.5), YARDSTICK)
    assert weights == pytest.approx([25.2 / 89.2, 0.0, 64 / 89.2], abs=CLOSE)


def test_epsilon_stands_in_the_weight_and_below_the_fraction() -> None:
    # K = 1, epsilon = 1. Class 0, var 1/64: w = 1 / (1/64 + 1) = 64/65, w / (w + 1) = 64/129.
    # Class 1, var 1/625: w = 625/626, w / (w + 1) = 625/1251.
    target = crad.aggregate(one_sample([0.6, 0.4]), tensor([[12, 96]]), tensor([[0.5, 0.8125]]), epsilon=1.0)
    left, right = 0.6 * 64 / 129, 0.4 * 625 / 1251
    assert_row(target, [left / (left + right), right / (left + right)])


# The filter (Eqs. 5-6).


def test_teacher_beyond_the_median_deviation_is_an_outlier() -> None:
    # Class 0: consensus (0.9 + 0.8 + 0.1) / 3 = 0.6, deviations 0.3, 0.2, 0.5, median 0.3. Class 1 mirrors it.
    trace = crad.explain(one_sample([0.9, 0.1], [0.8, 0.2], [0.1, 0.9]), *equal_stats(3, 2))
    assert trace.consensus[0].tolist() == pytest.approx([0.6, 0.4])
    assert trace.band[0].tolist() == pytest.approx([0.3, 0.3])
    assert trace.state[:, 0, 0].tolist() == ["kept", "kept", "outlier"]
    assert trace.weight[:, 0, 0].tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert_row(trace.target, [0.85, 0.15])


def test_band_of_an_even_count_is_the_lower_median() -> None:
    # Class 0: consensus (0.5 + 0.6 + 0.8 + 0.9) / 4 = 0.7, deviations 0.2, 0.1, 0.1, 0.2: sorted 0.1, 0.1, 0.2, 0.2.
    q_KBC = one_sample([0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.9, 0.1])
    trace = crad.explain(q_KBC, *equal_stats(4, 2))
    assert trace.band[0, 0].item() == pytest.approx(0.1)
    assert trace.state[:, 0, 0].tolist() == ["outlier", "kept", "kept", "outlier"]
    assert_row(trace.target, [0.7, 0.3])


def test_each_class_and_sample_keeps_its_own_teachers() -> None:
    # Sample 0, class 0: 0.6 0.5 0.1, consensus 0.4, deviations 0.2 0.1 0.3: teacher 2 out, mass 0.55.
    #           class 1: 0.3 0.1 0.2, consensus 0.2, deviations 0.1 0.1 0.0: all kept, mass 0.2.
    #           class 2: 0.1 0.4 0.7, consensus 0.4, deviations 0.3 0.0 0.3: all kept, mass 0.4.
    # Sample 1 is the same with teachers 0 and 2 exchanged, so its target is the same and its outlier is teacher 0.
    first = [[0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.1, 0.2, 0.7]]
    q_KBC = tensor([[first[0], first[2]], [first[1], first[1]], [first[2], first[0]]])
    trace = crad.explain(q_KBC, *equal_stats(3, 3))
    assert trace.state[:, 0, :].tolist() == [["kept"] * 3, ["kept"] * 3, ["outlier", "kept", "kept"]]
    assert trace.state[:, 1, :].tolist() == [["outlier", "kept", "kept"], ["kept"] * 3, ["kept"] * 3]
    expected = [0.55 / 1.15, 0.2 / 1.15, 0.4 / 1.15]
    assert trace.target[0].tolist() == pytest.approx(expected, abs=CLOSE)
    assert trace.target[1].tolist() == pytest.approx(expected, abs=CLOSE)


def test_unsupported_teacher_moves_neither_consensus_nor_band() -> None:
    # The third teacher has one sample of each class; consensus (0.9 + 0.7) / 2, both deviate by 0.1.
    counts, accuracies = tensor([[12, 12], [12, 12], [1, 1]]), torch.full((3, 2), 0.5)
    trace = crad.explain(one_sample([0.9, 0.1], [0.7, 0.3], [0.0, 1.0]), counts, accuracies)
    assert trace.consensus[0].tolist() == pytest.approx([0.8, 0.2])
    assert trace.band[0].tolist() == pytest.approx([0.1, 0.1])
    assert trace.state[:, 0, 0].tolist() == ["kept", "kept", "unsupported"]
    assert trace.weight[2].tolist() == [[0.0, 0.0]]
    assert_row(trace.target, [0.8, 0.2])


def test_min_support_is_the_smallest_count_that_may_speak() -> None:
    q_KBC, accuracies = one_sample([0.9, 0.1], [0.7, 0.3]), torch.full((2, 2), 0.5)
    counts = tensor([[5, 5], [4, 4]])
    assert crad.explain(q_KBC, counts, accuracies, min_support=4).state[:, 0, 0].tolist() == ["kept", "kept"]
    assert crad.explain(q_KBC, counts, accuracies, min_support=5).state[:, 0, 0].tolist() == [
        "kept",
        "unsupported",
    ]
    assert_row(crad.aggregate(q_KBC, counts, accuracies, min_support=5), [0.9, 0.1])


def test_two_samples_are_enough_and_one_is_not_unless_told_otherwise() -> None:
    # The third teacher is unsupported, the second is not: the mean of the first two.
    counts = same_for_every_class([2, 2, 1], 2)
    target = crad.aggregate(one_sample([0.9, 0.1], [0.7, 0.3], [0.1, 0.9]), counts, torch.full((3, 2), 0.5))
    assert_row(target, [0.8, 0.2])


def test_min_support_zero_lets_everybody_speak() -> None:
    trace = crad.explain(one_sample([0.9, 0.1], [0.7, 0.3]), torch.zeros(2, 2), torch.zeros(2, 2), min_support=0)
    assert set(trace.state.flatten()) == {"kept"}
    assert_row(trace.target, [0.8, 0.2])


def equal_stats(num_teachers: int, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts and accuracies that are the same for everybody, so that the kept count equally."""
    return torch.full((num_teachers, num_classes), 12.0), torch.full((num_teachers, num_classes), 0.5)


# The appendix. The rest of each teacher's mass lies evenly on nine other classes with the same statistics, so their
# deviations are a ninth of those shown, the same teachers are kept with the same weights, the row already sums to one
# before it is renormalised, and the per-class figure of the paper is the figure of the target.


def test_success_case_of_the_appendix() -> None:
    # Published: ten clients, two with one sample, eight supported, four kept, four outliers; C1 has n = 180,
    # says 80.1 % and gets 59.5 % of the weight; consensus 68.3 %, target 79.4 %. Chosen: everything else.
    # C0 and C9 hold one sample. C1, C3, C6, C8 survive; C2, C4, C5, C7 are the outliers.
    says = [0.05, 0.801, 0.98, 0.79, 0.97, 0.203, 0.78, 0.16, 0.78, 0.10]
    counts = [1, 180, 20, 60, 15, 30, 50, 12, 43, 1]
    hits = [0, 144, 10, 42, 8, 10, 35, 3, 30, 1]
    # Consensus: (80.1 + 98 + 79 + 97 + 20.3 + 78 + 16 + 78) / 8 = 546.4 / 8 = 68.3
    # Deviations: 11.8, 29.7, 10.7, 28.7, 48, 9.7, 52.3, 9.7; the fourth of eight is tau = 11.8
    # Precisions (n + 4) / (a~ (1 - a~)): C1 1122.8, C3 297.9, C6 250.3, C8 216.3, together 1887.3
    # Weight of C1: 1122.8 / 1887.3 = 59.5 %
    # Target: (1122.8 * 80.1 + 297.9 * 79 + 250.3 * 78 + 216.3 * 78) / 1887.3 = 79.4
    trace = crad.explain(
        spread(says),
        same_for_every_class(counts, 10),
        same_for_every_class([h / n for h, n in zip(hits, counts, strict=True)], 10),
    )
    state = trace.state[:, 0, 0].tolist()
    assert [k for k in range(10) if state[k] == "unsupported"] == [0, 9]
    assert [k for k in range(10) if state[k] == "kept"] == [1, 3, 6, 8]
    assert [k for k in range(10) if state[k] == "outlier"] == [2, 4, 5, 7]
    assert trace.consensus[0, 0].item() == pytest.approx(0.683, abs=1e-6)
    assert trace.band[0, 0].item() == pytest.approx(0.118, abs=1e-6)
    assert trace.weight[:, 0, 0].argmax().item() == 1
    assert trace.weight[1, 0, 0].item() == pytest.approx(0.595, abs=1e-3)
    assert trace.target[0, 0].item() == pytest.approx(0.794, abs=1e-3)
    assert trace.target[0, 0] > trace.consensus[0, 0]


def test_failure_case_of_the_appendix() -> None:
    # Published: C7 has n = 258, accuracy 90.5 % and says 63.7 %, yet is removed; consensus 27.5 %, tau 6.8 %,
    # target 27.2 %. Chosen: ten supported teachers, the nine other predictions and their statistics.
    says = [0.343, 0.30, 0.28, 0.25, 0.22, 0.16, 0.17, 0.637, 0.19, 0.20]
    counts = [20, 30, 40, 30, 40, 10, 25, 258, 30, 15]
    accuracies = [0.5] * 7 + [0.905] + [0.5] * 2
    # Consensus: (34.3 + 30 + 28 + 25 + 22 + 16 + 17 + 63.7 + 19 + 20) / 10 = 275.2 / 10 = 27.52
    # Deviations: 6.78, 2.48, 0.48, 2.52, 5.52, 11.52, 10.52, 36.18, 8.52, 7.52; the fifth of ten is tau = 6.78
    # Precisions 4 (n + 4) of the first five: 96, 136, 176, 136, 176, together 720
    # Target: (96 * 34.3 + 136 * 30 + 176 * 28 + 136 * 25 + 176 * 22) / 720 = 19572.8 / 720 = 27.18
    trace = crad.explain(spread(says), same_for_every_class(counts, 10), same_for_every_class(accuracies, 10))
    assert trace.state[:, 0, 0].tolist() == ["kept"] * 5 + ["outlier"] * 5
    assert trace.weight[7, 0, 0].item() == 0
    assert trace.consensus[0, 0].item() == pytest.approx(0.275, abs=1e-3)
    assert trace.band[0, 0].item() == pytest.approx(0.068, abs=1e-3)
    assert trace.target[0, 0].item() == pytest.approx(0.272, abs=1e-3)


# The ten rules on one example. Teachers 0 and 1 are kept on both classes, teacher 2 is the outlier of
# `test_teacher_beyond_the_median_deviation_is_an_outlier`. Teacher 0 has (n=12, a=0.5) on class 0: a~ = 0.5,
# var = 1/64, sigma = 1/8. Teacher 1 has (n=96, a=0.8125): a~ = 0.8, var = 1/625, sigma = 1/25. Class 1 is exchanged.

EXAMPLE_Q = one_sample([0.9, 0.1], [0.8, 0.2], [0.1, 0.9])
EXAMPLE_COUNTS = tensor([[12, 96], [96, 12], [50, 50]])
EXAMPLE_ACCURACIES = tensor([[0.5, 0.8125], [0.8125, 0.5], [1.0, 1.0]])
EXAMPLE_CROSS_ENTROPY = tensor([[0.5, 0.25], [0.25, 0.5], [0.01, 0.01]])

# exp(-entropy) of (0.9, 0.1) and (0.8, 0.2): exp(0.9 ln 0.9 + 0.1 ln 0.1) = exp(-0.325083), exp(-0.500402)
CERTAIN, UNCERTAIN = math.exp(-0.325083), math.exp(-0.500402)
# softmax(-var) of the two kept, as a ratio: exp(-(1/64 - 1/625)) = exp(-0.014025)
RATIO = math.exp(-0.014025)


@pytest.mark.parametrize(
    ("rule", "masses"),
    [
        # w = 64, 625: (57.6 + 500) / 689, (62.5 + 12.8) / 689
        ("crad", [557.6, 75.3]),
        # all three: (0.9 + 0.8 + 0.1) / 3, (0.1 + 0.2 + 0.9) / 3
        ("uniform", [0.6, 0.4]),
        ("uncertainty", [CERTAIN * 1.0 + UNCERTAIN * 0.8, CERTAIN * 1.0 + UNCERTAIN * 0.2]),
        # (0.9 + 0.8) / 2, (0.1 + 0.2) / 2
        ("stage1", [0.85, 0.15]),
        # w = 8, 25: (7.2 + 20) / 33, (2.5 + 1.6) / 33
        ("inverse-sigma", [27.2, 4.1]),
        # w = 0.5, 0.8125: (0.45 + 0.65) / 1.3125, (0.08125 + 0.1) / 1.3125
        ("accuracy", [1.1, 0.18125]),
        # w = 12, 96: (10.8 + 76.8) / 108, (9.6 + 2.4) / 108
        ("support", [87.6, 12.0]),
        # all three, w = 12, 96, 50 and 96, 12, 50: 10.8 + 76.8 + 5 over 158, 9.6 + 2.4 + 45 over 158
        ("support-all", [92.6, 57.0]),
        ("softmax-variance", [0.9 * RATIO + 0.8, 0.1 + 0.2 * RATIO]),
        # w = 0.5 - 0.125, 0.8 - 0.04: (0.3375 + 0.608) / 1.135, (0.076 + 0.075) / 1.135
        ("lcb", [0.9455, 0.151]),
        # w = 2, 4: (1.8 + 3.2) / 6, (0.4 + 0.4) / 6
        ("inverse-ce", [5.0, 0.8]),
    ],
)
def test_rule_by_hand(rule: str, masses: list[float]) -> None:
    target = crad.aggregate(
        EXAMPLE_Q, EXAMPLE_COUNTS, EXAMPLE_ACCURACIES, rule=rule, cross_entropy=EXAMPLE_CROSS_ENTROPY
    )
    # Both classes share the denominator, so renormalising the row removes it.
    assert_row(target, [masses[0] / sum(masses), masses[1] / sum(masses)])


def test_the_ten_rules_are_the_ones_of_the_method_and_two_go_beyond_it() -> None:
    assert set(crad.RULES) - {"crad-plus", "support-all"} == {
        "crad",
        "uniform",
        "uncertainty",
        "stage1",
        "inverse-sigma",
        "accuracy",
        "support",
        "softmax-variance",
        "lcb",
        "inverse-ce",
    }


def test_crad_is_the_default_rule() -> None:
    arguments = (EXAMPLE_Q, EXAMPLE_COUNTS, EXAMPLE_ACCURACIES)
    assert crad.aggregate(*arguments).equal(crad.aggregate(*arguments, rule="crad"))


@pytest.mark.parametrize("rule", ["uniform", "uncertainty"])
def test_rule_without_a_filter_keeps_even_the_unsupported(rule: str) -> None:
    trace = crad.explain(EXAMPLE_Q, torch.zeros(3, 2), torch.zeros(3, 2), rule=rule)
    assert set(trace.state.flatten()) == {"kept"}
    assert trace.target.equal(crad.aggregate(EXAMPLE_Q, EXAMPLE_COUNTS, EXAMPLE_ACCURACIES, rule=rule))


def test_uncertainty_takes_a_certain_teacher_without_a_nan() -> None:
    # Entropies 0 and ln 2: weights 1 and 1/2, so 2/3 and 1/3. Target (2/3 + 1/6, 1/6).
    target = crad.aggregate(one_sample([1.0, 0.0], [0.5, 0.5]), *equal_stats(2, 2), rule="uncertainty")
    assert_row(target, [5 / 6, 1 / 6])


def test_explanation_weights_are_the_rules_own() -> None:
    trace = crad.explain(EXAMPLE_Q, EXAMPLE_COUNTS, EXAMPLE_ACCURACIES, rule="support")
    assert trace.weight[:, 0, 0].tolist() == pytest.approx([12 / 108, 96 / 108, 0.0], abs=CLOSE)
    assert trace.weight[:, 0, 1].tolist() == pytest.approx([96 / 108, 12 / 108, 0.0], abs=CLOSE)


# Odd cases.


@pytest.mark.parametrize("rule", ["accuracy", "support"])
def test_kept_teachers_without_any_weight_count_equally(rule: str) -> None:
    # On class 0 nobody ever hit and nobody holds a sample; min_support = 0 still lets them speak: (0.9 + 0.7) / 2.
    # On class 1 teacher 0 alone has weight, so the mass is 0.1.
    counts, accuracies = tensor([[0, 9], [0, 0]]), tensor([[0.0, 1.0], [0.0, 0.0]])
    trace = crad.explain(one_sample([0.9, 0.1], [0.7, 0.3]), counts, accuracies, rule=rule, min_support=0)
    assert trace.weight[:, 0, 0].tolist() == pytest.approx([0.5, 0.5])
    assert trace.weight[:, 0, 1].tolist() == pytest.approx([1.0, 0.0])
    assert_row(trace.target, [0.8 / 0.9, 0.1 / 0.9])


# Class 2 belongs to nobody. Classes 0 and 1: consensus and target 0.5 and 0.3; class 2: plain mean 0.2.
ORPHAN_Q = one_sample([0.6, 0.2, 0.2], [0.4, 0.4, 0.2])
ORPHAN_COUNTS = tensor([[12, 12, 0], [12, 12, 1]])
HALF_RIGHT = torch.full((2, 3), 0.5, dtype=torch.float64)


def test_class_nobody_supports_gets_the_plain_mean_of_all_peers() -> None:
    trace = crad.explain(ORPHAN_Q, ORPHAN_COUNTS, HALF_RIGHT)
    assert trace.state[:, 0, 2].tolist() == ["unsupported", "unsupported"]
    assert trace.weight[:, 0, 2].tolist() == pytest.approx([0.5, 0.5])
    assert_row(trace.target, [0.5, 0.3, 0.2])


def test_class_nobody_supports_gets_nothing_under_the_literal_equation() -> None:
    trace = crad.explain(ORPHAN_Q, ORPHAN_COUNTS, HALF_RIGHT, unsupported="zero")
    assert trace.state[:, 0, 2].tolist() == ["unsupported", "unsupported"]
    assert trace.weight[:, 0, 2].tolist() == [0.0, 0.0]
    assert trace.target[0, 2].item() == 0
    assert_row(trace.target, [0.625, 0.375, 0.0])


@pytest.mark.parametrize("unsupported", ["consensus", "zero"])
def test_nobody_supports_anything_gives_the_plain_mean(unsupported: Unsupported) -> None:
    trace = crad.explain(ORPHAN_Q, torch.zeros(2, 3), torch.zeros(2, 3), unsupported=unsupported)
    assert set(trace.state.flatten()) == {"unsupported"}
    assert_row(trace.target, [0.5, 0.3, 0.2])


@pytest.mark.parametrize("unsupported", ["consensus", "zero"])
def test_row_whose_speakers_all_say_zero_stays_on_the_simplex(unsupported: Unsupported) -> None:
    """A saturated softmax holds exact zeros: each teacher rules out the only class it may speak for."""
    counts = tensor([[12, 0], [0, 12]])
    target = crad.aggregate(
        one_sample([0.0, 1.0], [1.0, 0.0]), counts, torch.full((2, 2), 0.5), unsupported=unsupported
    )
    assert_row(target, [0.5, 0.5])


def test_row_with_hardly_any_mass_is_still_scaled_to_one() -> None:
    counts = tensor([[12, 0], [0, 12]])
    target = crad.aggregate(one_sample([3e-12, 1.0], [1.0, 1e-12]), counts, torch.full((2, 2), 0.5))
    assert_row(target, [0.75, 0.25])


@pytest.mark.parametrize("rule", sorted(crad.RULES))
def test_only_teacher_is_repeated(rule: str) -> None:
    target = crad.aggregate(
        one_sample([0.7, 0.2, 0.1]),
        tensor([[12, 1, 96]]),
        tensor([[0.5, 1.0, 0.8125]]),
        rule=rule,
        cross_entropy=tensor([[0.5, 0.1, 0.25]]),
    )
    assert_row(target, [0.7, 0.2, 0.1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_teachers_tie_exactly_and_are_both_kept(dtype: torch.dtype) -> None:
    """Their deviations are equal but for rounding, which must not choose between them."""
    q_KBC = one_sample([0.1, 0.2, 0.7], [0.3, 0.61, 0.09]).to(dtype)
    trace = crad.explain(q_KBC, *equal_stats(2, 3))
    assert set(trace.state.flatten()) == {"kept"}
    assert_row(trace.target, [0.2, 0.405, 0.395])


@pytest.mark.parametrize(("excess", "state"), [(0.5e-7, "kept"), (2e-7, "outlier")])
def test_ties_are_allowed_a_ten_millionth(excess: float, state: str) -> None:
    # Class 0, with x = 3 * excess: 0.5, 0.4, 0.6 + x, consensus 0.5 + x/3, deviations x/3, 0.1 + x/3 = tau, 0.1 + 2x/3:
    # the third lies x/3 = excess beyond the band. Class 1 mirrors it.
    high = 0.6 + 3 * excess
    trace = crad.explain(one_sample([0.5, 0.5], [0.4, 0.6], [high, 1 - high]), *equal_stats(3, 2))
    assert trace.state[:, 0, 0].tolist() == ["kept", "kept", state]


def test_two_classes_are_enough() -> None:
    # Precisions 64 and 625 on both classes: (64 * 0.9 + 625 * 0.2) / 689 = 182.6 / 689
    target = crad.aggregate(
        one_sample([0.9, 0.1], [0.2, 0.8]), tensor([[12, 12], [96, 96]]), tensor([[0.5, 0.5], [0.8125, 0.8125]])
    )
    assert_row(target, [182.6 / 689, 506.4 / 689])


def test_a_thousand_classes_are_not_too_many() -> None:
    # Precisions 64 and 625 on every class: class 0 gets 182.6 / 689, 999 others share 506.4 / 689.
    target = crad.aggregate(
        spread([0.9, 0.2], 1000), same_for_every_class([12, 96], 1000), same_for_every_class([0.5, 0.8125], 1000)
    )
    assert_row(target, [182.6 / 689] + [506.4 / 689 / 999] * 999)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_target_has_the_dtype_of_the_predictions(dtype: torch.dtype) -> None:
    q_KBC = EXAMPLE_Q.to(dtype)
    assert crad.aggregate(q_KBC, EXAMPLE_COUNTS, EXAMPLE_ACCURACIES).dtype == dtype
    assert crad.explain(q_KBC, EXAMPLE_COUNTS, EXAMPLE_ACCURACIES).target.dtype == dtype


def test_counts_may_be_whole_number_tensors() -> None:
    whole = crad.aggregate(EXAMPLE_Q, EXAMPLE_COUNTS.long(), EXAMPLE_ACCURACIES)
    assert whole.equal(crad.aggregate(EXAMPLE_Q, EXAMPLE_COUNTS, EXAMPLE_ACCURACIES))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_exact_tie_keeps_both_in_half_precision_too(dtype):
    q = torch.tensor([[[0.5, 0.5]], [[0.4, 0.6]]], dtype=dtype)
    counts, accuracies = torch.full((2, 2), 10), torch.full((2, 2), 0.5)
    target = crad.aggregate(q, counts, accuracies)
    assert target.dtype == dtype
    assert target.float().numpy() == pytest.approx(np.array([[0.45, 0.55]]), abs=5e-3)
    assert (crad.explain(q, counts, accuracies).state == "kept").all()


def test_predictions_that_carry_gradients_are_combined_without_them():
    q = torch.full((2, 1, 2), 0.5, requires_grad=True)
    assert not crad.aggregate(q, torch.full((2, 2), 10), torch.full((2, 2), 0.5)).requires_grad


# --- what is known of teachers travels as one value


def test_statistics_of_some_teachers_are_theirs_by_mask_and_by_place():
    stats = TeacherStats(tensor([[8, 4], [0, 2], [5, 5]]), tensor([[0.5, 1], [0, 0.5], [1, 0]]))
    for chosen in (torch.tensor([True, False, True]), torch.tensor([0, 2])):
        some = stats.select(chosen)
        assert some.counts_KC.tolist() == [[8, 4], [5, 5]]
        assert some.accuracies_KC.tolist() == [[0.5, 1], [1, 0]]
        assert (some.cross_entropies_KC, some.support_KC, some.false_alarms_KC, some.others_KC) == (None,) * 4


def test_samples_that_speak_for_a_teacher_are_its_own_count_unless_the_student_counted():
    counts, support = tensor([[8, 4]]), tensor([[3, 0]])
    assert TeacherStats(counts, tensor([[1, 1]])).speaking_KC is counts
    assert TeacherStats(counts, tensor([[1, 1]]), support_KC=support).speaking_KC is support
