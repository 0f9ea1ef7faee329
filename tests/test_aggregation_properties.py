"""What holds for every aggregation, whatever the teachers say, and agreement with the slow reference.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import crad
from tests.reference import (
    ALL_RULES,
    FILTERED_RULES,
    TIE_TOLERANCE,
    ReferenceTrace,
    lower_median,
    reference_trace,
)

every_rule = pytest.mark.parametrize("rule", ALL_RULES)


def examples(number: int) -> settings:
    """The same examples in every run: a red build must be repeatable."""
    return settings(max_examples=number, derandomize=True, database=None, deadline=None)


@dataclass(frozen=True)
class Case:
    """The arguments of one aggregation."""

    q: torch.Tensor
    counts: torch.Tensor
    accuracies: torch.Tensor
    cross_entropy: torch.Tensor
    min_support: int = 2
    unsupported: str = "consensus"

    def options(self, rule: str) -> dict[str, Any]:
        return {
            "rule": rule,
            "cross_entropy": self.cross_entropy,
            "min_support": self.min_support,
            "unsupported": self.unsupported,
        }

    def aggregate(self, rule: str, **changes: Any) -> torch.Tensor:
        return crad.aggregate(self.q, self.counts, self.accuracies, **(self.options(rule) | changes))

    def explain(self, rule: str) -> Any:
        return crad.explain(self.q, self.counts, self.accuracies, **self.options(rule))

    def reference(self, rule: str, **changes: Any) -> ReferenceTrace:
        options = self.options(rule) | {"cross_entropy": self.cross_entropy.tolist()} | changes
        return reference_trace(self.q.tolist(), self.counts.tolist(), self.accuracies.tolist(), **options)

    def of_teachers(self, order: list[int]) -> Case:
        return replace(
            self,
            q=self.q[order],
            counts=self.counts[order],
            accuracies=self.accuracies[order],
            cross_entropy=self.cross_entropy[order],
        )

    @property
    def is_supported(self) -> torch.Tensor:
        return self.counts >= self.min_support


@st.composite
def cases(draw: st.DrawFn, min_teachers: int = 1, max_classes: int = 5) -> Case:
    """Small cases that hypothesis can shrink, full of ties, exact zeros, lone samples and private counts."""
    K = draw(st.integers(min_teachers, 6))
    B = draw(st.integers(1, 3))
    C = draw(st.integers(2, max_classes))
    # -1000 underflows to an exact zero, as a saturated softmax does.
    logits = draw(arrays(np.float64, (K, B, C), elements=st.floats(-8, 8, width=32) | st.just(-1000.0)))
    held = draw(arrays(np.int64, (K, C), elements=st.integers(0, 3) | st.integers(0, 300)))
    shares = draw(arrays(np.float64, (K, C), elements=st.sampled_from([0.0, 1.0]) | st.floats(0, 1)))
    hits = np.round(shares * held)
    noise = draw(st.sampled_from([0.0, 0.3]))
    return Case(
        q=torch.softmax(torch.from_numpy(logits), dim=-1),
        counts=torch.from_numpy(held + noise),
        accuracies=torch.from_numpy(hits / np.maximum(held, 1)),
        cross_entropy=torch.from_numpy(draw(arrays(np.float64, (K, C), elements=st.floats(0.01, 5)))),
        min_support=draw(st.sampled_from([2, 2, 0, 1, 10])),
        unsupported=draw(st.sampled_from(["consensus", "zero"])),
    )


def wide_case(seed: int, num_teachers: int, num_samples: int, num_classes: int) -> Case:
    """An ordinary case of any size: about half of the statistics are of classes the teacher does not hold."""
    rng = np.random.default_rng(seed)
    stats_shape = (num_teachers, num_classes)
    held = rng.integers(0, 40, stats_shape) * rng.integers(0, 2, stats_shape)
    hits = rng.binomial(held, rng.uniform(0, 1, stats_shape))
    logits = rng.normal(0, 2, (num_teachers, num_samples, num_classes))
    return Case(
        q=torch.softmax(torch.from_numpy(logits), dim=-1),
        counts=torch.from_numpy(held.astype(np.float64)),
        accuracies=torch.from_numpy(hits / np.maximum(held, 1)),
        cross_entropy=torch.from_numpy(rng.uniform(0.01, 5, stats_shape)),
    )


def wide_cases(max_classes: int = 1000) -> st.SearchStrategy[Case]:
    sizes = [C for C in (2, 3, 10, 20, 100, 1000) if max_classes >= C]
    return st.builds(
        wide_case, st.integers(0, 2**32 - 1), st.integers(1, 10), st.integers(1, 3), st.sampled_from(sizes)
    )


def deviations_over_the_band(case: Case) -> list[float]:
    """By how much each supported teacher exceeds the median deviation, for every sample and class."""
    over: list[float] = []
    for b in range(case.q.shape[1]):
        for c in range(case.q.shape[2]):
            speaks = case.q[:, b, c][case.is_supported[:, c]].tolist()
            if not speaks:
                continue
            consensus = sum(speaks) / len(speaks)
            deviations = [abs(p - consensus) for p in speaks]
            over += [d - lower_median(deviations) for d in deviations]
    return over


def assume_rounding_cannot_decide(case: Case) -> None:
    """No teacher stands on the knife's edge where the tolerance ends."""
    assume(all(abs(over - TIE_TOLERANCE) > 1e-12 for over in deviations_over_the_band(case)))


