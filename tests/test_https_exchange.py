"""Members exchange snapshots over real TLS on loopback, with every fault that lines, disks and neighbours have."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from crad.errors import ConfigError, ExchangeError, RunError, SnapshotError
from crad.federation.exchange import OvertakenError
from crad.federation.message import read_manifest
from crad.network import round_deadline
from crad.network.envelope import seal
from crad.network.equivocation.proof import make_proof, verify_proof
from crad.network.equivocation.witness import MAX_SHOWN
from crad.network.https import https_exchange, member_fetch
from crad.network.https.outbox import Outbox
from crad.network.https.server import SnapshotServer
from crad.network.https.tls import MemberContext
from crad.network.identity import create_identity
from crad.network.ledger import OutgoingLedger, totals
from crad.network.member_exchange import SIGNED
from tests.organisations import Authority, agreed, make_identities, with_addresses
from tests.town import Background, ConnectProxy, Fault, Organisation, Town, snapshot

MEGABYTE = 1 << 20
LARGE = 1_200_000  # numbers: a body of almost five megabytes


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture
def town(identities, tmp_path):
    with Town(identities, agreed(identities, max_snapshot_bytes=8 * MEGABYTE, give_up_s=10.0), tmp_path) as town:
        yield town


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(member_fetch, "PAUSE_S", 0.05)
    monkeypatch.setattr(https_exchange, "ASK_AGAIN_S", 0.3)
    monkeypatch.setattr(https_exchange, "SHOW_AGAIN_S", 0.1)


def is_whole(got, sent):
    return bytes(got.body) == bytes(sent.body) and got.manifest == sent.manifest


# --- everything works


def test_everybody_gets_what_the_others_published(town):
    sent = [member.publish(numbers=1000 * (1 + member.number), seed=member.number) for member in town]
    for member in town:
        others = [number for number in range(3) if number != member.number]
        got, missing = member.collect(*others)
        assert missing == []
        assert all(is_whole(got[number], sent[number]) for number in others)
        for number in others:
            read_manifest(got[number], sender=number, round_index=1, kind="snapshot")
        assert member.refusals == []


def test_bytes_are_counted_as_in_simulation(town):
    sent = [member.publish(numbers=1000 * (1 + member.number)) for member in town]
    for member in town:
        member.collect(*(number for number in range(3) if number != member.number))
    sizes = [message.payload_bytes for message in sent]
    for member in town:
        traffic = member.exchange.traffic
        assert traffic.sent[member.number] == 2 * sizes[member.number]
        assert traffic.received[member.number] == sum(sizes) - sizes[member.number]


def test_the_ledger_names_who_got_what(town):
    message = town[1].publish(round_index=4, numbers=LARGE)
    town[0].collect(1, round_index=4)
    pieces = town[1].left()
    assert {(piece.to, piece.round, piece.kind) for piece in pieces} == {("clinic-a", 4, "snapshot")}
    assert {piece.sha256 for piece in pieces} == {message_digest(message)}
    assert [piece.first for piece in pieces] == list(range(0, len(message.body), MEGABYTE))
    assert sum(piece.bytes for piece in pieces) == len(message.body)
    assert totals(town[1].ledger.path)["clinic-a"]["snapshot"] == len(message.body)
    assert town[0].left() == []


def message_digest(message):
    return hashlib.sha256(message.body).hexdigest()


def test_a_question_is_answered_as_soon_as_there_is_an_answer(town):
    waiting = Background(lambda: town[0].collect(1))
    time.sleep(0.3)
    published_at = time.monotonic()
    town[1].publish()
    got, missing = waiting.wait()
    assert (list(got), missing) == ([1], [])
    assert time.monotonic() - published_at < 2


def test_rounds_and_kinds_do_not_mix(town):
    first = town[1].publish(round_index=1, seed=1)
    second = town[1].publish(round_index=2, seed=2)
    other = town[1].publish(round_index=2, kind="generator", message=snapshot(1, 2, seed=3, kind="generator"))
    assert is_whole(town[0].collect(1, round_index=1)[0][1], first)
    assert is_whole(town[0].collect(1, round_index=2)[0][1], second)
    assert is_whole(town[0].collect(1, round_index=2, kind="generator")[0][1], other)


def test_a_message_for_one_member_reaches_nobody_else(town):
    town[1].publish(kind="returned-to-0", message=snapshot(1, kind="returned"))
    assert list(town[0].collect(1, kind="returned-to-0")[0]) == [1]
    curious = town[2].client(town.agreement, 1)
    assert curious.ask("/v1/snapshot/1/returned-to-0").status == 404
    assert curious.ask("/v1/manifest/1/returned-to-0").status == 404
    curious.close()


def test_members_of_an_authority_meet_too(tmp_path):
    authority = Authority()
    identities = [authority.issue(identity) for identity in make_identities(tmp_path / "identities")]
    with Town(identities, agreed(identities, authority=authority.pem), tmp_path) as town:
        sent = town[1].publish()
        assert is_whole(town[0].collect(1)[0][1], sent)


def test_who_was_away_goes_on_where_a_majority_of_all_others_has_delivered(town):
    """Rounds 4 and 5 lie there from both others: round 2, which we begin with, is left out, and said to be."""
    for member in (town[1], town[2]):
        member.publish(round_index=4)
        member.publish(round_index=5)
    with pytest.raises(OvertakenError, match="at round 5"):
        town[0].collect(1, 2, round_index=2, quorum=1)
    assert town[0].exchange.latest() == 5
    assert "most others have delivered round 5: we go on there, and round 2 is left out" in town[0].notices
    assert list(town[0].collect(1, 2, round_index=5)[0]) == [1, 2]


def test_one_of_two_others_moves_nobody_forward_whatever_it_delivers(town):
    """It lies about its round with a genuine, signed message of the last one; the other has not published yet."""
    town[1].publish(round_index=5)
    waiting = Background(lambda: town[0].collect(1, 2, deadline_s=10, quorum=1))
    time.sleep(0.5)
    assert waiting.is_alive()
    assert town[0].exchange.latest() is None
    town[2].publish()
    got, missing = waiting.wait()
    assert (list(got), missing) == ([2], [1])
    assert town[0].exchange.latest() == 1


def test_what_a_member_says_of_its_rounds_without_showing_it_moves_nobody(town):
    """Both others claim to begin with the last round, and have published nothing: not a majority of claims counts."""
    town[1].exchange.begin(5)
    town[2].exchange.begin(5)
    waiting = Background(lambda: town[0].collect(1, 2, deadline_s=0.2, quorum=1))
    time.sleep(0.8)
    assert waiting.is_alive()
    assert town[0].exchange.latest() is None
    town[1].publish(round_index=5)  # now one of them shows it: this round has its quorum, and we stay where we are
    assert waiting.wait() == ({}, [1, 2])
    assert town[0].exchange.latest() is None


def test_what_was_shown_of_later_rounds_does_not_fill_the_disk(town):
    """In every round it shows a message of another later one: none is kept beyond the next round."""
    for round_index, shown in ((1, 5), (2, 4)):
        outbox = town[1].server.outbox
        outbox._published.clear()
        deceive(town[1], snapshot(1, shown), round_index=shown)
        town[2].publish(round_index=round_index)
        assert town[0].collect(1, 2, round_index=round_index)[1] == [1]
    town[2].publish(round_index=3)
    town[0].collect(2, round_index=3)
    assert sorted(folder.name for folder in (town[0].folder / "in").iterdir()) == ["round-00002", "round-00003"]


def test_a_round_that_was_never_agreed_on_is_refused(town):
    message = snapshot(1, 300)
    deceive(town[1], message, round_index=300)
    town[2].publish()
    got, missing = town[0].collect(1, 2)
    assert (list(got), missing) == ([2], [1])
    assert town[0].exchange.latest() is None


def test_who_misses_two_rounds_costs_nothing_until_it_delivers_again(town):
    for round_index in (1, 2):
        town[1].publish(round_index=round_index)
        assert town[0].collect(1, 2, round_index=round_index, deadline_s=0.4)[1] == [2]
    assert "clinic-c counts as away: rounds do not wait for it until it delivers again" in town[0].notices
    assert town[0].exchange.away(3) == ["clinic-c"]
    town[1].publish(round_index=3)
    began = time.monotonic()
    assert town[0].collect(1, 2, round_index=3, deadline_s=20)[1] == [2]
    assert time.monotonic() - began < 5, "a round waited for somebody who is away"
    town[2].publish(round_index=3)  # late, while we learn: it is back, and the next round waits for it
    time.sleep(0.5)
    town[1].publish(round_index=4)
    waiting = Background(lambda: town[0].collect(1, 2, round_index=4, deadline_s=20))
    time.sleep(0.5)
    assert waiting.is_alive()
    town[2].publish(round_index=4)
    _, missing = waiting.wait()
    assert missing == []


def test_two_snapshots_for_one_round_are_proof_and_everybody_leaves_their_signer_out(town, tmp_path):
    """clinic-c shows one to clinic-a and another to clinic-b; both find out, keep the proof, and go on without it."""
    for member in town:
        member.publish(round_index=1)
    town[0].collect(1, 2)
    deceive(town[2], snapshot(2, 1, seed=7), round_index=1)  # for those who ask from now on
    town[1].collect(0, 2)
    for member in town:
        member.publish(round_index=2)
    got, missing = town[0].collect(1, 2, round_index=2)
    assert (list(got), missing) == ([1], [2])
    got, missing = town[1].collect(0, 2, round_index=2)
    assert (list(got), missing) == ([0], [2])
    for member in town.members[:2]:
        (file,) = (member.folder / "proofs").iterdir()
        proven = verify_proof(file.read_bytes())
        assert (proven.member, proven.round_index, proven.kind) == ("clinic-c", 1, "snapshot")
        assert any("clinic-c signed two different messages for round 1" in text for text in member.notices)
    town[0].meet(town.agreement)  # as after a restart
    assert town[0].collect(1, 2, round_index=2)[1] == [2]


def test_a_proof_reaches_those_who_have_seen_one_of_the_two_alone(town):
    proof = make_proof(town.agreement, tuple(sealed(town, 2, seed=seed) for seed in (1, 2)))
    town[1].exchange.witness.take_proof(proof, teller="clinic-x")
    town[1].publish()
    town[2].publish()
    assert town[0].collect(1, 2)[1] in ([], [2])  # who comes first is chance
    town[1].publish(round_index=2)
    town[2].publish(round_index=2)
    assert town[0].collect(1, 2, round_index=2)[1] == [2]


def sealed(town, number, *, seed):
    message = snapshot(number, seed=seed)
    return seal(message.manifest, kind="snapshot", identity=town[number].identity, agreement=town.agreement)


def test_nobody_is_proven_anything_by_another_members_word(town):
    """clinic-b says that it received something else from clinic-c, and shows a forgery, then nothing."""
    town[1].publish()
    town[2].publish()
    forged = json.loads(sealed(town, 1, seed=5)) | {"member": "clinic-c"}
    witness = town[1].exchange.witness
    witness._received[1] = {("clinic-c", "snapshot"): json.dumps(forged).encode()}
    assert town[0].collect(1, 2)[1] == []
    town[1].publish(round_index=2)
    town[2].publish(round_index=2)
    assert town[0].collect(1, 2, round_index=2)[1] == []
    assert not (town[0].folder / "proofs").exists()
    assert any("clinic-b shows a forgery as clinic-c's snapshot of round 1" in text for text in town[0].notices)


def test_whoever_says_to_hold_very_many_messages_of_ours_is_asked_for_a_few(town):
    asked: list[str] = []
    told = {"clinic-a": {f"kind{index}": "0" * 64 for index in range(10_000)}}
    town[0].exchange.witness.compare(1, told, teller="clinic-b", show=lambda name, kind: asked.append(kind))
    assert len(asked) == len(town.agreement.members) + MAX_SHOWN


def test_a_changed_word_spoils_a_proof(town):
    proof = make_proof(town.agreement, tuple(sealed(town, 2, seed=seed) for seed in (1, 2)))
    assert verify_proof(proof).member == "clinic-c"
    with pytest.raises(SnapshotError, match="this is no proof"):
        verify_proof(proof.replace(b"two different messages", b"two equal messages"))


def test_nobody_signs_a_second_snapshot_for_a_round_by_accident(identities, town):
    """A processor that rounds otherwise, after a restart: the others keep what they have, and there is no proof."""
    first = town[1].publish(seed=1)
    town[1].publish(seed=2)
    assert is_whole(town[0].collect(1)[0][1], first)
    assert "our snapshot of round 1 came out otherwise than before the restart: the first stays" in town[1].notices


def test_who_lost_its_state_signs_nothing_for_a_round_that_others_hold(town):
    """Restored from an old backup: outbox and record are empty, and the others have what was signed before."""
    town[1].publish(seed=1)
    town[2].publish()
    town[0].publish()
    town[0].collect(1, 2)
    town[2].collect(0, 1)
    town[1].server.outbox = Outbox(town[1].folder / "new", federation=town.agreement.hash)
    town[1].server._endpoints._outbox = town[1].server.outbox
    shutil.rmtree(town[1].folder / SIGNED)
    town[1].meet(town.agreement)
    town[1].collect(0, 2)  # with it comes what the others hold of ours
    town[1].publish(seed=2)
    assert town[1].server.outbox.latest_round is None
    assert any("as after a restored backup: we publish nothing" in text for text in town[1].notices)


def test_a_member_cannot_have_the_number_of_another(identities, town, tmp_path):
    with pytest.raises(ConfigError, match="member 1 of the agreement is clinic-b, not clinic-a"):
        https_exchange.HttpsExchange(town.agreement, identities[0], tmp_path, town[0].server, own=1)


def test_what_is_too_large_for_the_others_is_not_published(town):
    with pytest.raises(ConfigError, match="nobody takes it"):
        town[0].publish(numbers=3 * MEGABYTE)


def test_a_kind_that_nobody_could_ask_for_is_not_published(town):
    with pytest.raises(ConfigError, match="'my/kind'"):
        town[0].publish(kind="my/kind")


def test_a_proxy_carries_the_exchange_without_being_able_to_read_it(town):
    """A CONNECT proxy, as companies have it: members prove their names through it all the same."""
    sent = town[1].publish(numbers=LARGE)
    with ConnectProxy() as proxy:
        town[0].meet(town.agreement, proxy=f"http://127.0.0.1:{proxy.port}")
        assert is_whole(town[0].collect(1)[0][1], sent)
        assert proxy.asked == [town[1].address]
        town[0].meet(
            with_addresses(town.agreement, {"clinic-b": town[2].address}), proxy=f"http://127.0.0.1:{proxy.port}"
        )
        assert town[0].collect(1)[1] == [1]
        assert "does not prove to be it" in town[0].refusals[0][1]


# --- time


def test_who_is_not_there_is_left_out_after_the_deadline_and_named(town):
    town[1].publish()
    town[2].server.stop()
    began = time.monotonic()
    got, missing = town[0].collect(1, 2, deadline_s=0.6)
    assert (list(got), missing) == ([1], [2])
    assert 0.5 < time.monotonic() - began < 5
    assert any("without clinic-c: it cannot be reached" in text for text in town[0].notices)


def test_who_does_not_publish_is_left_out_after_the_deadline(town):
    town[1].publish()
    got, missing = town[0].collect(1, 2, deadline_s=0.6)
    assert (list(got), missing) == ([1], [2])
    assert any("without clinic-c: it has not published in time" in text for text in town[0].notices)


def test_a_silent_host_does_not_hold_the_round(identities, tmp_path, monkeypatch):
    """A listener that never answers, not even to the handshake, as behind a firewall."""
    monkeypatch.setattr(https_exchange, "LEAVE_S", 0.2)
    agreement = agreed(identities)
    with socket.create_server(("127.0.0.1", 0)) as silent, Town(identities, agreement, tmp_path) as town:
        town[1].publish()
        town[0].meet(with_addresses(town.agreement, {"clinic-c": f"127.0.0.1:{silent.getsockname()[1]}"}))
        began = time.monotonic()
        assert town[0].collect(1, 2, deadline_s=0.6)[1] == [2]
        assert time.monotonic() - began < 5


def test_below_the_quorum_a_round_waits_on_after_the_deadline(town, monkeypatch):
    monkeypatch.setattr(round_deadline, "LOOK_S", 0.2)
    waiting = Background(lambda: town[0].collect(1, 2, deadline_s=0.3, quorum=1))
    time.sleep(1.2)
    assert waiting.is_alive()
    town[2].publish()
    got, missing = waiting.wait()
    assert (list(got), missing) == ([2], [1])
    assert "round 1 has 0 of the 1 others that it needs: waiting for more" in town[0].notices


def test_a_round_does_not_wait_for_its_quorum_for_ever(identities, tmp_path):
    with Town(identities, agreed(identities, give_up_s=0.8), tmp_path) as town:
        town[1].publish()
        with pytest.raises(ExchangeError, match=r"round 1 has 1 of the 2 others that it needs after 0\.8 s"):
            town[0].collect(1, 2, deadline_s=0.3, quorum=2)


def test_a_refused_member_is_asked_again_while_the_quorum_is_not_there(town):
    town[1].server.fault = Fault.CORRUPTED
    town[1].publish()
    waiting = Background(lambda: town[0].collect(1, quorum=1))
    while not town[0].refusals:
        time.sleep(0.02)
    town[1].server.fault = Fault.NONE
    assert list(waiting.wait()[0]) == [1]


def test_a_member_that_starts_again_at_a_later_round_is_not_waited_for(town):
    town[1].exchange.begin(5)
    town[2].publish(round_index=4)
    began = time.monotonic()
    got, missing = town[0].collect(1, 2, round_index=4, deadline_s=10, quorum=1)
    assert (list(got), missing) == ([2], [1])
    assert time.monotonic() - began < 5
    assert any("without clinic-b: its rounds begin with 5" in text for text in town[0].notices)


def test_asking_for_a_round_that_a_member_has_passed_does_not_hang(town):
    for round_index in (3, 4, 5):
        town[1].publish(round_index=round_index)
    assert town[0].collect(1, round_index=3, deadline_s=10, quorum=1) == ({}, [1])
    assert list(town[0].collect(1, round_index=4)[0]) == [1]


def test_those_who_already_wait_are_told_when_a_member_jumps_ahead(town):
    waiting = Background(lambda: town[0].collect(1, round_index=2, deadline_s=10, quorum=1))
    time.sleep(0.3)
    town[1].publish(round_index=5)
    assert waiting.wait(5) == ({}, [1])


def test_a_restarted_member_still_gives_out_what_it_had_published(identities, town):
    sent = town[1].publish(round_index=2)
    town[1].close()
    again = Organisation(identities[1], town.agreement, town[1].folder.parent, listen=town[1].address)
    assert is_whole(town[0].collect(1, round_index=2)[0][1], sent)
    assert town[0].collect(1, round_index=1, deadline_s=10, quorum=1) == ({}, [1])  # it shows that it is past it
    again.close()


def test_who_has_fetched_the_last_round_is_known_after_a_restart_too(identities, town):
    town[1].publish(seed=1)
    town[0].collect(1)
    town[1].close()
    again = Organisation(identities[1], town.agreement, town[1].folder.parent, listen=town[1].address)
    again.meet(town.agreement)
    others = [town.agreement.members[number].name for number in (0, 2)]
    assert again.exchange.readers_to_come() == others[1:]
    again.publish(round_index=2, seed=2)
    assert again.exchange.readers_to_come() == others, "nobody has what is published now"
    again.close()


def test_a_server_that_starts_late_is_found(identities, town):
    town[1].publish()
    town[1].close()
    waiting = Background(lambda: town[0].collect(1, deadline_s=20))
    time.sleep(0.5)
    again = Organisation(identities[1], town.agreement, town[1].folder.parent, listen=town[1].address)
    assert list(waiting.wait()[0]) == [1]
    again.close()


# --- transfers that end in the middle


def test_a_cut_transfer_goes_on_where_it_ended(town):
    sent = town[1].publish(numbers=LARGE)
    town[1].server.fault = Fault.CUT
    got, missing = town[0].collect(1)
    assert (is_whole(got[1], sent), missing) == (True, [])
    first, *rest = town[1].left()
    assert first.first == 0
    assert rest[0].first == MEGABYTE  # not a byte twice
    assert sum(piece.bytes for piece in town[1].left()) == len(sent.body)


def test_a_slow_transfer_is_late_and_goes_on_in_the_next_try(town):
    sent = town[1].publish(numbers=LARGE)
    town[1].server.fault = Fault.SLOW
    assert town[0].collect(1, deadline_s=0.6)[1] == [1]
    (part,) = part_files(town[0])
    arrived = part.stat().st_size
    assert MEGABYTE <= arrived < len(sent.body)
    town[1].server.fault = Fault.NONE
    before = len(town[1].left())
    town[0].meet(town.agreement)  # as after a restart: nothing is remembered but what lies on the disk
    got, missing = town[0].collect(1)
    assert (is_whole(got[1], sent), missing) == (True, [])
    assert town[1].left()[before].first == arrived
    assert sum(piece.bytes for piece in town[1].left()[before:]) == len(sent.body) - arrived


def part_files(member):
    return list((member.folder / "in").rglob("*.part"))


def test_what_was_fetched_before_a_restart_is_not_fetched_again(town):
    sent = town[1].publish(numbers=LARGE)
    town[0].collect(1)
    before = len(town[1].left())
    town[0].meet(town.agreement)
    assert is_whole(town[0].collect(1)[0][1], sent)
    assert len(town[1].left()) == before


def test_a_transfer_that_falls_silent_does_not_hold_the_round(town):
    town[1].publish(numbers=LARGE)
    town[2].publish()
    town[1].server.fault = Fault.SILENT
    began = time.monotonic()
    got, missing = town[0].collect(1, 2, deadline_s=0.8)
    assert (list(got), missing) == ([2], [1])
    assert time.monotonic() - began < 4
    assert "round 1 goes on without clinic-b: its snapshot has not come in full" in town[0].notices
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("crad-fetch")]


def test_a_second_snapshot_for_a_round_is_proof_though_the_first_never_came_in_full(town):
    town[1].publish(numbers=LARGE, seed=1)
    town[1].server.fault = Fault.SLOW
    assert town[0].collect(1, deadline_s=0.6)[1] == [1]
    town[1].server.fault = Fault.NONE
    deceive(town[1], snapshot(1, numbers=LARGE, seed=2), round_index=1)
    assert town[0].collect(1)[1] == [1]
    assert town[0].exchange.witness.proven() == ["clinic-b"]


def test_a_part_spoilt_on_our_own_disk_is_fetched_anew_and_nobody_blamed(town):
    sent = town[1].publish(numbers=LARGE)
    town[1].server.fault = Fault.SLOW
    town[0].collect(1, deadline_s=0.6)
    (part,) = part_files(town[0])
    part.write_bytes(bytes(part.stat().st_size))
    town[1].server.fault = Fault.NONE
    assert is_whole(town[0].collect(1)[0][1], sent)
    assert town[0].refusals == []


# --- hostile or broken members: refused by name, and the round goes on; tests/test_peer_faults.py has all of them


def refused(town, match, *, round_index=1):
    """Collecting from the faulty member 1 refuses it, and member 2's message comes all the same."""
    town[2].publish(round_index=round_index)
    got, missing = town[0].collect(1, 2, round_index=round_index)
    assert (list(got), missing) == ([2], [1])
    ((name, reason),) = town[0].refusals
    assert name == "clinic-b"
    assert match in reason
    assert reason.isprintable()
    assert town[0].exchange.refused == {"clinic-b": 1}


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        (Fault.TRUNCATED, "announced"),
        (Fault.LONGER, "announced"),
        (Fault.CORRUPTED, "does not match its sha256"),
    ],
)
def test_a_body_that_was_not_signed_for_is_refused(town, fault, match):
    town[1].publish(numbers=LARGE)
    town[1].server.fault = fault
    refused(town, match)
    assert part_files(town[0]) == []


