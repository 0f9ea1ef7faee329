"""A federation in one process: the real exchanges over a virtual clock. `python -m tests.simulation` runs thousands."""

from __future__ import annotations

import shutil

import pytest

from crad.network.attendance import Attendance
from crad.network.equivocation.signatures import SignatureRecord
from crad.network.member_exchange import MemberExchange
from tests.simulation.clock import StuckError, VirtualClock
from tests.simulation.hostile import BEHAVIOURS
from tests.simulation.schedule import BrokenError, Plan, World, draw_plan, make_message, run_schedule, schedule_of

SCHEDULES = 120  # `make fuzz` runs ten thousand
CHUNK = 20


def calm(hostile: dict[int, str], *, members: int = 5, exchange: str = "https", rounds: int = 5) -> Plan:
    """A federation in which everything that goes wrong is the hostile ones' doing."""
    honest = [number for number in range(members) if number not in hostile]
    return Plan(
        seed=7,
        members=members,
        rounds=rounds,
        exchange=exchange,
        hostile=hostile,
        training_s={number: 3.0 + number for number in honest},
        starts_s=dict.fromkeys(range(members), 0.0),
        kills=[],
        cuts=[],
        outages=[],
        is_reproducible=True,
    )


@pytest.mark.parametrize("first", range(1, SCHEDULES, CHUNK))
def test_whatever_a_minority_does_the_honest_go_on_and_end(first):
    for seed in range(first, first + CHUNK):
        run_schedule(seed)


@pytest.mark.parametrize("exchange", ["https", "bucket"])
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_two_of_five_who_collude_cost_nobody_a_round(behaviour, exchange):
    world = schedule_of(calm({1: behaviour, 3: behaviour}, exchange=exchange))
    assert {one.number: one.records for one in world.honest.values()} == {n: [1, 2, 3, 4, 5] for n in (0, 2, 4)}


@pytest.mark.parametrize("exchange", ["https", "bucket"])
def test_who_signs_two_is_proven_by_all_and_nobody_else_is(exchange):
    world = schedule_of(calm({1: "signs two"}, exchange=exchange))
    for number in world.honest:
        assert world.exchanges[number].witness.proven() == ["clinic-1"]


def test_a_schedule_is_the_same_every_time():
    """Its number says everything: one that fails can be told again."""
    told: list[list[str]] = [[], []]
    for steps in told:
        run_schedule(11, steps.append)
    assert told[0] == told[1]
    assert len(told[0]) > 10


def test_schedules_are_not_all_alike():
    plans = [draw_plan(seed) for seed in range(1, 60)]
    assert {plan.exchange for plan in plans} == {"https", "bucket"}
    assert {len(plan.hostile) for plan in plans} >= {0, 1, 2, 3}
    assert any(plan.kills for plan in plans)
    assert any(plan.cuts for plan in plans)


