"""Those who are kept, averaged in logarithms: a weighted geometric mean per class, back on the simplex.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import crad
from crad.config import Experiment
from crad.errors import ConfigError
from tests.reference import ALL_RULES
from tests.test_aggregation import assert_row, one_sample, tensor
from tests.test_aggregation_properties import Case, assert_same, assume_rounding_cannot_decide, cases, examples

every_rule = pytest.mark.parametrize("rule", ALL_RULES)


def pooled(q: torch.Tensor, counts: torch.Tensor | None = None, rule: str = "uniform", **options) -> torch.Tensor:
    shape = (q.shape[0], q.shape[2])
    counts = torch.full(shape, 9.0) if counts is None else counts
    return crad.aggregate(q, counts, torch.full(shape, 0.5), rule, pooling="log", **options)


def test_the_geometric_mean_by_hand():
    # sqrt(0.9 x 0.5) is three times sqrt(0.1 x 0.5); the mean would say 0.7.
    assert_row(pooled(one_sample([0.9, 0.1], [0.5, 0.5])), [0.75, 0.25])


def test_weights_are_exponents_by_hand():
    # Odds of 16 with three quarters of the weight, of 1 with the rest: 16^(3/4) = 8.
    said = one_sample([16 / 17, 1 / 17], [0.5, 0.5])
    assert_row(pooled(said, tensor([[3, 3], [1, 1]]), "support-all", min_support=1), [8 / 9, 1 / 9])


def test_nobody_can_rule_a_class_out_alone():
    # A zero counts as a millionth: sqrt(1 x 1/2) over sqrt(1e-6 x 1/2) are odds of a thousand, not endless.
    assert_row(pooled(one_sample([1.0, 0.0], [0.5, 0.5])), [1000 / 1001, 1 / 1001])


def test_a_class_that_nobody_supports_has_everybodys_geometric_mean():
    said, counts = one_sample([0.9, 0.1], [0.5, 0.5]), tensor([[5, 0], [5, 0]])
    assert_row(pooled(said, counts, "support-all"), [0.75, 0.25])
    assert_row(pooled(said, counts, "support-all", unsupported="zero"), [1.0, 0.0])


def test_it_is_the_mean_of_the_logits():
    logits_KBC = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(1))
    q_KBC = torch.softmax(logits_KBC / 3.0, dim=2)
    torch.testing.assert_close(pooled(q_KBC), torch.softmax(logits_KBC.mean(dim=0) / 3.0, dim=1))


@every_rule
@examples(12)
@given(case=cases())
def test_the_target_equals_the_slow_reference(rule: str, case: Case) -> None:
    assume_rounding_cannot_decide(case)
    assert_same(case.aggregate(rule, pooling="log"), case.reference(rule, pooling="log").target)


@every_rule
@examples(8)
@given(case=cases(min_teachers=2))
def test_rows_lie_on_the_simplex_and_the_order_of_teachers_does_not_matter(rule: str, case: Case) -> None:
    assume_rounding_cannot_decide(case)
    target_BC = case.aggregate(rule, pooling="log")
    assert bool((target_BC >= 0).all())
    assert_same(target_BC.sum(dim=1), torch.ones(len(target_BC)))
    turned = case.of_teachers(list(reversed(range(len(case.q)))))
    assert_same(turned.aggregate(rule, pooling="log"), target_BC)


@examples(25)
@given(case=cases())
def test_teachers_who_say_the_same_are_understood_as_by_the_mean(case: Case) -> None:
    alike_KBC = case.q[:1].clamp(min=1e-4).expand_as(case.q)
    alike_KBC = alike_KBC / alike_KBC.sum(dim=2, keepdim=True)
    mean_BC, log_BC = (
        crad.aggregate(alike_KBC, case.counts, case.accuracies, "crad", pooling=one) for one in ("mean", "log")
    )
    assert_same(log_BC, mean_BC, tolerance=1e-6)


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match=r"unknown value of 'pooling' 'logs'.*log"):
        crad.aggregate(one_sample([0.5, 0.5]), tensor([[5, 5]]), tensor([[1, 1]]), pooling="logs")  # type: ignore[arg-type]


def test_it_is_a_part_of_the_recipe():
    assert Experiment(method="crad-plus", pooling="log").recipe.pooling == "log"
    assert Experiment(method="crad").recipe.pooling == "mean"