def test_another_part_than_asked_for_is_not_put_behind_the_first(town):
    sent = town[1].publish(numbers=LARGE)
    town[1].server.fault = Fault.SLOW
    town[0].collect(1, deadline_s=0.6)
    town[1].server.fault = Fault.ANOTHER_PART
    assert is_whole(town[0].collect(1)[0][1], sent), "fetched from its beginning"


def test_a_snapshot_larger_than_agreed_is_not_even_downloaded(town):
    message = snapshot(1, numbers=3 * MEGABYTE)
    deceive(town[1], message, round_index=1)
    refused(town, "announces 12582992 bytes, the agreement allows 8388608")
    assert town[1].left() == []


def deceive(member, message, *, round_index, identity=None, agreement=None):
    """Put something into the outbox that an honest member would not."""
    envelope = seal(
        message.manifest,
        kind="snapshot",
        identity=identity or member.identity,
        agreement=agreement or member.agreement,
    )
    member.server.outbox.publish(round_index, "snapshot", envelope=envelope, message=message)


def test_a_stale_agreement_is_refused_and_the_difference_named(identities, tmp_path):
    here, there = agreed(identities), agreed(identities, settings={"rounds": 5, "lr": 0.5})
    town = Town(identities[::2], here, tmp_path)
    stale = Organisation(identities[1], there, tmp_path)
    with town:
        town[0].meet(with_addresses(town.agreement, {"clinic-b": stale.address}))
        deceive(stale, snapshot(1), round_index=1)
        assert town[0].collect(1)[1] == [1]
        ((name, reason),) = town[0].refusals
        assert (name, reason) == ("clinic-b", "clinic-b has another agreement: settings.lr: 0.05 here, 0.5 there")
        assert town[0].exchange.latest() is None  # it does not count for catching up either
        stale.close()


