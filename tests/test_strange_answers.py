"""What a member with a genuine key can answer that no honest one would: found by an attacker, each with its end."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest

from crad.errors import SnapshotError
from crad.network.agreement import differences
from crad.network.envelope import open_envelope, seal
from crad.network.equivocation.proof import max_proof_bytes, verify_proof
from crad.network.https import https_exchange, member_fetch
from crad.network.store.bucket import parse_receipts
from tests.organisations import agreed, make_identities
from tests.town import Town, snapshot

A, B, C = range(3)
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture
def town(identities, tmp_path):
    with Town(identities, agreed(identities, give_up_s=20.0), tmp_path) as town:
        yield town


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(member_fetch, "PAUSE_S", 0.05)
    monkeypatch.setattr(https_exchange, "ASK_AGAIN_S", 0.3)


def peak_of(call):
    """What a call gives, and the most memory that it takes beside what is there."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def answer(monkeypatch, member, path, status, headers=(), body=b""):
    """Have a member answer everything below a path in its own way."""
    inner = member.server._server.config.loaded_app._application

    async def application(scope, receive, send):
        if not scope["path"].startswith(path):
            await inner(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": status, "headers": [*headers]})
        await send({"type": "http.response.body", "body": body})

    monkeypatch.setattr(member.server._server.config.loaded_app, "_application", application)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (425, [(b"set-cookie", "a=\u00e9".encode("latin-1"))]),
        (302, [(b"location", b"mailto:x")]),
        (302, [(b"location", b"http://[")]),
        (200, [(b"content-encoding", b"gzip")]),
        (204, []),
    ],
)
def test_a_strange_head_ends_nobody_elses_round(town, monkeypatch, status, headers):
    answer(monkeypatch, town[B], "/v1/manifest", status, headers, b"{}" if status != 204 else b"")
    town[C].publish()
    got, missing = town[A].collect(B, C, deadline_s=1.0)
    assert (list(got), missing) == ([C], [B])


def test_no_cookie_is_kept(town, monkeypatch):
    answer(monkeypatch, town[B], "/v1/hello", 200, [(b"set-cookie", b"a=b")], b"{}")
    client = town[A].client(town.agreement, B)
    client.ask("/v1/hello")
    assert len(client._client.cookies) == 0
    client.close()


def test_any_exception_over_one_members_bytes_refuses_that_member_alone(town, monkeypatch):
    def broken(*args, **words):
        raise RecursionError("deep")

    monkeypatch.setattr(member_fetch, "check_announced", broken)
    town[B].publish()
    assert town[A].collect(B, deadline_s=5.0)[1] == [B]
    ((name, reason),) = town[A].refusals
    assert (name, reason) == ("clinic-b", "what it sends cannot be read (RecursionError: deep)")


def test_another_agreement_of_long_names_and_many_entries_takes_little(identities):
    bomb = {"k" * 1_000_000: [0] * 1_000_000, **{f"k{index}": index for index in range(100_000)}}
    lines, peak = peak_of(lambda: differences(agreed(identities), bomb))
    assert 1 <= len(lines) <= 21
    assert all(len(line) < 1000 for line in lines)
    assert peak < 100 * MEGABYTE


def test_what_differs_far_down_in_a_real_agreement_is_still_named(identities):
    classes = [f"class {index}" for index in range(3000)]
    mine, theirs = agreed(identities, classes=classes), agreed(identities, classes=[*classes[:-1], "another"])
    assert differences(mine, theirs.canonical()) == ["classes.2999: 'class 2999' here, 'another' there"]


@pytest.mark.parametrize("text", [b"[" + b"1," * 500_000 + b"1]", b'{"a":1,' + b'"b":1,' * 100_000 + b'"c":1}'])
def test_a_flood_of_faults_becomes_one_line(identities, text):
    agreement = agreed(identities)

    def look():
        with pytest.raises(SnapshotError) as refused:
            verify_proof(text)
        with pytest.raises(ValueError, match=r"no JSON object|nobody expects"):
            parse_receipts(text, most=10)
        return str(refused.value)

    line, peak = peak_of(look)
    assert len(line) < 500
    assert peak < 60 * MEGABYTE
    with pytest.raises(SnapshotError):
        open_envelope(text[: 60 * 1024], sender=agreement.members[B], kind="snapshot", agreement=agreement)


