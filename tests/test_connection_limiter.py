"""The policy of a member's limiter, by hand and for any sequence of events; no socket is opened here."""

from __future__ import annotations

import asyncio
import resource
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.network.https.addresses import LEARNED, KnownAddresses, group_address
from crad.network.https.connection_limiter import Admission, ConnectionLimiter, Pool
from crad.network.https.limits import Limits, divide
from crad.network.https.notices import Throttle
from crad.network.token_buckets import MOST_BUCKETS, TokenBuckets

HOME, ELSEWHERE = "10.0.0.1", "192.0.2.7"  # of a member, of a stranger
GENEROUS = Limits(connect_burst=10**9, known_connect_burst=10**9, known_handshake_burst=10**9)


def a_limiter(limits=GENEROUS, *, members=3, hosts=None):
    return ConnectionLimiter(limits, divide(limits, members=members), KnownAddresses(hosts or {"clinic-a": HOME}))


def idle():
    return False


def busy():
    return True


def enter(limiter, key, member="clinic-a", *, address=HOME, is_busy=idle):
    """A connection from accept to the end of its handshake."""
    limiter.arrive(key, address, now=0)
    limiter.greet(key, now=0)
    return limiter.enter(key, member, is_busy=is_busy)


# --- before the handshake


def test_the_oldest_silent_connection_of_an_address_makes_room_for_its_next():
    limiter = a_limiter(Limits(stranger_handshakes=2))
    assert [limiter.arrive(key, ELSEWHERE, now=0).dropped for key in (1, 2, 3, 4)] == [(), (), (1,), (2,)]


def test_the_address_that_holds_most_makes_room_for_a_stranger():
    limiter = a_limiter(Limits(handshakes=3))
    for key, address in enumerate(["192.0.2.1", "192.0.2.2", "192.0.2.2"]):
        limiter.arrive(key, address, now=0)
    verdict = limiter.arrive(9, "192.0.2.3", now=0)
    assert (verdict.is_in, verdict.dropped) == (True, (1,))
    assert verdict.said is not None
    assert verdict.said[1] == "192.0.2.2 holds 2 connections without a word: dropped, oldest first"


def test_strangers_take_no_place_of_an_address_from_which_members_come():
    limiter = a_limiter()
    limiter.arrive(0, HOME, now=0)
    for key in range(1, 2000):
        assert 0 not in limiter.arrive(key, f"192.0.{key // 250}.{key % 250}", now=0).dropped
    assert limiter.greet(0, now=0) == Admission(True)


def test_silent_connections_take_no_place_of_those_in_a_handshake():
    limiter = a_limiter()
    limiter.arrive(0, HOME, now=0)
    limiter.greet(0, now=0)
    for key in range(1, 1000):
        limiter.arrive(key, HOME, now=0)
    assert limiter.enter(0, "clinic-a", is_busy=idle).is_in


def test_a_stranger_that_comes_too_often_is_turned_away_until_time_has_passed():
    limiter = a_limiter(Limits(connects_per_s=1, connect_burst=2))
    assert [limiter.arrive(key, ELSEWHERE, now=now).is_in for key, now in enumerate([0, 0, 0, 0.5, 1.5, 1.6])] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]
    assert limiter.arrive(9, "192.0.2.8", now=0).is_in


def test_silent_connections_of_a_neighbour_do_not_keep_a_member_from_its_handshake():
    """They come from one address: what they cost is a socket each, and no handshake of the address's budget."""
    limiter = a_limiter(Limits())
    for key in range(900):
        assert limiter.arrive(key, HOME, now=0).is_in
    assert limiter.greet(899, now=0) == Admission(True)


def test_handshakes_beyond_an_addresss_rate_wait_in_their_places():
    limiter = a_limiter(Limits(known_handshakes_per_s=1, known_handshake_burst=1))
    for key in (1, 2):
        limiter.arrive(key, HOME, now=0)
    assert limiter.greet(1, now=0) is not None
    assert limiter.greet(2, now=0) is None
    assert 2 in limiter
    assert limiter.greet(2, now=1.1) == Admission(True)


def test_who_waits_for_its_handshake_outlasts_those_without_a_word():
    limiter = a_limiter(Limits(known_handshakes_per_s=1, known_handshake_burst=1, known_handshakes=3))
    for key in (0, 1, 2):
        limiter.arrive(key, HOME, now=0)
        if key == 0:
            limiter.greet(0, now=0)
    limiter.arrive(3, HOME, now=0)
    assert limiter.greet(1, now=0) is None
    assert limiter.arrive(4, HOME, now=0).dropped == (2,)


def test_an_address_is_known_once_a_member_has_shown_its_key_there():
    limiter = a_limiter(Limits(connect_burst=1))
    assert enter(limiter, 1, address=ELSEWHERE).is_in
    assert all(enter(limiter, key, address=ELSEWHERE).is_in for key in range(2, 50))
    assert limiter.arrive(90, "192.0.2.8", now=0).is_in
    assert not limiter.arrive(91, "192.0.2.8", now=0).is_in