# --- our own disk


def test_a_full_disk_while_fetching_stops_the_round_and_keeps_what_is_there(town):
    message = town[1].publish(numbers=LARGE)
    folder = town[0].folder / "in" / "round-00001"
    folder.mkdir(parents=True)
    part = folder / f"snapshot-clinic-b-{message_digest(message)[:16]}.safetensors.part"
    part.symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"in: No space left on device: free space there and join again"):
        town[0].collect(1)
    part.unlink()
    assert town[0].refusals == []  # nobody else is to blame
    assert is_whole(town[0].collect(1)[0][1], message)


def test_a_full_disk_while_publishing_leaves_the_round_before_untouched(town, monkeypatch):
    sent = town[1].publish(round_index=1)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("crad.files.os.fsync", full)
        with pytest.raises(RunError, match="No space left on device"):
            town[1].publish(round_index=2)
    assert town[0].collect(1, round_index=2, deadline_s=0.3)[1] == [1]
    assert is_whole(town[0].collect(1, round_index=1)[0][1], sent)
    assert not list((town[1].folder / "out").rglob(".*"))


# --- who may connect; tests/test_peer_faults.py has strangers


def knock(address, context, *, name="clinic-b"):
    """What a client with this context gets from a server: the status line, or the error."""
    host, port = address.split(":")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=5) as raw,
            context.wrap_socket(raw, server_hostname=name) as line,
        ):
            line.sendall(b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n")
            return line.recv(64).partition(b"\r\n")[0].decode()
    except (ssl.SSLError, ConnectionError) as error:
        return f"refused: {type(error).__name__}"


def context_for(town, identity=None):
    """A client that trusts member 1 and shows this identity's certificate, or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=town.agreement.members[1].certificate)
    if identity is not None:
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    return context


def test_a_member_is_answered(town, identities):
    assert knock(town[1].address, context_for(town, identities[0])) == "HTTP/1.1 200 OK"


@pytest.mark.parametrize("name", ["clinic-a", "clinic-z"])
def test_a_certificate_of_ones_own_making_is_refused(town, tmp_path, name):
    stranger = create_identity(tmp_path / "stranger", name)  # with a stolen name, too
    assert not knock(town[1].address, context_for(town, stranger)).startswith("HTTP")


def test_an_expired_certificate_is_refused(identities, tmp_path):
    yesterday = datetime.now(UTC) - timedelta(days=1)
    expired = create_identity(tmp_path / "expired", "clinic-a", days=0.5, now=yesterday)
    with Town([expired, *identities[1:]], agreed([expired, *identities[1:]]), tmp_path) as town:
        assert not knock(town[1].address, context_for(town, expired)).startswith("HTTP")
        town[0].publish()
        assert town[1].collect(0)[1] == [0]  # nor is its server believed
        assert "certificate has expired" in town[1].refusals[0][1]


def test_a_certificate_of_the_authority_does_not_make_a_member(tmp_path):
    authority = Authority()
    identities = [authority.issue(identity) for identity in make_identities(tmp_path / "identities")]
    stranger = authority.issue(create_identity(tmp_path / "stranger", "clinic-z"))
    with Town(identities, agreed(identities, authority=authority.pem), tmp_path) as town:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=authority.pem)
        context.load_cert_chain(stranger.certificate_path, stranger.key_path)
        assert not knock(town[1].address, context).startswith("HTTP")
        assert any("clinic-z, who is not a member" in text for text in town[1].notices)


def test_a_member_at_anothers_address_is_refused(town, identities):
    """clinic-c answers where clinic-b should: a real member, with a real certificate, of the wrong name."""
    town[2].publish()
    town[0].meet(with_addresses(town.agreement, {"clinic-b": town[2].address}))
    got, missing = town[0].collect(1, 2)
    assert (list(got), missing) == ([2], [1])
    ((name, reason),) = town[0].refusals
    assert name == "clinic-b"
    assert "does not prove to be it" in reason


def test_a_member_of_the_authority_at_anothers_address_is_refused(tmp_path):
    authority = Authority()
    identities = [authority.issue(identity) for identity in make_identities(tmp_path / "identities")]
    with Town(identities, agreed(identities, authority=authority.pem), tmp_path) as town:
        town[2].publish()
        town[0].meet(with_addresses(town.agreement, {"clinic-b": town[2].address}))
        assert town[0].collect(1)[1] == [1]
        assert "does not prove to be it" in town[0].refusals[0][1]


def test_a_refused_client_is_told_what_it_probably_is_and_does_not_try_for_ever(identities, town, tmp_path):
    """The others have not yet put our new certificate into their agreement."""
    renewed = create_identity(tmp_path / "renewed", "clinic-a")
    agreement = agreed([renewed, *identities[1:]])
    alone = Organisation(renewed, agreement, tmp_path / "renewed")
    alone.meet(with_addresses(agreement, {member.identity.name: member.address for member in (alone, town[1])}))
    town[1].publish()
    began = time.monotonic()
    assert alone.collect(1, deadline_s=60)[1] == [1]
    assert time.monotonic() - began < 20
    assert any("refuses our certificate" in text for text in alone.notices)
    alone.close()


def test_no_name_but_the_members_is_believed_whatever_is_dialled(town, identities):
    context = MemberContext.to(town.agreement.members[1], identity=identities[0], agreement=town.agreement)
    with httpx.Client(verify=context, trust_env=False) as client:
        assert client.get(f"https://{town[1].address}/v1/hello").json()["name"] == "clinic-b"
        with pytest.raises(httpx.ConnectError):
            client.get(f"https://{town[2].address}/v1/hello")


def test_a_port_that_is_taken_is_refused_in_one_line(identities, town, tmp_path):
    ledger = OutgoingLedger(tmp_path / "ledger.jsonl")
    server = SnapshotServer(town.agreement, identities[0], tmp_path / "x", listen=town[0].address, ledger=ledger)
    with pytest.raises(ConfigError, match=r"cannot listen at .* choose another"):
        server.start()
    ledger.close()


def test_an_outbox_of_another_agreement_is_not_taken_up(identities, tmp_path):
    agreement = agreed(identities)
    box = Outbox(tmp_path, federation=agreement.hash)
    message = snapshot(0)
    envelope = seal(message.manifest, kind="snapshot", identity=identities[0], agreement=agreement)
    box.publish(1, "snapshot", envelope=envelope, message=message)
    assert Outbox(tmp_path, federation=agreement.hash).latest_round == 1
    assert Outbox(tmp_path, federation="0" * 64).latest_round is None
    assert list(Path(tmp_path).iterdir()) == []