def assert_same(actual: torch.Tensor, expected: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance, check_stride=False
    )


# Agreement with the reference.


@every_rule
@examples(30)
@given(case=cases())
def test_target_equals_the_slow_reference(rule: str, case: Case) -> None:
    assume_rounding_cannot_decide(case)
    assert_same(case.aggregate(rule), case.reference(rule).target)


@every_rule
@pytest.mark.parametrize("num_classes", [2, 100, 1000])
def test_wide_target_equals_the_slow_reference(rule: str, num_classes: int) -> None:
    case = wide_case(1024, num_teachers=9, num_samples=2, num_classes=num_classes)
    assert_same(case.aggregate(rule), case.reference(rule).target)


@every_rule
@examples(20)
@given(case=cases())
def test_explanation_equals_the_slow_reference(rule: str, case: Case) -> None:
    assume_rounding_cannot_decide(case)
    trace, expected = case.explain(rule), case.reference(rule)
    someone_speaks_C = case.is_supported.any(dim=0)
    assert trace.target.equal(case.aggregate(rule))
    for b, row in enumerate(expected.verdicts):
        for c, verdict in enumerate(row):
            assert trace.state[:, b, c].tolist() == verdict.state
            assert_same(trace.weight[:, b, c], verdict.weight, tolerance=1e-7)
            if rule in FILTERED_RULES and someone_speaks_C[c]:
                assert_same(trace.consensus[b, c], verdict.consensus)
                assert_same(trace.band[b, c], verdict.band)


# What a target is.


