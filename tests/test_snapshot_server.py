"""A member's server answers its few addresses, within its limits, and writes down every byte that leaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from crad.errors import ConfigError, RunError, SnapshotError
from crad.federation.message import message_in_file
from crad.network.agreement import differences
from crad.network.https.client import Hello
from crad.network.https.outbox import Outbox
from crad.network.https.request_gate import Limits, Outgoing
from crad.network.https.tls import MemberContext
from crad.network.ledger import OutgoingLedger, read_ledger, totals
from crad.site.doctor.others import PROBE_BYTES
from crad.site.settings import Site, read_site, template
from tests.organisations import agreed, make_identities
from tests.town import Organisation, Town, ends, hello_over, line_to, snapshot

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture(scope="module")
def town(identities, tmp_path_factory):
    with Town(identities, agreed(identities), tmp_path_factory.mktemp("town"), limits=Limits(burst=100_000)) as town:
        yield town


def web(town, *, of=0, to=1):
    """A plain HTTP client of one member, connected to another."""
    context = MemberContext.to(town.agreement.members[to], identity=town[of].identity, agreement=town.agreement)
    return httpx.Client(verify=context, base_url=f"https://{town[to].address}", trust_env=False, timeout=10)


@pytest.fixture(scope="module")
def client(town):
    with web(town) as client:
        yield client


@pytest.fixture(scope="module")
def sent(town):
    return town[1].publish(round_index=3, numbers=1000)


# --- the addresses


def test_hello_says_who_and_where(town, client, sent):
    hello = Hello.model_validate_json(client.get("/v1/hello").content)
    assert (hello.name, hello.federation) == ("clinic-b", town.agreement.hash)
    assert (hello.first_round, hello.latest_round) == (3, 3)
    assert abs(hello.clock - time.time()) < 60


def test_the_agreement_can_be_compared(town, client):
    answer = client.get("/v1/agreement")
    assert hashlib.sha256(answer.content).hexdigest() == town.agreement.hash
    assert differences(town.agreement, answer.json()) == []


def test_a_manifest_comes_with_the_digest_of_its_body(client, sent):
    answer = client.get("/v1/manifest/3/snapshot")
    assert answer.headers["ETag"] == f'"{hashlib.sha256(sent.body).hexdigest()}"'
    assert json.loads(answer.content)["member"] == "clinic-b"


def test_a_snapshot_comes_whole(client, sent):
    answer = client.get("/v1/snapshot/3/snapshot")
    assert (answer.status_code, answer.content) == (200, bytes(sent.body))
    assert answer.headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(("asked", "start", "stop"), [("100-", 100, None), ("0-9", 0, 10), ("100-99999", 100, None)])
def test_a_part_of_a_snapshot_comes_as_asked(client, sent, asked, start, stop):
    etag = f'"{hashlib.sha256(sent.body).hexdigest()}"'
    answer = client.get("/v1/snapshot/3/snapshot", headers={"Range": f"bytes={asked}", "If-Range": etag})
    body = bytes(sent.body)
    assert (answer.status_code, answer.content) == (206, body[start:stop])
    last = (stop or len(body)) - 1
    assert answer.headers["Content-Range"] == f"bytes {start}-{last}/{len(body)}"


@pytest.mark.parametrize(
    "headers",
    [
        {"Range": "bytes=5-", "If-Range": '"another"'},
        {"Range": "bytes=-5"},
        {"Range": "bytes=0-1,3-4"},
        {"Range": "lines=1-"},
        {"Range": f"bytes={'9' * 30}-"},
    ],
)
def test_parts_that_we_do_not_give_come_whole(client, sent, headers):
    answer = client.get("/v1/snapshot/3/snapshot", headers=headers)
    assert (answer.status_code, answer.content) == (200, bytes(sent.body))


@pytest.mark.parametrize("asked", ["99999999-", "9-5"])
def test_a_part_beyond_the_end_is_none(client, sent, asked):
    answer = client.get("/v1/snapshot/3/snapshot", headers={"Range": f"bytes={asked}"})
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == f"bytes */{len(sent.body)}"


@pytest.mark.parametrize(("path", "status"), [("3/other", 425), ("4/snapshot", 425), ("2/snapshot", 410)])
@pytest.mark.parametrize("what", ["manifest", "snapshot"])
def test_what_is_not_there_may_come_or_is_gone(client, sent, what, path, status):
    answer = client.get(f"/v1/{what}/{path}")
    assert answer.status_code == status
    assert answer.json() == {"first_round": 3, "latest_round": 3}


def test_a_question_is_kept_open_as_long_as_asked(client, sent):
    began = time.monotonic()
    assert client.get("/v1/manifest/4/snapshot?wait=0.5").status_code == 425
    assert 0.4 < time.monotonic() - began < 5


def test_a_probe_has_the_size_asked_for_up_to_a_limit(client):
    assert len(client.get("/v1/probe?bytes=1000").content) == 1000
    assert len(client.get("/v1/probe?bytes=1e12").content) == 4 * MEGABYTE


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/hello/",
        "/v2/hello",
        "/docs",
        "/v1/snapshot/3/snapshot/x",
        "/v1/snapshot/-1/snapshot",
        "/v1/snapshot/1e3/snapshot",
        f"/v1/snapshot/{'9' * 5000}/snapshot",
        "/v1/snapshot/3/.",
        "/v1/snapshot/3/..%2f..%2fledger.jsonl",
        "/v1/snapshot/3/%2e%2e",
        "/v1/snapshot/..%2f/snapshot",
        "/v1/manifest/3/snapshot?wait=nan",
        "/v1/manifest/3/snapshot?wait=-1",
        "/v1/manifest/3/snapshot?wait=soon",
        "/v1/probe?bytes=-5",
        "/v1/probe?bytes=many",
        "/v1/manifest/3/x-to-2",
        "/v1/manifest/3/x-to-99999999999999999999",
    ],
)
def test_everything_else_is_not_found(town, client, sent, path):
    host, port = town[1].address.split(":")
    request = client.build_request("GET", "/")
    request.url = httpx.URL(f"https://{host}:{port}").copy_with(raw_path=path.encode())
    answer = client.send(request)
    assert answer.status_code in (404, 307)
    assert b"-----" not in answer.content
    assert town[1].notices == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "PATCH"])
@pytest.mark.parametrize("path", ["/v1/hello", "/v1/snapshot/3/snapshot", "/elsewhere"])
def test_only_get_is_answered(town, method, path):
    with web(town) as client:
        assert client.request(method, path).status_code == 405


# --- limits


@pytest.fixture
def strict(identities, tmp_path):
    limits = Limits(connections=2, requests_per_s=1, burst=5, request_s=0.5, send_s=0.5, handshake_s=0.5, handshakes=3)
    with Town(identities, agreed(identities), tmp_path, limits=limits) as town:
        yield town


def test_a_member_that_asks_too_often_is_slowed_down_and_nobody_else(strict):
    with web(strict) as busy, web(strict, of=2) as other:
        assert [busy.get("/v1/hello").status_code for _ in range(6)] == [200] * 5 + [429]
        assert other.get("/v1/hello").status_code == 200
        time.sleep(1.1)
        assert busy.get("/v1/hello").status_code == 200


def test_probes_have_a_share_of_our_line_for_each_member_and_minute(identities, tmp_path):
    limits = Limits(probe_bytes_per_minute=5000)
    with Town(identities, agreed(identities), tmp_path, limits=limits) as town, web(town) as busy:
        assert [busy.get("/v1/probe?bytes=2000").status_code for _ in range(2)] == [200, 200]
        refused = busy.get("/v1/probe?bytes=2000")
        assert (refused.status_code, refused.content, refused.headers["Retry-After"]) == (429, b"", "24")
        assert busy.get("/v1/probe?bytes=1000").status_code == 200, "what is left is there"
        assert busy.get("/v1/hello").status_code == 200
        with web(town, of=2) as other:
            assert other.get("/v1/probe?bytes=2000").status_code == 200
        with (
            closing(town[0].client(town.agreement, 1)) as client,
            pytest.raises(SnapshotError, match="clinic-b has been measured often enough for a minute"),
        ):
            client.probe(2000)
        assert totals(town[1].ledger.path)["clinic-a"]["probe"] == 5000


def test_probes_cannot_use_up_our_line():
    """Several doctors a minute, and 2 % of a line of 100 Mbit/s."""
    assert PROBE_BYTES * 4 <= Limits().probe_bytes_per_minute <= 0.02 * 60 * 100e6 / 8


def test_dial_backs_have_a_number_for_each_member_and_minute(identities, tmp_path):
    with Town(identities, agreed(identities), tmp_path, limits=Limits(reaches_per_minute=2)) as town:
        with web(town) as busy:
            assert [busy.get("/v1/reach").status_code for _ in range(3)] == [200, 200, 429]
        with web(town, of=2) as other:
            assert other.get("/v1/reach").status_code == 200


def test_a_member_that_opens_one_connection_too_many_loses_its_oldest_idle_one(strict):
    with line_to(strict, of=2) as other, line_to(strict) as first, line_to(strict) as second:
        assert hello_over(first) == hello_over(second) == hello_over(first) == 200
        with line_to(strict) as third:
            assert hello_over(third) == 200
            assert ends(second)  # the first one was used later
            assert hello_over(first) == hello_over(other) == 200
    assert strict[1].notices == ["clinic-a opens more than 2 connections: its oldest idle one was closed"]


def test_a_connection_that_was_closed_does_not_count(strict):
    for _ in range(2):
        with line_to(strict) as first, line_to(strict) as second:
            assert hello_over(first) == hello_over(second) == 200
        time.sleep(0.2)
    assert strict[1].notices == []


def test_a_connection_with_a_question_under_way_is_not_idle(strict):
    with line_to(strict) as first, line_to(strict) as second:
        for line in (first, second):
            line.sendall(b"GET /v1/manifest/9/snapshot?wait=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.3)
        with line_to(strict) as third:
            assert ends(third)
        assert first.recv(64).startswith(b"HTTP/1.1 425")
        assert second.recv(64).startswith(b"HTTP/1.1 425")
    assert strict[1].notices == ["clinic-a opens more than 2 connections and uses all: one more was refused"]


@pytest.mark.parametrize("begun", [b"", b"GET /v1/hello HTTP/1.1\r\nX: "])
def test_a_request_that_does_not_come_to_its_end_is_dropped(strict, begun):
    with line_to(strict) as line:
        line.sendall(begun or b"")
        began = time.monotonic()
        assert ends(line)
        assert time.monotonic() - began < 5


def test_a_second_request_that_does_not_come_to_its_end_is_dropped_too(strict):
    with line_to(strict) as line:
        line.sendall(b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
        line.sendall(b"GET /v1/he")
        began = time.monotonic()
        assert ends(line)
        assert time.monotonic() - began < 5


def test_headers_without_end_are_refused(strict):
    with line_to(strict) as line:
        line.sendall(b"GET /v1/hello HTTP/1.1\r\nX: " + b"x" * 20_000)
        assert line.recv(64).startswith(b"HTTP/1.1 400")


def test_a_reader_that_does_not_read_is_dropped_and_named(strict):
    strict[1].publish(numbers=8 * MEGABYTE)  # more than the buffers of both ends hold
    with line_to(strict) as line:
        line.sendall(b"GET /v1/snapshot/1/snapshot HTTP/1.1\r\nHost: x\r\n\r\n")
        until = time.monotonic() + 10
        while not strict[1].notices and time.monotonic() < until:
            time.sleep(0.05)
        assert strict[1].notices == ["clinic-a was dropped: it took less than a megabyte in 0.5 s"]
    # and the ledger does not count what it never took
    assert sum(piece.bytes for piece in strict[1].left()) < 32 * MEGABYTE


def test_a_reader_that_leaves_is_not_read_to(strict):
    strict[1].publish(numbers=8 * MEGABYTE)
    with line_to(strict) as line:
        line.sendall(b"GET /v1/snapshot/1/snapshot HTTP/1.1\r\nHost: x\r\n\r\n")
        line.recv(1000)
    time.sleep(1)
    assert 0 < sum(piece.bytes for piece in strict[1].left()) < 32 * MEGABYTE
    assert strict[1].notices == []


def test_others_are_served_between_two_pieces(tmp_path):
    """A piece that fits into the buffers is sent without a pause; a whole snapshot must not hold up the loop."""
    ledger = OutgoingLedger(tmp_path / "ledger.jsonl")
    reader: Any = SimpleNamespace(member="clinic-a", transport=SimpleNamespace(is_closing=lambda: False))
    turns: list[str] = []

    async def take(message):
        turns.append("piece")

    async def another():
        turns.append("another")

    async def serve():
        outgoing = Outgoing(reader, {"path": "/v1/snapshot/1/snapshot"}, take, ledger=ledger, send_s=1)
        task = asyncio.create_task(another())
        for _ in range(2):
            await outgoing.send({"type": "http.response.body", "body": b"x", "more_body": True})
        await task

    asyncio.run(serve())
    ledger.close()
    assert turns == ["piece", "another", "piece"]


def test_handshakes_that_do_not_end_are_dropped(strict):
    host, port = strict[1].address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        began = time.monotonic()
        assert ends(line)
        assert time.monotonic() - began < 5


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_flood_of_handshakes_costs_no_more_than_the_flood_lasts(strict):
    host, port = strict[1].address.split(":")
    flood = [socket.create_connection((host, int(port)), timeout=10) for _ in range(10)]
    assert ends(flood[-1])
    for line in flood:
        line.close()
    time.sleep(0.6)
    with web(strict) as client:
        assert client.get("/v1/hello").status_code == 200


def test_no_upgrade_to_another_protocol(town):
    with web(town) as client:
        answer = client.get("/v1/hello", headers={"Connection": "Upgrade", "Upgrade": "websocket"})
        assert answer.status_code == 200


# --- the ledger


def test_every_byte_of_every_answer_is_in_the_ledger(identities, tmp_path):
    with Town(identities, agreed(identities), tmp_path) as town, web(town) as client:
        town[1].publish(round_index=3)
        answers = {
            "hello": client.get("/v1/hello"),
            "agreement": client.get("/v1/agreement"),
            "manifest": client.get("/v1/manifest/3/snapshot"),
            "snapshot": client.get("/v1/snapshot/3/snapshot"),
            "probe": client.get("/v1/probe?bytes=5000"),
            "refusal": client.get("/v1/nothing"),
        }
        counted = totals(town[1].ledger.path)
        assert counted == {"clinic-a": {what: len(answer.content) for what, answer in answers.items()}}


def test_what_cannot_be_written_down_does_not_leave(identities, tmp_path):
    with Town(identities, agreed(identities), tmp_path) as town, web(town) as client:
        town[1].publish(round_index=3)
        town[1].ledger.close()
        with pytest.raises(httpx.TransportError):
            client.get("/v1/snapshot/3/snapshot")
        assert "the server failed on /v1/snapshot/3/snapshot for clinic-a" in town[1].notices[0]


def test_a_line_cut_short_by_a_crash_is_mended(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = OutgoingLedger(path)
    ledger.record(to="clinic-b", what="hello", size=5)
    ledger.close()
    with path.open("a") as file:
        file.write('{"time": 1.0, "to": "clin')
    assert [piece.bytes for piece in read_ledger(path)] == [5]
    again = OutgoingLedger(path)
    again.record(to="clinic-b", what="hello", size=7)
    again.close()
    assert totals(path) == {"clinic-b": {"hello": 12}}


def test_a_ledger_that_was_changed_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"time": 1.0}\n')
    with pytest.raises(RunError, match="line 1 is no entry"):
        totals(path)


def test_before_the_first_byte_there_is_nothing_to_count(tmp_path):
    assert totals(tmp_path / "ledger.jsonl") == {}


# --- the outbox


def boxed(box, round_index, *, seed=0, message=None, kind="snapshot"):
    message = message or snapshot(0, round_index, seed=seed)
    return box.publish(round_index, kind, envelope=b"{}", message=message)


def test_the_last_two_rounds_are_kept(tmp_path):
    box = Outbox(tmp_path, federation="f")
    for round_index in (1, 2, 3):
        boxed(box, round_index)
    assert [folder.name for folder in sorted(tmp_path.iterdir())] == ["round-00002", "round-00003"]
    assert (box.first_round, box.latest_round) == (2, 3)
    assert box.look(1, "snapshot") == "gone"
    assert box.look(4, "snapshot") == "later"


def test_a_large_body_is_not_copied(tmp_path):
    message = snapshot(0)
    file = tmp_path / "made.safetensors"
    file.write_bytes(message.body)
    entry = boxed(Outbox(tmp_path / "out", federation="f"), 1, message=message_in_file(message.manifest, file))
    assert entry.body.samefile(file)
    file.unlink()
    assert entry.body.read_bytes() == message.body


def test_the_old_body_of_a_round_published_again_goes(tmp_path):
    box = Outbox(tmp_path, federation="f")
    old, new = boxed(box, 1, seed=1), boxed(box, 1, seed=2)
    assert not old.body.exists()
    assert box.look(1, "snapshot") == new
    assert new.body.read_bytes() == bytes(snapshot(0, 1, seed=2).body)


def test_rounds_before_the_beginning_will_never_come(tmp_path):
    box = Outbox(tmp_path, federation="f")
    assert (box.look(5, "snapshot"), box.first_round) == ("later", None)
    box.begin(7)
    assert [box.look(index, "snapshot") for index in (5, 6, 7, 8)] == ["gone", "gone", "later", "later"]
    boxed(box, 7)
    assert box.look(7, "generator") == "later"  # of another phase of this round


def test_what_was_published_before_the_beginning_stays(identities, tmp_path):
    box = Outbox(tmp_path, federation="f")
    entry = boxed(box, 6)
    box.begin(7)
    assert box.look(6, "snapshot") == entry
    assert box.look(5, "snapshot") == "gone"


# --- peer.toml


def test_the_template_is_a_site(tmp_path):
    path = tmp_path / "peer.toml"
    path.write_text(template("clinic-a"))
    site = read_site(path)
    assert site.name == "clinic-a"
    assert (site.keys, site.agreement) == (tmp_path / "keys", tmp_path / "federation.toml")
    assert (site.listen, site.device, site.proxy) == ("0.0.0.0:8443", "auto", None)


def test_the_template_has_a_word_about_every_key():
    lines = template("clinic-a").splitlines()
    for key in Site.model_fields:
        # A table has several lines, one below the other: columns.chol.name, columns.chol.factor.
        place, *others = [number for number, line in enumerate(lines) if re.match(rf"(# )?{key}(\.[\w.]+)? = ", line)]
        assert others == [place + more for more in range(1, len(others) + 1)], key
        assert lines[place - 1].startswith("# "), key


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('nam = "x"', r"unknown key 'nam'.*'name'"),
        ('listen = "here"', "listen = 'here': expected host:port"),
        ('device = "tpu"', "device"),
        ("keys = 5", "keys"),
        ('proxy = "proxy:3128"', "proxy"),
        ('name = "Clinic A"', "member name 'Clinic A'"),
        ("nonsense", "not valid TOML"),
    ],
)
def test_a_peer_toml_that_cannot_be_is_refused_in_one_line(tmp_path, line, match):
    path = tmp_path / "peer.toml"
    key = line.partition(" ")[0]
    kept = [text for text in template("clinic-a").splitlines() if not text.startswith(f"{key} = ")]
    path.write_text("\n".join([*kept, line]))
    with pytest.raises(ConfigError, match=match) as refusal:
        read_site(path)
    assert "\n" not in str(refusal.value)
    assert "peer.toml" in str(refusal.value)


def test_a_missing_peer_toml_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="crad peer init"):
        read_site(tmp_path / "peer.toml")


def test_a_missing_key_of_peer_toml_is_named(tmp_path):
    (tmp_path / "peer.toml").write_text('name = "clinic-a"\n')
    with pytest.raises(ConfigError, match="agreement: field required"):
        read_site(tmp_path / "peer.toml")


def test_a_server_can_be_stopped_twice_and_left_with_open_questions(identities, tmp_path):
    agreement = agreed(identities)
    one = Organisation(identities[0], agreement, tmp_path)
    began = time.monotonic()
    one.close()
    one.close()
    assert time.monotonic() - began < 5
