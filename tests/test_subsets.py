"""Class-balanced choices: equal where possible, seeded, sorted, and honest about what they cannot do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crad.data.subsets import balanced_subset, split_proxy, stratified_split
from crad.errors import DataError
from crad.randomness import stream

LABELS = np.repeat(np.arange(4), 5)  # four classes, five samples each


def counts_of(labels, indices):
    return np.bincount(labels[indices], minlength=int(labels.max()) + 1).tolist()


def test_a_size_that_divides_evenly_gives_equal_classes():
    assert counts_of(LABELS, balanced_subset(LABELS, size=8, rng=stream(1, "t"))) == [2, 2, 2, 2]


def test_the_remainder_goes_to_classes_drawn_by_the_generator():
    winners = set()
    for seed in range(20):
        counts = counts_of(LABELS, balanced_subset(LABELS, size=9, rng=stream(seed, "t")))
        assert sorted(counts) == [2, 2, 2, 3]
        winners.add(counts.index(3))
    assert len(winners) > 1


def test_other_classes_fill_up_for_one_that_has_too_few():
    labels = np.array([0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2])
    assert counts_of(labels, balanced_subset(labels, size=9, rng=stream(1, "t"))) == [1, 4, 4]


def test_more_than_there_are_is_refused_with_both_numbers():
    with pytest.raises(DataError, match="cannot choose 21 samples among 20"):
        balanced_subset(LABELS, size=21, rng=stream(1, "t"))


def test_a_negative_size_is_refused():
    with pytest.raises(DataError, match="cannot choose -1"):
        balanced_subset(LABELS, size=-1, rng=stream(1, "t"))


def test_the_seed_alone_decides():
    first, again, other = (balanced_subset(LABELS, size=7, rng=stream(seed, "t")) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_the_proxy_and_the_rest_make_up_the_whole():
    proxy, rest = split_proxy(LABELS, size=8, rng=stream(1, "t"))
    assert counts_of(LABELS, proxy) == [2, 2, 2, 2]
    assert sorted([*proxy, *rest]) == list(range(20))


def test_an_empty_proxy_leaves_everything():
    proxy, rest = split_proxy(LABELS, size=0, rng=stream(1, "t"))
    assert proxy.size == 0
    assert rest.tolist() == list(range(20))


def test_a_stratified_split_takes_a_fifth_of_each_class_but_never_its_last_sample():
    labels = np.array([0] * 10 + [1] * 2 + [2])
    taken, rest = stratified_split(labels, share=0.2, rng=stream(1, "t"))
    assert counts_of(labels, taken) == [2, 1, 0]
    assert counts_of(labels, rest) == [8, 1, 1]


label_arrays = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(lambda xs: np.array(xs, dtype=np.int64))


@given(labels=label_arrays, data=st.data(), seed=st.integers(0, 99))
def test_any_subset_is_sorted_without_repeats_and_as_equal_as_the_classes_allow(labels, data, seed):
    size = data.draw(st.integers(0, len(labels)))
    chosen = balanced_subset(labels, size=size, rng=stream(seed, "t"))
    assert len(chosen) == size == len(set(chosen.tolist()))
    assert chosen.tolist() == sorted(chosen.tolist())
    counts, available = np.array(counts_of(labels, chosen)), np.bincount(labels)
    # A class may only lag behind the largest by more than one if it has nothing left to give.
    assert all(counts[c] >= counts.max() - 1 or counts[c] == available[c] for c in range(len(counts)))


@given(labels=label_arrays, data=st.data())
def test_a_smaller_subset_lies_within_a_larger_one(labels, data):
    large = data.draw(st.integers(0, len(labels)))
    small = data.draw(st.integers(0, large))
    chosen = [set(balanced_subset(labels, size=size, rng=stream(3, "t")).tolist()) for size in (small, large)]
    assert chosen[0] <= chosen[1]