def test_receipts_stop_at_the_first_fault():
    many = json.dumps({"receipts": [1] * 400_000, "proofs": {}}).encode()
    with pytest.raises(ValueError, match="these are no receipts"):
        parse_receipts(many, most=100)

    def look():
        with pytest.raises(ValueError, match="Receipt"):
            parse_receipts(many, most=10**6)

    assert peak_of(look)[1] < 60 * MEGABYTE


def test_no_proof_of_a_federation_is_larger_than_it_can_be(identities):
    assert max_proof_bytes(agreed(identities)) < MEGABYTE


def test_a_second_manifest_is_proof_before_any_body_has_come(town, monkeypatch):
    """It announces something new each time and cuts the body: no heap of parts, and a proof at the second one."""
    made = iter(range(100))

    async def cut(scope, receive, send):
        if scope["path"].startswith("/v1/manifest/1/"):
            message = snapshot(B, seed=next(made), numbers=400_000)
            envelope = seal(message.manifest, kind="snapshot", identity=town[B].identity, agreement=town.agreement)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": envelope})
        else:
            scope["connection"].transport.abort()

    monkeypatch.setattr(town[B].server._server.config.loaded_app, "_application", cut)
    town[C].publish()
    assert town[A].collect(B, C, deadline_s=5.0)[1] == [B]
    assert town[A].exchange.witness.proven() == ["clinic-b"]
    assert len(list((town[A].folder / "in").rglob("*.part"))) <= 1


def test_one_message_of_a_late_round_does_not_make_the_witness_forget(town):
    """clinic-b shows round 5 to clinic-a; what clinic-c signed for round 1 is remembered all the same."""
    town[B].publish(round_index=5)
    town[C].publish(round_index=1)
    town[A].collect(B, C, deadline_s=2.0)
    assert "clinic-c" in town[A].exchange.witness.digests(1)


def test_where_a_few_are_drawn_one_of_them_cannot_stop_the_round(town):
    """With `active` below the number of members a round may ask one other alone, and that one be silent."""
    began = time.monotonic()
    got, missing = town[A].exchange.collect(1, receiver=A, peers=[B], kind="snapshot", deadline_s=0.5)
    assert (got, missing) == ({}, [B])
    assert time.monotonic() - began < 10


def test_lines_about_one_member_do_not_silence_an_alarm_about_our_own_key(town):
    witness = town[A].exchange.witness
    for index in range(200):
        witness.take_proof(f"nonsense {index}".encode(), teller="clinic-b")
    town[A].publish(seed=1)
    message = snapshot(A, seed=2)
    other = seal(message.manifest, kind="snapshot", identity=town[A].identity, agreement=town.agreement)
    witness.examine(1, "clinic-a", "snapshot", other, teller="clinic-c")
    assert sum("clinic-b shows a proof" in text for text in town[A].notices) <= 20
    assert any("is the key in other hands?" in text for text in town[A].notices)


@pytest.mark.parametrize("path", ["/v1/agreement%0A", "/v1/hello%0A", "/v1/receipts/1/x/a-to-" + "1" * 3000])
def test_an_address_that_only_looks_like_one_is_not_answered(town, path):
    client = town[C].client(town.agreement, B)
    assert client.ask(path).status in (400, 404)
    client.close()


def test_a_large_snapshot_of_a_small_network_is_not_fetched(town):
    town[C].publish(numbers=10)
    town[A].meet(town.agreement, snapshot_bytes={B: 1000})
    town[B].publish(numbers=10_000)
    got, missing = town[A].collect(B, C, deadline_s=5.0)
    assert (list(got), missing) == ([C], [B])
    assert "its network needs no more than 1000" in town[A].refusals[0][1]
