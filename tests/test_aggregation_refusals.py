"""What the aggregation refuses, and that the message names the argument and quotes the value.

The base case is sound: two teachers, one sample, three classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import crad
from crad.errors import AggregationError, ConfigError, CradError

NAN, INF = float("nan"), float("inf")


def sound_arguments() -> dict[str, Any]:
    return {
        "q": torch.tensor([[[0.5, 0.3, 0.2]], [[0.4, 0.4, 0.2]]]),
        "counts": torch.tensor([[10.0, 20.0, 30.0], [5.0, 0.0, 7.0]]),
        "accuracies": torch.tensor([[0.5, 0.9, 1.0], [0.2, 0.0, 0.4]]),
        "cross_entropy": torch.tensor([[0.5, 0.2, 0.1], [2.0, 3.0, 1.0]]),
        "rule": "inverse-ce",
    }


def with_value(argument: str, value: float) -> dict[str, Any]:
    """The sound arguments with one bad number in the last place of one tensor."""
    arguments = sound_arguments()
    arguments[argument].view(-1)[-1] = value
    return arguments


@pytest.fixture(params=[crad.aggregate, crad.explain], ids=["aggregate", "explain"])
def function(request: pytest.FixtureRequest) -> Callable[..., Any]:
    function: Callable[..., Any] = request.param
    return function


def refusal(function: Callable[..., Any], error: type[CradError], arguments: dict[str, Any]) -> str:
    """The one-line message with which the function refuses the arguments."""
    with pytest.raises(error) as caught:
        function(**arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_sound_arguments_are_accepted(function: Callable[..., Any]) -> None:
    function(**sound_arguments())


@pytest.mark.parametrize(
    ("argument", "value", "quoted"),
    [
        ("q", NAN, "nan"),
        ("q", INF, "inf"),
        ("q", -INF, "-inf"),
        ("q", -0.25, "-0.25"),
        ("counts", NAN, "nan"),
        ("counts", INF, "inf"),
        ("counts", -3.0, "-3"),
        ("accuracies", NAN, "nan"),
        ("accuracies", INF, "inf"),
        ("accuracies", -0.25, "-0.25"),
        ("accuracies", 1.5, "1.5"),
        ("accuracies", 80.0, "80"),
        ("cross_entropy", NAN, "nan"),
        ("cross_entropy", INF, "inf"),
        ("cross_entropy", -0.5, "-0.5"),
    ],
)
def test_bad_number_is_refused_and_quoted(
    function: Callable[..., Any], argument: str, value: float, quoted: str
) -> None:
    message = refusal(function, AggregationError, with_value(argument, value))
    assert argument in message
    assert quoted in message or (quoted in ("nan", "inf", "-inf") and "finite" in message)


@pytest.mark.parametrize("scale", [0.9, 1.1, 100.0])
def test_rows_that_are_no_distribution_are_refused(function: Callable[..., Any], scale: float) -> None:
    arguments = sound_arguments()
    arguments["q"] = arguments["q"] * scale
    assert "q" in refusal(function, AggregationError, arguments)


def test_rounding_in_the_rows_is_forgiven(function: Callable[..., Any]) -> None:
    arguments = sound_arguments()
    arguments["q"] = arguments["q"] * (1 + 1e-6)
    function(**arguments)


@pytest.mark.parametrize("argument", ["counts", "accuracies", "cross_entropy"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 2), (3, 2), (2, 1, 3), (3,), (1, 3), (2, 1)])
def test_statistics_of_another_shape_are_refused(
    function: Callable[..., Any], argument: str, shape: tuple[int, ...]
) -> None:
    """Shapes that would broadcast too: a single teacher's row must not speak for all."""
    message = refusal(function, AggregationError, sound_arguments() | {argument: torch.full(shape, 0.5)})
    assert argument in message
    assert str(list(shape)) in message or str(shape) in message


@pytest.mark.parametrize("shape", [(2, 3), (3,), (2, 1, 1, 3)])
def test_predictions_need_three_dimensions(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    message = refusal(function, AggregationError, sound_arguments() | {"q": torch.full(shape, 1 / 3)})
    assert "q" in message
    assert str(list(shape)) in message or str(shape) in message


def of_size(num_teachers: int, num_classes: int) -> dict[str, Any]:
    statistics = torch.ones(num_teachers, num_classes)
    return {
        "q": torch.ones(num_teachers, 1, num_classes) / max(num_classes, 1),
        "counts": statistics,
        "accuracies": statistics,
    }


def test_zero_teachers_are_refused(function: Callable[..., Any]) -> None:
    assert "teacher" in refusal(function, AggregationError, of_size(0, 3))


@pytest.mark.parametrize("num_classes", [0, 1])
def test_fewer_than_two_classes_are_refused(function: Callable[..., Any], num_classes: int) -> None:
    assert "class" in refusal(function, AggregationError, of_size(2, num_classes))


def test_whole_number_predictions_are_refused(function: Callable[..., Any]) -> None:
    arguments = sound_arguments() | {"q": torch.tensor([[[1, 0, 0]], [[0, 1, 0]]])}
    assert "int64" in refusal(function, AggregationError, arguments)


def test_inverse_ce_needs_the_cross_entropy(function: Callable[..., Any]) -> None:
    message = refusal(function, CradError, sound_arguments() | {"cross_entropy": None})
    assert "inverse-ce" in message
    assert "cross_entropy" in message


def test_other_rules_do_without_the_cross_entropy(function: Callable[..., Any]) -> None:
    for rule in set(crad.RULES) - {"inverse-ce"}:
        function(**sound_arguments() | {"rule": rule, "cross_entropy": None})


def test_unknown_rule_is_answered_with_the_known_ones_and_the_nearest(function: Callable[..., Any]) -> None:
    message = refusal(function, ConfigError, sound_arguments() | {"rule": "inverse-sgima"})
    assert "'inverse-sgima'" in message
    assert "Did you mean 'inverse-sigma'?" in message
    assert all(rule in message for rule in crad.RULES)


def test_unknown_treatment_of_the_unsupported_is_refused(function: Callable[..., Any]) -> None:
    message = refusal(function, ConfigError, sound_arguments() | {"unsupported": "concensus"})
    assert "'concensus'" in message
    assert "Did you mean 'consensus'?" in message
    assert "zero" in message


@pytest.mark.parametrize(
    ("setting", "value", "quoted"),
    [
        ("min_support", -1, "-1"),
        ("epsilon", 0.0, "0"),
        ("epsilon", -1e-8, "-1e-08"),
        ("epsilon", NAN, "nan"),
    ],
)
def test_impossible_setting_is_refused_and_quoted(
    function: Callable[..., Any], setting: str, value: float, quoted: str
) -> None:
    message = refusal(function, CradError, sound_arguments() | {setting: value})
    assert setting in message
    assert quoted in message
