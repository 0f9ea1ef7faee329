"""The median without sorting: the same number as sorting the supported teachers, whoever they are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.aggregation.median import NETWORK_TEACHERS, _median_network, supported_median


def sorted_median(value_KBC: torch.Tensor, supported_KC: torch.Tensor) -> torch.Tensor:
    """One class at a time: sort its supported teachers, take the lower middle."""
    num_classes = value_KBC.shape[2]
    median_BC = torch.full(value_KBC.shape[1:], torch.inf, dtype=value_KBC.dtype)
    for c in range(num_classes):
        speaks = value_KBC[supported_KC[:, c], :, c]
        if len(speaks):
            median_BC[:, c] = speaks.sort(dim=0).values[(len(speaks) - 1) // 2]
    return median_BC


@pytest.mark.parametrize("num_teachers", [*range(1, 26), NETWORK_TEACHERS, NETWORK_TEACHERS + 1, 99])
@settings(max_examples=6, derandomize=True, database=None, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    levels=st.sampled_from([2, 5, 10**6]),
    share=st.floats(0, 1),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_network_equals_sorting(num_teachers: int, seed: int, levels: int, share: float, dtype: torch.dtype) -> None:
    """Few levels make many ties; a share of the teachers is supported, from nobody to everybody."""
    generator = torch.Generator().manual_seed(seed)
    value_KBC = torch.randint(0, levels, (num_teachers, 3, 8), generator=generator).to(dtype) / levels
    supported_KC = torch.rand(num_teachers, 8, generator=generator) <= share
    assert torch.equal(supported_median(value_KBC, supported_KC), sorted_median(value_KBC, supported_KC))


@pytest.mark.parametrize("num_teachers", range(1, 11))
def test_network_is_right_for_every_pattern_of_zeros_and_ones(num_teachers: int) -> None:
    """A network that is right for all of these is right for all numbers (Knuth's zero-one principle)."""
    pattern_KBC = torch.tensor(
        [[(n >> k) & 1 for n in range(2**num_teachers)] for k in range(num_teachers)], dtype=torch.float32
    ).unsqueeze(2)
    everybody_KC = torch.ones(num_teachers, 1, dtype=torch.bool)
    assert torch.equal(supported_median(pattern_KBC, everybody_KC), sorted_median(pattern_KBC, everybody_KC))


def test_infinite_where_nobody_is_supported() -> None:
    value_KBC = torch.rand(4, 2, 3)
    assert (supported_median(value_KBC, torch.zeros(4, 3, dtype=torch.bool)) == torch.inf).all()


def test_nine_teachers_take_at_most_the_comparisons_of_a_full_sort() -> None:
    assert len(_median_network(9)) <= 26
    assert all(smaller or larger for _, _, smaller, larger in _median_network(9))
