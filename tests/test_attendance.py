"""Who is there, who is away, and which round the majority has reached: by delivered messages alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crad.network.attendance import Attendance
from crad.network.round_deadline import FetchStatus, RoundDeadline, count_present
from tests.simulation.clock import VirtualClock

A, B, C, D = range(4)


def attendance(*delivered: int) -> Attendance:
    """Of one of N: what each of the others has delivered, 0 for nothing."""
    made = Attendance(range(len(delivered)))
    for number, round_index in enumerate(delivered):
        if round_index:
            made.note_delivered(number, round_index)
    return made


@pytest.mark.parametrize(
    ("delivered", "expected"),
    [
        ((), None),
        ((0,), None),
        ((4,), 4),  # with two members the other one's messages count, as there is nobody else
        ((5, 0), None),  # one of two is no majority, whatever it delivers
        ((5, 3), 3),
        ((9, 0, 0), None),
        ((9, 4, 0), 4),  # two of three
        ((9, 9, 2, 2), 2),  # two colluders of five members
        ((9, 9, 7, 2), 7),
        ((9, 9, 0, 0), None),
    ],
)
def test_a_majority_of_all_others_must_have_delivered(delivered, expected):
    assert attendance(*delivered).majority_round() == expected


@given(honest=st.lists(st.integers(0, 50), min_size=1, max_size=9), data=st.data())
def test_no_minority_moves_anybody_beyond_an_honest_member(honest, data):
    """Of N members, the one who asks among them, fewer than half are liars: whatever they deliver."""
    num_members = len(honest) + 1
    liars = data.draw(st.lists(st.integers(0, 10**6), max_size=num_members - 1))
    assert 2 * len(liars) < num_members + len(liars)
    reached = attendance(*data.draw(st.permutations([*honest, *liars]))).majority_round()
    assert reached is None or reached <= max(honest)


def test_after_two_missed_rounds_a_member_is_away():
    made = attendance(0, 0)
    made.note_missed(A, 1)
    assert made.away(2) == frozenset()
    made.note_missed(A, 2)
    assert made.away(3) == {A}


def test_a_round_with_several_kinds_of_message_is_missed_once():
    made = attendance(0)
    made.note_missed(A, 1)
    made.note_missed(A, 1)
    assert made.away(2) == frozenset()


@pytest.mark.parametrize("kinds", [2, 3])
def test_who_misses_one_kind_of_message_in_every_round_is_away_too(kinds):
    """In time with the first, never there with the others: of fifty rounds it holds up a few."""
    made, held_up = attendance(0), 0
    for round_index in range(1, 51):
        made.note_in_time(A, round_index)
        for _ in range(kinds - 1):
            held_up += A not in made.away(round_index)
            made.note_missed(A, round_index)
    assert held_up <= 8


def test_a_round_in_time_ends_the_count():
    made = attendance(0)
    made.note_missed(A, 1)
    made.note_in_time(A, 2)
    made.note_missed(A, 3)
    assert made.away(4) == frozenset()


def test_who_delivers_again_is_waited_for_again():
    made = attendance(0)
    for round_index in (1, 2):
        made.note_missed(A, round_index)
    made.note_delivered(A, 1)  # something older than its absence proves nothing
    assert made.away(3) == {A}
    made.note_delivered(A, 2)
    assert made.away(3) == frozenset()


def test_who_comes_and_goes_is_waited_for_less_and_less():
    """It always delivers, and always too late: of a hundred rounds it may hold up no more than a handful."""
    made, held_up = attendance(0), 0
    for round_index in range(1, 101):
        held_up += A not in made.away(round_index)
        made.note_missed(A, round_index)
        made.note_delivered(A, round_index)
    assert held_up <= 8


def test_who_keeps_time_again_is_a_member_like_any_other():
    made = attendance(0)
    for round_index in (1, 2, 3):
        made.note_missed(A, round_index)
    for round_index in range(4, 10):
        made.note_in_time(A, round_index)
    made.note_missed(A, 10)
    assert made.away(11) == frozenset()


def test_how_many_rounds_are_waited_for_is_ones_own_choice():
    made = Attendance([A], away_after=4)
    for round_index in (1, 2, 3):
        made.note_missed(A, round_index)
        assert made.away(round_index + 1) == frozenset()
    made.note_missed(A, 4)
    assert made.away(5) == {A}


# --- patience


def patience(clock: VirtualClock, *, quorum: int = 1) -> RoundDeadline:
    return RoundDeadline(deadline_s=10.0, quorum=quorum, give_up_s=100.0, clock=clock)


def pass_time(clock: VirtualClock, seconds: float) -> None:
    clock.start(lambda: clock.sleep(seconds), name="time", owner="test")
    end = clock.now() + seconds
    clock.run(until=lambda: clock.now() >= end, after_step=lambda: None, end=1e6)


@pytest.mark.parametrize(
    ("statuses", "away", "is_over"),
    [
        ({B: "came", C: "came"}, (), True),
        ({B: "came"}, (), False),
        ({B: "came"}, (C,), True),  # who is away is not waited for
        ({B: "gone", C: "gone"}, (), False),  # what they say is not enough
        ({B: "ahead", C: "gone"}, (), True),  # one has shown that it is past this round
        ({B: "refused", C: "unreachable"}, (), False),
        ({}, (B, C), False),  # nobody is there
    ],
)
def test_a_round_goes_on_when_all_who_are_waited_for_have_ended_and_enough_are_there(statuses, away, is_over):
    assert patience(VirtualClock(1)).is_over(statuses, wanted=(B, C), away=away) == is_over


def test_after_the_deadline_the_quorum_is_enough():
    clock = VirtualClock(1)
    waiting, came = patience(clock, quorum=2), {B: "came"}
    statuses: dict[int, FetchStatus] = dict.fromkeys(came, "came")
    pass_time(clock, 10.0)
    assert not waiting.is_over(statuses, wanted=(B, C, D))
    assert waiting.is_over({**statuses, C: "ahead"}, wanted=(B, C, D))
    assert not waiting.expired
    pass_time(clock, 90.0)
    assert waiting.expired


def test_only_delivered_messages_make_somebody_present():
    every: dict[int, FetchStatus] = dict(
        enumerate(("came", "ahead", "gone", "refused", "unreachable", "late", "fault"))
    )
    assert count_present(every) == 2


def test_that_too_few_are_there_is_said_at_the_deadline_and_again_after_minutes():
    clock = VirtualClock(1)
    waiting = RoundDeadline(deadline_s=10.0, quorum=1, give_up_s=10_000.0, clock=clock)
    assert not waiting.is_time_for_a_word()
    pass_time(clock, 10.0)
    assert waiting.is_time_for_a_word()
    assert not waiting.is_time_for_a_word()
    pass_time(clock, 301.0)
    assert waiting.is_time_for_a_word()
