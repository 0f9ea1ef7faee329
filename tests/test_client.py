"""Asking one member: whatever comes byte by byte ends too, because one deadline holds for all of an answer."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import httpx
import pytest

from crad.network.https import client as client_module
from crad.network.https.client import MemberClient, SlowError, why
from tests.dripping import Dripping, Way
from tests.organisations import agreed, make_identities, with_addresses
from tests.ports import free_port
from tests.town import Fault, Town

TOTAL_S = 1.0
A, B = 0, 1


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.mark.parametrize("way", [Way.SILENT, Way.HANDSHAKE, Way.HEADERS, Way.BODY])
def test_an_answer_that_drips_ends_after_its_total_time(identities, way):
    address = free_address()
    agreement = with_addresses(agreed(identities), {"clinic-b": address})
    with (
        Dripping(way, address, identity=identities[B], agreement=agreement),
        closing(MemberClient(B, identity=identities[A], agreement=agreement)) as client,
    ):
        began = time.monotonic()
        with pytest.raises(httpx.TransportError) as error:
            client.hello(total_s=TOTAL_S)
        assert time.monotonic() - began < TOTAL_S + 2
        assert "it does not answer" in why(error.value)


def test_each_thread_has_its_own_deadline(identities):
    """A short question of one thread does not cut off a long one of another on the same client."""
    address = free_address()
    agreement = with_addresses(agreed(identities), {"clinic-b": address})
    with (
        Dripping(Way.HEADERS, address, identity=identities[B], agreement=agreement),
        closing(MemberClient(B, identity=identities[A], agreement=agreement)) as client,
    ):
        took: list[float] = []

        def ask(total_s: float) -> None:
            began = time.monotonic()
            with pytest.raises(httpx.TransportError):
                client.hello(total_s=total_s)
            took.append(time.monotonic() - began)

        threads = [threading.Thread(target=ask, args=(total_s,)) for total_s in (0.5, 2.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert took[0] < 1.9 < took[1]


def test_a_body_slower_than_the_least_speed_is_cut_off(identities, tmp_path, monkeypatch):
    """A megabyte, then a rest of a quarter of a second: with a least speed above that it is too slow."""
    with Town(identities, agreed(identities), tmp_path) as town:
        town[B].publish(numbers=1_200_000)
        town[B].server.fault = Fault.SILENT
        monkeypatch.setattr(client_module, "GRACE_S", 0.5)
        monkeypatch.setattr(client_module, "LEAST_BYTES_PER_S", 1e9)
        began = time.monotonic()
        assert town[A].collect(B, deadline_s=30)[1] == [B]
        assert time.monotonic() - began < 15, "it was waited for until the deadline"
        ((name, reason),) = town[A].refusals
        assert (name, reason) == ("clinic-b", "it sends its snapshot slower than 1e+09 bytes a second")


def test_a_slow_body_above_the_least_speed_comes_in_full(identities, tmp_path, monkeypatch):
    """The time for it grows with what has come: a grace shorter than the whole transfer is no limit."""
    with Town(identities, agreed(identities), tmp_path) as town:
        town[B].publish(numbers=1_200_000)
        town[B].server.fault = Fault.SLOW
        monkeypatch.setattr(client_module, "GRACE_S", 0.6)
        assert town[A].collect(B, deadline_s=30)[1] == []


def test_a_slow_error_is_a_time_out_of_the_line():
    assert issubclass(SlowError, httpx.TransportError)
