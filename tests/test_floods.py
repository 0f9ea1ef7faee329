"""Whoever opens connections without end changes nothing for the others' rounds; over real TLS on loopback."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from contextlib import closing, contextmanager

import pytest

from crad.network.https.notices import Throttle, asyncio_told_by, tell_loop_faults
from crad.network.https.request_gate import Limits
from tests.flood import DRIP, ENDLESS, SILENT, TLS, flood
from tests.organisations import agreed, make_identities, with_addresses
from tests.small_member import Watcher, descriptors, small_member
from tests.town import Organisation, Town, ends, hello_over, line_to

OUTSIDE, INSIDE = "127.0.0.66", "127.0.0.1"  # members come from the second one
ROUND_S = 4.0
GROWN_KB = 64 << 10  # of the process with all three members and the messages of a round: some 20 MB in a flood
SHARE = 4 * 16 * 2  # of an address with two members: silent, in their handshake, and some on their way out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("identities")


@pytest.fixture(scope="module")
def identities(folder):
    return make_identities(folder)


@pytest.fixture
def town(identities, tmp_path):
    with Town(identities, agreed(identities), tmp_path) as town:
        yield town


def exchange_a_round(town, round_index=1):
    """Everybody publishes and fetches from everybody else; how long it took."""
    began = time.monotonic()
    for member in town.members:
        member.meet(town.agreement)  # with new connections
        member.publish(round_index, numbers=100_000)
    for number, member in enumerate(town.members):
        others = [other for other in range(3) if other != number]
        got, missing = member.collect(*others, round_index=round_index)
        assert (sorted(got), missing) == (others, [])
    return time.monotonic() - began


# --- outsiders


@pytest.mark.parametrize(
    ("kind", "what"), [(SILENT, "connections without a word"), (DRIP, "unfinished handshakes")], ids=[SILENT, DRIP]
)
@pytest.mark.parametrize(("source", "share"), [(OUTSIDE, 16), (INSIDE, 32)])
def test_a_thousand_sockets_without_a_handshake_change_nothing_for_a_round(town, kind, what, source, share):
    before = descriptors()
    with Watcher() as watcher, flood(town[1].address, source=source, kind=kind) as still_open:
        assert exchange_a_round(town) < ROUND_S
        assert 0 < still_open() <= 2 * share
    assert watcher.most < before + 4 * share + 40  # some on their way out; the members' own connections, both ends
    assert watcher.grown_kb < GROWN_KB
    assert f"{source} holds {share} {what}: dropped, oldest first" in town[1].notices
    assert len(town[1].notices) <= 4


@pytest.mark.parametrize("source", [OUTSIDE, INSIDE])
def test_sockets_opened_again_and_again_change_nothing_for_those_who_are_connected(town, source):
    exchange_a_round(town)
    before = descriptors()
    with Watcher() as watcher, flood(town[1].address, source=source, kind=ENDLESS):
        time.sleep(0.5)
        began = time.monotonic()
        town[1].publish(2, numbers=100_000)
        assert list(town[0].collect(1, round_index=2)[0]) == [1]
        assert time.monotonic() - began < ROUND_S
    assert watcher.most < before + SHARE + 40
    assert watcher.grown_kb < GROWN_KB
    assert f"{source} connects too often: turned away" in town[1].notices
    assert len(town[1].notices) <= 3


def test_a_member_gets_in_beside_sockets_opened_again_and_again_elsewhere(town):
    with flood(town[1].address, source=OUTSIDE, kind=ENDLESS):
        time.sleep(0.5)
        for _ in range(5):
            began = time.monotonic()
            with line_to(town) as line:
                assert hello_over(line) == 200
            assert time.monotonic() - began < 1


def test_many_strangers_do_not_shut_a_member_out(identities, tmp_path):
    """Every one of them holds little, all together the whole room for strangers."""
    limits = Limits(handshakes=20)
    with Town(identities, agreed(identities), tmp_path, limits=limits) as town:
        crowd = [knock(town[1].address, f"127.0.1.{number}") for number in range(1, 100)]
        assert exchange_a_round(town) < ROUND_S
        assert ends(crowd[0])  # the oldest went
        for one in crowd:
            one.close()
        told = "unknown addresses together hold 20 connections without a word: dropped, oldest first"
        assert town[1].notices == [told]


def knock(address, source):
    """A silent connection from this address."""
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))


def test_a_newcomer_among_strangers_gets_in(town):
    """A member whose address nobody knows, while another unknown address holds all it can."""
    with flood(town[1].address, source=OUTSIDE), line_to(town, source="127.0.0.9") as line:
        assert hello_over(line) == 200


def test_what_is_no_tls_is_closed_at_once(town):
    with knock(town[1].address, OUTSIDE) as plain:
        plain.sendall(b"G")  # TLS would wait for more
        began = time.monotonic()
        assert ends(plain)
        assert time.monotonic() - began < 2
    assert town[1].notices == []


# --- members


@pytest.mark.parametrize("source", [INSIDE, "127.0.0.77"])
def test_a_thousand_connections_of_a_member_change_nothing_for_another(town, identities, source):
    before = descriptors()
    with Watcher() as watcher, flood(town[1].address, source=source, kind=TLS, identity=identities[2]):
        time.sleep(0.5)
        town[1].publish(1, numbers=100_000)
        began = time.monotonic()
        assert list(town[0].collect(1)[0]) == [1]
        with line_to(town) as line:
            assert hello_over(line) == 200
        assert time.monotonic() - began < ROUND_S
    assert watcher.most < before + SHARE + 40
    assert watcher.grown_kb < GROWN_KB
    assert "clinic-c opens more than 8 connections: its oldest idle one was closed" in town[1].notices
    assert len(town[1].notices) <= 6  # causes; none of them twice
    assert not any("clinic-a" in text for text in town[1].notices)


def test_those_who_are_dropped_leave_no_descriptor_behind(town, identities):
    before = descriptors()
    for kind in (SILENT, DRIP, TLS):
        with flood(town[1].address, source=INSIDE, kind=kind, count=200, identity=identities[2]):
            time.sleep(0.3)
    until = time.monotonic() + 5
    while descriptors() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert descriptors() <= before


# --- descriptors


@contextmanager
def guest(identities, folder, address):
    """Calls with which a member asks the small one, which is clinic-b, over a new connection each time."""
    agreement = with_addresses(agreed(identities), {"clinic-b": address})
    with closing(Organisation(identities[0], agreement, folder)) as one:

        def ask():
            with closing(one.client(agreement, 1)) as client:
                began = time.monotonic()
                assert client.hello().name == "clinic-b"
                return time.monotonic() - began

        yield ask


def test_with_few_descriptors_members_are_served_in_a_flood(identities, folder, tmp_path):
    with small_member(folder, of=1, descriptors=128) as (address, end):
        with guest(identities, tmp_path, address) as ask, flood(address, source=OUTSIDE), flood(address, source=INSIDE):
            assert max(ask() for _ in range(5)) < 1
        told = end()
    assert (told["code"], told["stderr"]) == (0, "")
    assert 0 < told["most"] < 110
    assert told["grown_kb"] < GROWN_KB


def test_where_descriptors_run_out_members_are_served_all_the_same(identities, folder, tmp_path):
    """Limits that are too large for the process: accept fails, in one line and without a busy loop."""
    greedy = {"total": 4000, "known_handshakes": 1000, "known_connect_burst": 5000}
    with small_member(folder, of=1, descriptors=64, **greedy) as (address, end):
        with guest(identities, tmp_path, address) as ask, flood(address, source=INSIDE):
            assert max(ask() for _ in range(2)) < 3
            time.sleep(0.5)
        told = end()
    assert (told["code"], told["stderr"]) == (0, "")
    assert told["notices"][0] == "no connection can be accepted (Too many open files): silent ones are dropped"
    assert len(told["notices"]) <= 3
    assert told["cpu_s"] < 1
    assert told["grown_kb"] < GROWN_KB


# --- the end


@pytest.mark.parametrize("kind", [SILENT, DRIP, ENDLESS, TLS])
def test_a_server_ends_within_seconds_whatever_the_connections_do(identities, tmp_path, kind):
    one = Organisation(identities[0], agreed(identities), tmp_path)
    with flood(one.address, source=INSIDE, kind=kind, identity=identities[2]):
        time.sleep(0.3)
        began = time.monotonic()
        one.close()
        assert time.monotonic() - began < 4


# --- what asyncio would write to stderr


def test_what_asyncio_logs_in_the_servers_thread_becomes_one_line(caplog):
    said: list[str] = []
    with asyncio_told_by(Throttle(said.append)):
        for _ in range(1000):
            logging.getLogger("asyncio").warning("socket.send() raised exception.")
        elsewhere = threading.Thread(target=logging.getLogger("asyncio").warning, args=("of another loop",))
        elsewhere.start()
        elsewhere.join()
    assert said == ["the server was told by asyncio: socket.send() raised exception."]
    assert [record.message for record in caplog.records] == ["of another loop"]
    logging.getLogger("asyncio").warning("after the end")
    assert len(caplog.records) == 2


def test_a_fault_on_the_servers_loop_is_told_as_a_line(town, capfd):
    def fail():
        raise ValueError("unseen")

    for _ in range(100):
        town[1].server._on_loop(fail)
    with line_to(town) as line:
        assert hello_over(line) == 200
    (told,) = town[1].notices
    assert told.startswith("a connection failed inside the server: ")
    assert capfd.readouterr().err == ""


def test_what_nobody_catches_on_the_loop_becomes_one_line(caplog):
    said: list[str] = []

    def fail():
        raise ValueError("a\nb")

    async def serve():
        tell_loop_faults(asyncio.get_running_loop(), Throttle(said.append))
        for _ in range(1000):
            asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0.01)

    asyncio.run(serve())
    assert caplog.records == []
    (line,) = said
    assert line.isprintable()
    assert "ValueError" in line