@examples(40)
@given(
    rule=st.sampled_from(ALL_RULES),
    case=st.one_of(cases(), wide_cases()),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_rows_lie_on_the_simplex(rule: str, case: Case, dtype: torch.dtype) -> None:
    target_BC = replace(case, q=case.q.to(dtype)).aggregate(rule)
    assert target_BC.shape == case.q.shape[1:]
    assert target_BC.dtype == dtype
    assert (target_BC >= 0).all()
    assert_same(target_BC.double().sum(dim=1), torch.ones(len(target_BC)), tolerance=1e-5)


@examples(40)
@given(rule=st.sampled_from(ALL_RULES), case=wide_cases(max_classes=20))
def test_float32_is_close_to_float64(rule: str, case: Case) -> None:
    single = replace(case, q=case.q.float(), counts=case.counts.float(), accuracies=case.accuracies.float())
    double = replace(case, q=single.q.double())
    # Exact ties (two teachers) are kept in both; anything within float32's reach of the band may fall either way.
    assume(not any(1e-12 < over < 1e-5 for over in deviations_over_the_band(double)))
    assert_same(single.aggregate(rule).double(), double.aggregate(rule), tolerance=1e-5)


@examples(40)
@given(rule=st.sampled_from(ALL_RULES), case=cases())
def test_inputs_are_left_as_they_were(rule: str, case: Case) -> None:
    inputs = (case.q, case.counts, case.accuracies, case.cross_entropy)
    before = [tensor.clone() for tensor in inputs]
    case.aggregate(rule)
    case.explain(rule)
    assert all(tensor.equal(copy) for tensor, copy in zip(inputs, before, strict=True))


# Who is who does not matter.


@examples(40)
@given(rule=st.sampled_from(ALL_RULES), case=cases(min_teachers=2), data=st.data())
def test_order_of_the_teachers_changes_nothing(rule: str, case: Case, data: st.DataObject) -> None:
    assume_rounding_cannot_decide(case)
    order = data.draw(st.permutations(range(len(case.q))))
    assert_same(case.of_teachers(order).aggregate(rule), case.aggregate(rule))


@examples(40)
@given(rule=st.sampled_from(ALL_RULES), case=cases(), data=st.data())
def test_order_of_the_samples_orders_the_rows(rule: str, case: Case, data: st.DataObject) -> None:
    assume_rounding_cannot_decide(case)
    order = data.draw(st.permutations(range(case.q.shape[1])))
    assert_same(replace(case, q=case.q[:, order]).aggregate(rule), case.aggregate(rule)[order])


@examples(40)
@given(rule=st.sampled_from(ALL_RULES), case=cases(), data=st.data())
def test_order_of_the_classes_orders_the_columns(rule: str, case: Case, data: st.DataObject) -> None:
    assume_rounding_cannot_decide(case)
    order = data.draw(st.permutations(range(case.q.shape[2])))
    permuted = Case(
        q=case.q[:, :, order],
        counts=case.counts[:, order],
        accuracies=case.accuracies[:, order],
        cross_entropy=case.cross_entropy[:, order],
        min_support=case.min_support,
        unsupported=case.unsupported,
    )
    assert_same(permuted.aggregate(rule), case.aggregate(rule)[:, order])


# Who is heard.


@examples(40)
@given(rule=st.sampled_from(ALL_RULES), case=cases())
def test_only_teacher_is_returned_unchanged(rule: str, case: Case) -> None:
    alone = replace(case.of_teachers([0]), unsupported="consensus")
    # The epsilon below the fraction shrinks a class of weight 1/300 (one hit in 300) by three millionths.
    assert_same(alone.aggregate(rule), alone.q[0], tolerance=1e-5)


@examples(40)
@given(rule=st.sampled_from(FILTERED_RULES), case=cases(min_teachers=2))
def test_equal_statistics_give_the_filtered_mean(rule: str, case: Case) -> None:
    equal = replace(
        case,
        counts=case.counts[:1].expand_as(case.counts),
        accuracies=case.accuracies[:1].expand_as(case.accuracies),
        cross_entropy=case.cross_entropy[:1].expand_as(case.cross_entropy),
    )
    assert_same(equal.aggregate(rule, epsilon=1e-12), equal.aggregate("stage1", epsilon=1e-12), tolerance=1e-8)


@examples(40)
@given(rule=st.sampled_from(FILTERED_RULES), case=cases(min_teachers=2), data=st.data())
def test_an_unsupported_teacher_changes_nothing(rule: str, case: Case, data: st.DataObject) -> None:
    newcomer = data.draw(st.integers(0, len(case.q) - 1))
    counts = case.counts + 2
    counts[newcomer] = data.draw(st.sampled_from([0.0, 1.0, 1.7]))
    joined = replace(case, counts=counts, min_support=2)
    assume_rounding_cannot_decide(joined)
    without = joined.of_teachers([k for k in range(len(case.q)) if k != newcomer])
    # A row on which every speaker says exactly zero falls back to all peers, the newcomer included.
    assume(all(any(verdict.mass > 0 for verdict in row) for row in without.reference(rule).verdicts))
    assert_same(joined.aggregate(rule), without.aggregate(rule))


@examples(40)
@given(rule=st.sampled_from(FILTERED_RULES), case=st.one_of(cases(), wide_cases(max_classes=100)))
def test_kept_teachers_lie_in_the_band_and_outliers_beyond_it(rule: str, case: Case) -> None:
    trace = case.explain(rule)
    over_KBC = (case.q - trace.consensus).abs() - trace.band
    assert (over_KBC[torch.from_numpy(trace.state == "kept")] <= TIE_TOLERANCE + 1e-12).all()
    assert (over_KBC[torch.from_numpy(trace.state == "outlier")] > TIE_TOLERANCE - 1e-12).all()


@examples(40)
@given(rule=st.sampled_from(FILTERED_RULES), case=st.one_of(cases(), wide_cases(max_classes=100)))
def test_at_least_half_of_the_supported_are_kept(rule: str, case: Case) -> None:
    trace = case.explain(rule)
    num_supported_BC = (trace.state != "unsupported").sum(axis=0)
    num_kept_BC = (trace.state == "kept").sum(axis=0)
    assert (num_supported_BC == case.is_supported.sum(dim=0).numpy()).all()
    assert (2 * num_kept_BC >= num_supported_BC).all()
    assert (num_kept_BC[num_supported_BC > 0] >= 1).all()


@examples(40)
@given(rule=st.sampled_from(ALL_RULES), case=st.one_of(cases(), wide_cases(max_classes=100)))
def test_weights_are_shares_of_those_who_speak(rule: str, case: Case) -> None:
    trace = case.explain(rule)
    assert (trace.weight >= 0).all()
    kept_KBC = torch.from_numpy(trace.state == "kept")
    total_BC = trace.weight.sum(dim=0)
    heard_BC = kept_KBC.any(dim=0)
    orphan_share = 1.0 if case.unsupported == "consensus" else 0.0
    assert_same(total_BC[heard_BC], torch.ones(int(heard_BC.sum())), tolerance=1e-5)
    assert_same(total_BC[~heard_BC], torch.full((int((~heard_BC).sum()),), orphan_share))
    assert (trace.weight[~kept_KBC & heard_BC] == 0).all()