def test_the_simulation_sees_the_old_median(monkeypatch):
    """As it once was: the round to go on with is the lower median of what those who answer claim."""

    def median_of_claims(exchange: MemberExchange) -> int | None:
        world: World = exchange.world  # type: ignore[attr-defined]
        claims = [world.agreement.rounds for one in world.hostile.values()]
        claims += [max(r for n, r in world.published if n == number) for number in _publishers(world, exchange)]
        return sorted(claims)[(len(claims) - 1) // 2] if claims else None

    monkeypatch.setattr(MemberExchange, "latest", median_of_claims)
    with pytest.raises(BrokenError, match="was pushed to round 5; no honest one is beyond"):
        schedule_of(calm({1: "claims the last round"}, members=3))


def _publishers(world: World, exchange: MemberExchange) -> set[int]:
    return {number for number, _ in world.published if number != exchange._own}


def test_the_simulation_sees_a_majority_of_those_who_answer(monkeypatch):
    """Silence must count as not there: a majority of the others who delivered is not one of all others."""

    def of_those_who_delivered(attendance: Attendance) -> int | None:
        rounds = sorted((one.delivered for one in attendance._others.values() if one.delivered), reverse=True)
        return rounds[len(rounds) // 2] if rounds else None

    monkeypatch.setattr(Attendance, "majority_round", of_those_who_delivered)
    plan = calm({1: "claims the last round and shows it"}, members=3)
    plan.starts_s[2] = 30.0
    with pytest.raises(BrokenError, match="was pushed to round 5"):
        schedule_of(plan)


def test_the_simulation_sees_two_signatures_for_one_round(monkeypatch):
    """A member that does not look at what it signed before its restart, on a processor that rounds otherwise."""
    monkeypatch.setattr(SignatureRecord, "find", lambda self, index, kind: None)
    monkeypatch.setattr("tests.simulation.schedule.WatchedHttps._published_before", lambda self, index, kind: None)
    plan = calm({}, members=3)
    plan.kills.append((4.0, 0, 0.5))
    plan.is_reproducible = False
    with pytest.raises(BrokenError, match="member 0 signed two different messages"):
        schedule_of(plan)


JUMPED_AND_KILLED = (40621, 41170, 41695, 41794, 42680, 45630)


@pytest.mark.parametrize("seed", JUMPED_AND_KILLED)
def test_who_jumped_ahead_and_was_killed_signs_no_old_round_again(seed):
    """These schedules ended so: killed twice, between them overtaken, and the rounds it had signed first forgotten."""
    run_schedule(seed)


def test_what_was_signed_is_known_until_the_agreement_ends(monkeypatch):
    """The record cut down to the last two rounds, as it once was: the schedules see it."""
    keep = SignatureRecord.keep

    def keep_two_rounds(record: SignatureRecord, round_index: int, kind: str, envelope: bytes) -> None:
        keep(record, round_index, kind, envelope)
        for old in record._folder.glob("round-*"):
            if int(old.name.removeprefix("round-")) <= round_index - 2:
                shutil.rmtree(old)

    monkeypatch.setattr(SignatureRecord, "keep", keep_two_rounds)
    for seed in JUMPED_AND_KILLED:
        with pytest.raises(BrokenError, match="signed two different messages"):
            run_schedule(seed)


def test_the_simulation_sees_a_wait_without_an_end(monkeypatch):
    """Whoever is away is waited for as anybody: with a silent member the time does not suffice."""
    monkeypatch.setattr(Attendance, "away", lambda self, round_index: frozenset())
    monkeypatch.setattr("tests.simulation.schedule.SLACK_S", -100.0)
    with pytest.raises(BrokenError, match="at most"):
        schedule_of(calm({1: "says nothing"}, members=3, rounds=5))


def test_a_clock_that_nobody_can_go_on_by_says_so():
    clock = VirtualClock(1)
    clock.start(lambda: clock.wait(1e19, lambda: False), name="for ever", owner="somebody")
    with pytest.raises(StuckError, match="for ever"):
        clock.run(until=lambda: False, after_step=lambda: None, end=100.0)


def test_a_killed_process_does_nothing_more():
    clock, done = VirtualClock(1), []

    def thread() -> None:
        clock.sleep(1.0)
        done.append("thread")

    def fate() -> None:
        clock.sleep(1.5)
        clock.kill("member")

    def process() -> None:
        clock.sleep(1.0)
        clock.start(thread, name="thread")
        try:
            clock.sleep(5.0)
        finally:
            done.append("put in order")

    clock.start(process, name="process", owner="member")
    clock.start(fate, name="fate", owner="fate")
    clock.start(lambda: clock.sleep(10.0), name="other", owner="other")
    clock.run(until=lambda: clock.now() > 9.0, after_step=lambda: None, end=100.0)
    assert done == []


def test_messages_differ_by_member_round_and_variant():
    messages = [make_message(number, index, variant) for number in range(2) for index in (1, 2) for variant in (0, 1)]
    assert len({message.manifest for message in messages}) == 8