# --- after it


def test_a_member_loses_its_own_oldest_idle_connection_and_nobody_elses():
    limiter = a_limiter(Limits(connections=2))
    assert enter(limiter, 10, "clinic-b").dropped == ()
    assert [enter(limiter, key).dropped for key in (1, 2, 3)] == [(), (), (1,)]
    limiter.touch(2, "clinic-a")
    assert enter(limiter, 4).dropped == (3,)
    assert (limiter.held_by("clinic-a"), limiter.held_by("clinic-b")) == (2, 1)


def test_a_busy_connection_is_not_dropped():
    limiter = a_limiter(Limits(connections=2))
    enter(limiter, 1, is_busy=busy)
    enter(limiter, 2)
    assert enter(limiter, 3, is_busy=busy).dropped == (2,)
    verdict = enter(limiter, 4)
    assert (verdict.is_in, verdict.dropped) == (False, ())
    assert 4 not in limiter


def test_a_connection_that_was_dropped_in_its_handshake_cannot_enter():
    limiter = a_limiter()
    limiter.arrive(1, HOME, now=0)
    limiter.greet(1, now=0)
    limiter.leave(1)
    assert not limiter.enter(1, "clinic-a", is_busy=idle).is_in
    assert limiter.greet(1, now=0) == Admission(False)


def test_more_members_than_connections_share_what_there_is():
    limits = Limits(total=16)
    limiter = a_limiter(limits, members=100)
    shares = limiter.shares
    verdicts = [enter(limiter, key, f"clinic-{key}") for key in range(100)]
    assert all(verdict.is_in for verdict in verdicts)
    assert limiter.entered == shares.members
    assert shares.total <= 16


def test_where_descriptors_are_short_strangers_go_first_and_idle_members_last():
    limiter = a_limiter()
    enter(limiter, 1)
    enter(limiter, 2)
    enter(limiter, 3, "clinic-b")
    limiter.arrive(4, HOME, now=0)
    limiter.arrive(5, ELSEWHERE, now=0)
    assert limiter.shed(1) == (5,)
    assert limiter.shed(8) == (4,)
    assert limiter.shed(8) == (1,)
    assert limiter.entered == 2


@pytest.mark.parametrize("descriptors", [16, 64, 128, 256, 1024])
@pytest.mark.parametrize("members", [2, 3, 10, 50])
def test_the_rooms_together_are_no_more_than_the_process_can_have(descriptors, members):
    shares = divide(Limits(total=descriptors), members=members)
    assert shares.total <= descriptors
    assert min(shares.strangers, shares.neighbours, shares.per_member) >= 1
    if members * shares.per_member > shares.members:
        assert shares.per_member == 1


@pytest.mark.parametrize(
    ("descriptors", "most"), [(128, 64), (1024, 768), (20_000, 1024), (resource.RLIM_INFINITY, 1024), (40, 16)]
)
def test_descriptors_are_left_for_files(monkeypatch, descriptors, most):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))
    shares = divide(Limits(), members=3)
    assert most - 8 < shares.total <= most


# --- any sequence of events

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "greet", "enter", "leave", "touch", "shed"]),
        st.integers(0, 30),
        st.sampled_from([HOME, "10.0.0.2", ELSEWHERE, "192.0.2.8", "192.0.2.9"]),
        st.sampled_from(["clinic-a", "clinic-b", "clinic-c"]),
        st.booleans(),
    ),
    max_size=200,
)


@settings(deadline=None)
@given(events=EVENTS, total=st.integers(16, 40), connections=st.integers(1, 4))
def test_no_sequence_of_events_exceeds_a_bound_or_shuts_a_known_address_out(events, total, connections):
    limits = Limits(
        total=total, connections=connections, stranger_handshakes=2, known_handshakes=2, connect_burst=10**6
    )
    known = KnownAddresses({"clinic-a": HOME})
    limiter = ConnectionLimiter(limits, divide(limits, members=3), known)
    alive: dict[int, str | None] = {}
    next_key = 0
    for now, (event, choice, address, member, flag) in enumerate(events):
        key = list(alive)[choice % len(alive)] if alive else -1
        verdict: Admission | None = None
        if event == "arrive":
            next_key += 1
            key = next_key
            verdict = limiter.arrive(key, address, now=now)
            assert verdict.is_in
            alive[key] = None
        elif event == "greet" and alive.get(key, "") is None:
            verdict = limiter.greet(key, now=now)
        elif event == "enter" and alive.get(key, "") is None:
            was_greeting = any(key in pool for pool in limiter._greeting.values())
            verdict = limiter.enter(key, member, is_busy=busy if flag else idle)
            if verdict.is_in:
                alive[key] = member
            elif was_greeting:
                del alive[key]
        elif event == "leave" and alive:
            limiter.leave(key, alive.pop(key))
        elif event == "touch":
            limiter.touch(key, member)
        elif event == "shed":
            verdict = Admission(True, limiter.shed(1))
        for gone in verdict.dropped if verdict else ():
            assert gone != key or event == "shed"  # a newcomer never makes room for itself
            if event == "enter" and verdict and verdict.said and verdict.said[0].startswith("too many of"):
                assert alive[gone] == member
            del alive[gone]
        # whatever has a place is alive and the other way round: nothing is lost track of
        assert len(limiter) == len(alive)
        assert len(limiter) <= limiter.shares.total <= total
        assert all(limiter.held_by(name) <= limiter.shares.per_member for name in ("clinic-a", "clinic-b", "clinic-c"))
    final = limiter.arrive(10**6, HOME, now=len(events))
    assert final.is_in
    assert 10**6 in limiter


