"""Who means another class than we by its name: found where the figures say so, and nobody else accused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.aggregation import Confusions, TeacherStats, find_confusions
from crad.aggregation.confusion import MIN_SAMPLES

C = 3


def judge(rows, *, counts=(20, 20, 20), accuracies=(0.9, 0.9, 0.9)):
    """What is found of one teacher: rows are our classes, columns its answers."""
    tally_KCC = torch.tensor([rows], dtype=torch.int32)
    stats = TeacherStats(*(torch.tensor([values], dtype=torch.float64) for values in (counts, accuracies)))
    return [(one.own, one.said) for one in find_confusions(stats, tally_KCC)]


HONEST = [[28, 1, 1], [2, 27, 1], [0, 3, 27]]
SHIFTED = [[1, 28, 1], [1, 2, 27], [27, 0, 3]]  # our 0 is its 1, our 1 its 2, our 2 its 0
SWAPPED = [[3, 26, 1], [27, 2, 1], [0, 3, 27]]


def test_an_honest_teacher_is_not_accused():
    assert judge(HONEST) == []


def test_labels_shifted_by_one_are_found_in_the_right_direction():
    assert judge(SHIFTED) == [(0, 1), (1, 2), (2, 0)]


def test_a_swapped_pair_is_found_and_the_third_class_is_not():
    assert judge(SWAPPED) == [(0, 1), (1, 0)]


INNOCENT = {
    "it never saw the class": {"counts": (0, 20, 20)},
    "it saw too few to tell": {"counts": (4, 20, 20)},
    "it says itself that it is weak": {"accuracies": (0.49, 0.9, 0.9)},
    "its figure is of so few samples that it may be chance": {"counts": (5, 20, 20), "accuracies": (0.6, 0.9, 0.9)},
}


@pytest.mark.parametrize("claimed", INNOCENT.values(), ids=INNOCENT)
def test_who_does_not_claim_to_know_a_class_is_not_accused_of_it(claimed):
    assert (0, 1) in judge(SWAPPED), "it would be"
    assert (0, 1) not in judge(SWAPPED, **claimed)


def test_one_answer_for_everything_is_a_favourite_and_no_meaning():
    assert judge([[0, 30, 0], [0, 30, 0], [0, 30, 0]]) == []
    assert judge([[1, 28, 1], [0, 30, 0], [2, 27, 1]]) == []


def test_an_answer_that_others_get_half_as_often_is_a_favourite_however_many_there_are():
    assert judge([[100, 700, 200], [50, 450, 500], [50, 450, 500]]) == []
    assert judge([[100, 700, 200], [350, 340, 310], [350, 340, 310]]) == [(0, 1)], "just under half"


def test_shares_that_chance_could_set_apart_accuse_nobody():
    assert judge([[1, 13, 6], [2, 3, 5], [2, 3, 5]]) == [], "65 % of 20 against 30 % of 20"
    assert judge([[10, 130, 60], [20, 30, 50], [20, 30, 50]]) == [(0, 1)], "the same of ten times as many"


def test_a_teacher_that_is_often_right_or_undecided_is_not_accused():
    assert judge([[7, 23, 0], *SWAPPED[1:]]) == [(1, 0)], "23 % right"
    assert judge([[1, 17, 12], *SWAPPED[1:]]) == [(1, 0)], "57 % by one name"


def test_few_samples_of_ours_accuse_nobody():
    assert judge([[0, 20, 0], [27, 2, 1], [0, 3, 27]]) == [(0, 1), (1, 0)]
    assert judge([[0, 19, 0], [27, 2, 1], [0, 3, 27]]) == [(1, 0)]
    assert judge([[0, 100, 0], [0, 0, 0], [0, 0, 0]]) == [], "nothing else to compare with"


def test_the_figures_come_with_it():
    tally_KCC = torch.tensor([SWAPPED])
    first = find_confusions(TeacherStats(torch.full((1, C), 20.0), torch.full((1, C), 0.9)), tally_KCC)[0]
    assert (first.teacher, first.samples) == (0, 30)
    assert first.said_share == pytest.approx(26 / 30)
    assert first.right_share == pytest.approx(3 / 30)


# --- counting


def test_answers_are_counted_by_teacher_and_class():
    said = [[0, 1, 1, 2], [2, 2, 2, 2]]
    q_KBC = torch.nn.functional.one_hot(torch.tensor(said), C).float()
    confusions = Confusions(3, C)
    labels_B = torch.tensor([0, 0, 1, 2])
    confusions.add(q_KBC, labels_B, torch.tensor([True, False, True]))
    confusions.add(q_KBC[:1], labels_B, torch.tensor([True, False, False]))
    assert confusions.tally_KCC.tolist() == [
        [[2, 2, 0], [0, 2, 0], [0, 0, 2]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[0, 0, 2], [0, 0, 1], [0, 0, 1]],
    ]


def test_so_many_classes_that_counting_would_cost_memory_are_not_watched():
    confusions = Confusions(9, 10_000)
    assert confusions.tally_KCC.numel() == 0
    confusions.add(torch.rand(9, 2, 10_000), torch.tensor([0, 1]), torch.ones(9, dtype=torch.bool))
    assert find_confusions(TeacherStats(torch.ones(9, 10_000), torch.ones(9, 10_000)), confusions.tally_KCC) == []


# --- properties

TALLIES = st.lists(
    st.lists(st.lists(st.integers(0, 60), min_size=C, max_size=C), min_size=C, max_size=C), min_size=1, max_size=3
)


def drawn(data):
    tally_KCC = torch.tensor(data.draw(TALLIES), dtype=torch.int32)
    size = st.lists(st.floats(0, 40), min_size=C, max_size=C), st.lists(st.floats(0, 1), min_size=C, max_size=C)
    rows = [[data.draw(column) for _ in range(len(tally_KCC))] for column in size]
    return TeacherStats(*(torch.tensor(values, dtype=torch.float64) for values in rows)), tally_KCC


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_whoever_is_accused_claimed_to_know_and_was_mostly_wrong_in_one_way(data):
    stats, tally_KCC = drawn(data)
    for one in find_confusions(stats, tally_KCC):
        row_C = tally_KCC[one.teacher, one.own]
        assert one.own != one.said
        assert one.samples == int(row_C.sum()) >= MIN_SAMPLES
        assert stats.counts_KC[one.teacher, one.own] >= 5
        assert stats.accuracies_KC[one.teacher, one.own] >= 0.5
        assert int(row_C[one.said]) >= 0.6 * one.samples
        assert int(row_C[one.own]) <= 0.2 * one.samples
        others_CC = torch.cat([tally_KCC[one.teacher, : one.own], tally_KCC[one.teacher, one.own + 1 :]])
        assert others_CC[:, one.said].sum() / others_CC.sum() < one.said_share


@settings(max_examples=100, deadline=None)
@given(data=st.data(), order=st.permutations(range(C)))
def test_what_classes_are_numbered_changes_nothing(data, order):
    stats, tally_KCC = drawn(data)
    unique = tally_KCC.to(torch.int32) * 4 + torch.arange(C, dtype=torch.int32)  # no ties between answers
    plain = {(one.teacher, one.own, one.said) for one in find_confusions(stats, unique)}
    reordered = TeacherStats(stats.counts_KC[:, order], stats.accuracies_KC[:, order])
    moved = find_confusions(reordered, unique[:, order][:, :, order])
    assert {(one.teacher, order[one.own], order[one.said]) for one in moved} == plain


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_teacher_is_judged_by_its_own_answers_alone(data):
    stats, tally_KCC = drawn(data)
    together = find_confusions(stats, tally_KCC)
    alone = [
        (k, one.own, one.said)
        for k in range(len(tally_KCC))
        for one in find_confusions(stats.select(torch.tensor([k])), tally_KCC[k : k + 1])
    ]
    assert [(one.teacher, one.own, one.said) for one in together] == alone
