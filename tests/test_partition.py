"""Who holds what: every sample once, nobody with too little, seeded, and honest about what cannot be divided."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.config import Experiment
from crad.data import partition
from crad.data.partition import (
    MAX_DRAWS,
    MIN_SAMPLES,
    PARTITIONS,
    class_counts,
    dirichlet_partition,
    iid_partition,
    make_partition,
    shards_partition,
    split_shard,
)
from crad.errors import PartitionError
from crad.randomness import stream

EXAMPLES = settings(max_examples=25, derandomize=True, database=None, deadline=None)

LABELS = np.tile(np.arange(4), 30)  # four classes, thirty samples each, mixed

every_kind = pytest.mark.parametrize("kind", sorted(PARTITIONS))


def make(labels=LABELS, *, num_classes=4, **changes):
    settings_of_it = {"clients": 4, "alpha": 1.0, "seed": 1} | changes
    return make_partition(labels, num_classes=num_classes, experiment=Experiment(**settings_of_it))


def as_lists(shards):
    return [(shard.train.tolist(), shard.validation.tolist(), shard.test.tolist()) for shard in shards]


def everything(parts):
    return sorted(np.concatenate(parts).tolist())


class RiggedGenerator:
    """Hands out given Dirichlet shares, one table [C,N] per draw, and never shuffles."""

    def __init__(self, *tables: list[list[float]]) -> None:
        self.tables = tables
        self.draws = 0

    def dirichlet(self, alpha, size):
        table = np.array(self.tables[min(self.draws, len(self.tables) - 1)])
        assert table.shape == (size, len(alpha))
        self.draws += 1
        return table

    def permutation(self, values):
        return np.asarray(values)


def rigged(*tables: list[list[float]]) -> Any:
    return RiggedGenerator(*tables)


# --- every kind


@every_kind
def test_every_sample_lies_in_exactly_one_place(kind):
    shards = make(partition=kind)
    places = [place for shard in shards for place in (shard.train, shard.validation, shard.test)]
    assert everything(places) == list(range(120))


@every_kind
def test_every_client_has_ten_samples_and_all_three_parts(kind):
    for shard in make(partition=kind):
        assert len(shard.indices) >= MIN_SAMPLES == 10
        assert min(len(shard.train) - 1, len(shard.validation), len(shard.test)) >= 1


@every_kind
def test_a_shard_lists_its_samples_in_ascending_order(kind):
    for shard in make(partition=kind):
        for part in (shard.train, shard.validation, shard.test, shard.indices):
            assert part.tolist() == sorted(part.tolist())
            assert part.dtype == np.int64


@every_kind
def test_the_seed_alone_decides(kind):
    first, again, other = (as_lists(make(partition=kind, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


@every_kind
def test_all_methods_and_models_get_identical_shards(kind):
    ours = make(partition=kind, method="crad", rounds=3, lr=0.5)
    theirs = make(partition=kind, method="local", models=("cnn6",), width=0.5)
    assert as_lists(ours) == as_lists(theirs)


@every_kind
def test_the_held_out_share_does_not_change_who_holds_what(kind):
    small, large = make(partition=kind, held_out=0.2), make(partition=kind, held_out=0.5)
    assert [shard.indices.tolist() for shard in small] == [shard.indices.tolist() for shard in large]


@every_kind
def test_500_clients_on_4000_samples_are_refused_with_all_the_numbers(kind):
    labels = np.tile(np.arange(10), 400)
    with pytest.raises(PartitionError) as refusal:
        make(labels, num_classes=10, partition=kind, clients=500)
    assert str(refusal.value) == (
        "500 clients need at least 10 samples each, 5000 in all, but there are 4000: "
        "use at most 400 clients or more data"
    )


def test_exactly_ten_samples_each_are_enough():
    assert [len(shard.indices) for shard in make(partition="iid", clients=12)] == [10] * 12


def test_one_sample_short_of_ten_each_is_refused():
    with pytest.raises(PartitionError, match="12 clients need at least 10 samples each, 120 in all, but there are 119"):
        make(LABELS[:-1], partition="iid", clients=12)


@every_kind
def test_one_client_holds_everything(kind):
    (shard,) = make(partition=kind, clients=1, classes_per_client=4)
    assert shard.indices.tolist() == list(range(120))


# --- Dirichlet


def test_shares_become_counts_by_rounding_their_running_sum():
    labels = np.array([0] * 40 + [1] * 20 + [2] * 21)
    # Class 0: 1/4, 3/4 of 40. Class 1: half each. Class 2: 1/3 of 21 is 7.
    rng = rigged([[0.25, 0.75], [0.5, 0.5], [1 / 3, 2 / 3]])
    parts = dirichlet_partition(labels, num_classes=3, num_clients=2, alpha=0.3, rng=rng)
    assert class_counts(labels, num_classes=3, parts=parts).tolist() == [[10, 10, 7], [30, 10, 14]]
    assert parts[0].tolist() == [*range(10), *range(40, 50), *range(60, 67)]


def test_rounding_loses_no_sample():
    labels = np.zeros(40, dtype=np.int64)
    # Running sums 40/3 and 80/3 round to 13 and 27.
    parts = dirichlet_partition(labels, num_classes=1, num_clients=3, alpha=1.0, rng=rigged([[1 / 3, 1 / 3, 1 / 3]]))
    assert [len(part) for part in parts] == [13, 14, 13]


def test_a_share_lost_to_rounding_goes_to_the_last_client():
    labels = np.zeros(200, dtype=np.int64)
    parts = dirichlet_partition(labels, num_classes=1, num_clients=2, alpha=1.0, rng=rigged([[0.25, 0.74]]))
    assert [len(part) for part in parts] == [50, 150]


@pytest.mark.parametrize("kind", ["dirichlet", "shards"])
def test_which_samples_of_a_class_a_client_gets_is_drawn(kind):
    labels = np.zeros(80, dtype=np.int64)
    parts = [shard.indices for shard in make(labels, num_classes=1, partition=kind, clients=2, classes_per_client=1)]
    assert parts[0].tolist() != list(range(len(parts[0])))  # not simply the first ones


def test_a_partition_that_leaves_somebody_nine_samples_is_drawn_again():
    labels = np.zeros(40, dtype=np.int64)
    rng = rigged([[9 / 40, 31 / 40]], [[10 / 40, 30 / 40]])
    parts = dirichlet_partition(labels, num_classes=1, num_clients=2, alpha=0.3, rng=rng)
    assert [len(part) for part in parts] == [10, 30]
    assert rng.draws == 2


def test_drawing_stops_after_the_largest_number_of_draws():
    labels = np.zeros(40, dtype=np.int64)
    rng = rigged([[0.0, 1.0]])
    with pytest.raises(PartitionError):
        dirichlet_partition(labels, num_classes=1, num_clients=2, alpha=0.3, rng=rng)
    assert rng.draws == MAX_DRAWS


def test_an_impossible_dirichlet_partition_is_refused_with_its_numbers():
    with pytest.raises(PartitionError) as refusal:
        make(partition="dirichlet", clients=12, alpha=0.05)  # all twelve would need exactly ten
    assert str(refusal.value) == (
        "no Dirichlet(0.05) partition of 120 samples gave all 12 clients at least 10 in 1000 draws: "
        "use fewer clients, more data or a larger alpha"
    )


def test_the_number_of_draws_is_a_limit_that_can_be_seen(monkeypatch):
    monkeypatch.setattr(partition, "MAX_DRAWS", 3)
    with pytest.raises(PartitionError, match="in 3 draws"):
        make(partition="dirichlet", clients=12, alpha=0.05)


def test_a_huge_alpha_gives_everybody_the_same():
    parts = dirichlet_partition(LABELS, num_classes=4, num_clients=3, alpha=1e9, rng=stream(1, "t"))
    assert class_counts(LABELS, num_classes=4, parts=parts).tolist() == [[10, 10, 10, 10]] * 3


def test_a_smaller_alpha_is_more_skewed():
    labels = np.tile(np.arange(5), 100)

    def mean_share_of_the_largest_class(alpha):
        shares = []
        for seed in range(5):
            parts = dirichlet_partition(labels, num_classes=5, num_clients=4, alpha=alpha, rng=stream(seed, "t"))
            counts = class_counts(labels, num_classes=5, parts=parts)
            shares += (counts.max(axis=1) / counts.sum(axis=1)).tolist()
        return np.mean(shares)

    extreme, usual, mild, even = map(mean_share_of_the_largest_class, (0.1, 0.3, 3.0, 1000.0))
    assert extreme > usual > mild > even
    assert even < 0.25  # a fifth is perfectly even


def test_alpha_reaches_the_draw():
    labels = np.tile(np.arange(2), 500)
    counts = [
        class_counts(labels, num_classes=2, parts=[shard.indices for shard in make(labels, num_classes=2, alpha=alpha)])
        for alpha in (0.1, 1e6)
    ]
    assert counts[1].min() >= 124  # 125 each, give or take the rounding
    assert counts[0].min() < 60


# --- iid


def test_iid_shards_differ_in_size_by_at_most_one():
    parts = iid_partition(LABELS, num_clients=7, rng=stream(1, "t"))
    assert sorted(len(part) for part in parts) == [17] * 6 + [18]


def test_iid_shards_are_mixed_even_when_the_labels_come_sorted():
    labels = np.repeat(np.arange(2), 100)
    counts = class_counts(labels, num_classes=2, parts=iid_partition(labels, num_clients=4, rng=stream(1, "t")))
    assert counts.min() >= 12  # 25 of each class in the mean, four standard deviations are 13


# --- shards


@pytest.mark.parametrize("classes_per_client", [1, 2, 3, 4])
def test_every_client_holds_exactly_k_classes(classes_per_client):
    parts = shards_partition(
        LABELS, num_classes=4, num_clients=4, classes_per_client=classes_per_client, rng=stream(1, "t")
    )
    counts = class_counts(LABELS, num_classes=4, parts=parts)
    assert (counts > 0).sum(axis=1).tolist() == [classes_per_client] * 4
    assert everything(parts) == list(range(120))


def test_the_samples_of_a_class_are_shared_equally_by_its_holders():
    # Five clients with two of four classes: ten hands, so two classes have three holders and two have two.
    parts = shards_partition(LABELS, num_classes=4, num_clients=5, classes_per_client=2, rng=stream(1, "t"))
    counts = class_counts(LABELS, num_classes=4, parts=parts)
    assert Counter(counts[counts > 0].tolist()) == {10: 6, 15: 4}


def test_a_remainder_goes_to_the_first_holders():
    labels = np.zeros(32, dtype=np.int64)
    parts = shards_partition(labels, num_classes=1, num_clients=3, classes_per_client=1, rng=stream(1, "t"))
    assert [len(part) for part in parts] == [11, 11, 10]


def test_which_classes_meet_is_drawn():
    def holdings(seed):
        parts = shards_partition(LABELS, num_classes=4, num_clients=2, classes_per_client=2, rng=stream(seed, "t"))
        return frozenset(frozenset(LABELS[part].tolist()) for part in parts)

    assert len({holdings(seed) for seed in range(12)}) == 3  # four classes form pairs in three ways


def test_more_classes_per_client_than_there_are_is_refused_with_both_numbers():
    with pytest.raises(PartitionError) as refusal:
        make(partition="shards", classes_per_client=5)
    assert str(refusal.value) == "classes_per_client is 5, but the data has only 4 classes"


def test_too_few_hands_for_all_classes_are_refused_with_the_number_it_takes():
    with pytest.raises(PartitionError) as refusal:
        make(np.tile(np.arange(7), 20), num_classes=7, partition="shards", clients=3, classes_per_client=2)
    assert str(refusal.value) == (
        "3 clients with 2 classes each cannot hold all 7 classes: use at least 4 clients or more classes_per_client"
    )


def test_just_enough_hands_are_accepted():
    labels = np.tile(np.arange(6), 20)
    shards = make(labels, num_classes=6, partition="shards", clients=3, classes_per_client=2)
    assert [len(set(labels[shard.indices].tolist())) for shard in shards] == [2, 2, 2]


def test_a_client_left_with_too_little_is_named():
    labels = np.array([0] * 9 + [1] * 50)
    with pytest.raises(PartitionError, match=r"client [01] would hold 9 samples, fewer than 10: use fewer clients"):
        make(labels, num_classes=2, partition="shards", clients=2, classes_per_client=1)


# --- the held-out halves


@pytest.mark.parametrize(
    ("size", "held_out", "expected"),  # train, validation, test
    [
        (100, 0.2, (80, 10, 10)),
        (25, 0.2, (20, 3, 2)),  # an odd sample goes to validation
        (10, 0.2, (8, 1, 1)),
        (10, 0.01, (8, 1, 1)),  # never less than one each
        (4, 0.2, (2, 1, 1)),
        (10, 0.8, (2, 4, 4)),
    ],
)
def test_a_share_is_held_out_and_halved(size, held_out, expected):
    shard = split_shard(np.arange(size), held_out=held_out, rng=stream(1, "t"))
    assert (len(shard.train), len(shard.validation), len(shard.test)) == expected
    assert shard.indices.tolist() == list(range(size))


@pytest.mark.parametrize(("size", "held_out"), [(3, 0.2), (10, 0.9)])
def test_a_shard_that_leaves_nothing_to_train_on_is_refused_with_its_numbers(size, held_out):
    with pytest.raises(PartitionError) as refusal:
        split_shard(np.arange(size), held_out=held_out, rng=stream(1, "t"))
    assert f"a shard of {size} samples with held_out = {held_out}" in str(refusal.value)


def test_the_held_out_samples_are_drawn_not_the_first_ones():
    shard = split_shard(np.arange(100), held_out=0.2, rng=stream(1, "t"))
    assert shard.validation.tolist() != list(range(10))
    assert shard.test.tolist() != list(range(10, 20))


def test_two_clients_with_equal_shards_hold_out_different_places():
    first, second = make(partition="iid", clients=2)
    places = [np.searchsorted(shard.indices, shard.validation).tolist() for shard in (first, second)]
    assert places[0] != places[1]


def test_class_counts_by_hand():
    labels = np.array([0, 2, 2, 1, 0, 2])
    parts = [np.array([0, 1, 2]), np.array([3, 4, 5]), np.array([], dtype=np.int64)]
    assert class_counts(labels, num_classes=4, parts=parts).tolist() == [[1, 0, 2, 0], [1, 1, 1, 0], [0, 0, 0, 0]]


# --- properties

label_arrays = st.lists(st.integers(0, 3), min_size=60, max_size=90).map(lambda values: np.array(values))


@EXAMPLES
@given(
    labels=label_arrays, clients=st.integers(1, 6), kind=st.sampled_from(["iid", "dirichlet"]), seed=st.integers(0, 9)
)
def test_any_labels_are_divided_without_loss_or_refused(labels, clients, kind, seed):
    try:
        shards = make(labels, partition=kind, clients=clients, seed=seed, alpha=2.0)
    except PartitionError:
        assert kind == "dirichlet"  # sixty samples are enough for six equal shards
        return
    assert everything([shard.indices for shard in shards]) == list(range(len(labels)))
    assert min(len(shard.indices) for shard in shards) >= MIN_SAMPLES


@EXAMPLES
@given(data=st.data(), num_classes=st.integers(1, 6), seed=st.integers(0, 9))
def test_any_shards_partition_has_exactly_k_classes_each_and_equal_pieces(data, num_classes, seed):
    k = data.draw(st.integers(1, num_classes))
    clients = data.draw(st.integers(-(-num_classes // k), 8))
    labels = np.tile(np.arange(num_classes), 10 * clients)
    parts = shards_partition(
        labels, num_classes=num_classes, num_clients=clients, classes_per_client=k, rng=stream(seed, "t")
    )
    counts = class_counts(labels, num_classes=num_classes, parts=parts)
    assert (counts > 0).sum(axis=1).tolist() == [k] * clients
    assert everything(parts) == list(range(len(labels)))
    for pieces in counts.T:
        held = pieces[pieces > 0]
        assert held.max() - held.min() <= 1


@EXAMPLES
@given(size=st.integers(4, 60), held_out=st.floats(0.01, 0.5), seed=st.integers(0, 9))
def test_any_split_keeps_every_sample_once_and_its_halves_equal(size, held_out, seed):
    indices = np.arange(100, 100 + size)
    shard = split_shard(indices, held_out=held_out, rng=stream(seed, "t"))
    assert shard.indices.tolist() == indices.tolist()
    assert len(shard.validation) - len(shard.test) in (0, 1)
    assert len(shard.validation) + len(shard.test) == max(2, round(held_out * size))


# --- found by reading the code against the specification


def test_a_class_too_small_for_its_holders_is_refused():
    labels = np.array([0] + [1] * 60 + [2] * 60)  # one sample of class 0, two holders
    with pytest.raises(PartitionError):
        shards_partition(labels, num_classes=3, num_clients=3, classes_per_client=2, rng=stream(0, "t"))