@settings(deadline=None)
@given(
    arrivals=st.lists(st.integers(0, 20), max_size=100),
    most=st.integers(1, 10),
    share=st.integers(1, 5),
)
def test_a_pool_never_drops_from_an_address_with_fewer_than_another(arrivals, most, share):
    pool = Pool(most)
    held: dict[str, list[int]] = {}
    for key, number in enumerate(arrivals):
        address = str(number)
        gone = pool.add(key, address, share=share)
        if gone is not None:
            assert gone.address == address or gone.held == max(map(len, held.values()))
            assert held[gone.address][0] == gone.key
            held[gone.address].pop(0)
        held.setdefault(address, []).append(key)
        assert len(pool) == sum(len(keys) for keys in held.values()) <= most
        assert max(map(len, held.values())) <= share


def test_few_buckets_are_remembered_however_many_addresses_come():
    buckets = TokenBuckets()
    for number in range(MOST_BUCKETS + 100):
        buckets.spend(str(number), rate=1, burst=1, now=0)
    assert len(buckets) == MOST_BUCKETS


# --- addresses


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_site_of_ipv6_counts_as_one_address(host, group):
    assert group_address(host) == group


def test_of_one_member_few_addresses_are_remembered_and_the_oldest_is_forgotten():
    known = KnownAddresses({"clinic-a": HOME})
    for number in range(LEARNED + 2):
        known.learn("clinic-a", f"192.0.2.{number}")
    assert [known.members_at(f"192.0.2.{number}") for number in range(LEARNED + 2)] == [0, 0] + [1] * LEARNED
    assert known.members_at(HOME) == 1


def test_an_address_of_two_members_counts_twice():
    known = KnownAddresses({"clinic-a": HOME, "clinic-b": HOME})
    known.learn("clinic-a", HOME)
    assert known.members_at(HOME) == 2


def test_names_are_looked_up_without_being_waited_for_and_kept_where_that_fails():
    answers = iter([["10.0.0.5", "2001:db8::1"], []])
    is_asked, may_answer = threading.Event(), threading.Event()

    def resolve(host):
        assert host == "a.example.org"
        is_asked.set()
        assert may_answer.wait(5)
        return next(answers)

    known = KnownAddresses({"clinic-a": "a.example.org"}, resolve=resolve)

    async def serve():
        for _ in range(2):
            is_asked.clear()
            known.refresh(asyncio.get_running_loop())
            assert await asyncio.to_thread(is_asked.wait, 5)
            may_answer.set()
            await asyncio.sleep(0.05)
            assert (known.members_at("10.0.0.5"), known.members_at("2001:db8::/64")) == (1, 1)

    asyncio.run(serve())


# --- lines


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_first_line_of_a_cause_is_told_at_once_and_the_rest_are_counted():
    said: list[str] = []
    clock = Clock()
    throttle = Throttle(said.append, clock=clock)
    for number in range(814):
        throttle.say("silent", f"line {number}")
    throttle.say("another", "of another cause")
    assert said == ["line 0", "of another cause"]
    clock.now = 59.0
    throttle.flush()
    assert len(said) == 2
    clock.now = 61.0
    throttle.flush()
    assert said[2:] == ["line 813 ... and 812 more in the last minute"]
    clock.now = 62.0
    throttle.say("silent", "again")
    assert len(said) == 3  # one line a minute, this one included
    clock.now = 200.0
    throttle.flush()
    assert said[3:] == ["again"]


def test_however_many_causes_there_are_few_are_remembered():
    said: list[str] = []
    throttle = Throttle(said.append, most=10)
    for number in range(1000):
        throttle.say(f"cause {number}", f"line {number}")
    assert len(said) == 11
    throttle.flush(is_last=True)
    assert said[11:] == ["line 999 ... and 988 more in the last minute"]
