"""Members that meet in a store: what its owner, a liar or a bad line can do, and that it never gets further.

Clinic a collects; clinic b and clinic c publish. Every test runs in a folder and in a store in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
import time
import uuid
from contextlib import suppress
from enum import Enum, auto
from functools import partial

import fsspec
import pytest
import torch

from crad.errors import ConfigError, ExchangeError, RunError
from crad.federation.exchange import OvertakenError
from crad.federation.message import Message, pack, read_body
from crad.network.clock import SystemClock
from crad.network.envelope import max_envelope_bytes, seal
from crad.network.equivocation.proof import verify_proof
from crad.network.equivocation.witness import Witness
from crad.network.identity import create_identity
from crad.network.ledger import OutgoingLedger, read_ledger, totals
from crad.network.member_exchange import ExchangePolicy
from crad.network.store import bucket_search
from crad.network.store.bucket_exchange import MAX_UNKNOWN, BucketExchange
from crad.network.store.objects import CHUNK_BYTES, Store, StoreError, without_password
from tests.organisations import NAMES, agreed, make_identities

ROUND, KIND = 3, "snapshot"
A, B, C = range(3)
PAUSES_S = (0.005, 0.02)
SHORT_S = 0.06  # a deadline that is meant to pass


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    if request.param == "file":
        yield f"file://{tmp_path}/bucket"
        return
    name = uuid.uuid4().hex
    yield f"memory://{name}"
    with suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


class Federation:
    """Three members, their exchanges and what they said; `store` is what the owner of the store has."""

    def __init__(self, identities, url, tmp_path, **changes):
        changes = {"deadline_s": 5.0, "quorum": 1, "give_up_s": 10.0, "exchange": url, **changes}
        self.identities, self.url, self.tmp_path = identities, url, tmp_path
        self.agreement = agreed(identities, **changes)
        self.refusals: list[tuple[str, str]] = []
        self.notices: list[str] = []
        self.ledgers: list[OutgoingLedger] = []
        self.exchanges = [self.exchange(number) for number in range(3)]
        self.files, self.root = fsspec.url_to_fs(url)

    def exchange(self, own, *, agreement=None):
        folder = self.tmp_path / NAMES[own]
        self.ledgers.append(OutgoingLedger(folder / "ledger.jsonl"))
        return BucketExchange(
            agreement or self.agreement,
            self.identities[own],
            folder,
            own=own,
            outgoing=self.ledgers[-1],
            policy=ExchangePolicy(
                on_refused=lambda name, reason: self.refusals.append((name, reason)), notice=self.notices.append
            ),
            pauses_s=PAUSES_S,
        )

    def publish(self, number, *, round_index=ROUND, value=None, size=40, kind=KIND):
        message = snapshot(number, round_index=round_index, value=number if value is None else value, size=size)
        self.exchanges[number].publish(round_index, sender=number, kind=kind, message=message)
        return message

    def collect(self, *, round_index=ROUND, deadline_s=SHORT_S, quorum=None, kind=KIND):
        return self.exchanges[A].collect(
            round_index, receiver=A, peers=[B, C], kind=kind, deadline_s=deadline_s, quorum=quorum
        )

    def path(self, number, name="", *, round_index=ROUND):
        return f"{self.root}/{self.agreement.hash[:16]}/{NAMES[number]}/round-{round_index:05d}/{name}"

    def state_path(self, number):
        return f"{self.root}/{self.agreement.hash[:16]}/{NAMES[number]}/state"

    def manifest_path(self, number, *, round_index=ROUND):
        return self.path(number, f"{KIND}.manifest", round_index=round_index)

    def body_path(self, number, *, round_index=ROUND):
        (found,) = self.files.glob(self.path(number, "*.safetensors", round_index=round_index))
        return found

    def put(self, path, content):
        self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.files.pipe_file(path, content)


@pytest.fixture
def federate(identities, url, tmp_path):
    """A federation with some of its agreement changed; its ledgers are closed at the end."""
    made = []

    def make(**changes):
        made.append(Federation(identities, url, tmp_path, **changes))
        return made[-1]

    yield make
    for ledger in [ledger for federation in made for ledger in federation.ledgers]:
        ledger.close()


@pytest.fixture
def federation(federate):
    return federate()


def snapshot(peer, *, round_index=ROUND, value=0, size=40):
    return pack({"w": torch.full((size,), float(value))}, kind=KIND, peer=peer, round_index=round_index)


def weight_of(message: Message, sender: int, size=40) -> float:
    return float(read_body(message, sender=sender, expected={"w": torch.empty(size)})["w"][0])


# --- when all goes well


def test_what_was_published_is_what_is_collected(federation):
    sent = {number: federation.publish(number, value=number + 0.5) for number in (B, C)}
    got, missing = federation.collect()
    assert (list(got), missing) == ([B, C], [])
    for number, message in got.items():
        assert (message.manifest, bytes(message.body)) == (sent[number].manifest, bytes(sent[number].body))
        assert weight_of(message, number) == number + 0.5
        assert message.file is not None
        assert message.file.is_relative_to(federation.tmp_path / NAMES[A] / "in")
    assert dict(federation.exchanges[A].traffic.received) == {A: sum(one.payload_bytes for one in sent.values())}
    assert federation.refusals == federation.notices == []


def test_a_member_is_waited_for(federation):
    federation.publish(B)
    late = threading.Timer(0.1, federation.publish, [C])
    late.start()
    got, missing = federation.collect(deadline_s=5)
    late.join()
    assert (list(got), missing) == ([B, C], [])


def test_a_kind_for_one_member_stands_beside_the_others(federation):
    federation.publish(B)
    federation.publish(B, value=9, kind="snapshot-to-0")
    federation.publish(C, value=8, kind="snapshot-to-0")
    got, _ = federation.collect(kind="snapshot-to-0")
    assert [weight_of(message, number) for number, message in got.items()] == [9, 8]


def test_a_large_body_travels_in_pieces_and_the_ledger_has_them_all(federation):
    size = CHUNK_BYTES // 2  # numbers: two megabytes and a header
    sent = federation.publish(B, size=size)
    got, _ = federation.collect()
    assert weight_of(got[B], B, size) == B
    ledger = federation.tmp_path / NAMES[B] / "ledger.jsonl"
    pieces = [piece for piece in read_ledger(ledger) if piece.what == "snapshot"]
    assert [piece.first for piece in pieces] == [0, CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert sum(piece.bytes for piece in pieces) == len(sent.body)
    assert {piece.sha256 for piece in pieces} == {hashlib.sha256(sent.body).hexdigest()}
    # and everything else that lies there
    stored = [
        entry
        for path, entry in federation.files.find(federation.root, detail=True).items()
        if "/clinic-a/" not in path  # what clinic-a received is its own to tell
    ]
    assert sum(totals(ledger)[federation.url].values()) == sum(entry["size"] for entry in stored)


def test_the_last_two_rounds_are_kept(federation):
    for round_index in (1, 2, 3):
        federation.publish(B, round_index=round_index)
        federation.publish(C, round_index=round_index)
        assert federation.collect(round_index=round_index, deadline_s=5)[1] == []
    assert [federation.files.exists(federation.manifest_path(B, round_index=index)) for index in (1, 2, 3)] == [
        *(False, True, True)
    ]
    arrived = sorted(folder.name for folder in (federation.tmp_path / NAMES[A] / "in").iterdir())
    assert arrived == ["round-00002", "round-00003"]


def test_a_round_published_anew_is_collected_as_it_is_now(federation):
    """An honest member never does it: it is the newest that counts all the same."""
    federation.publish(B, value=1)
    federation.publish(C)
    other = snapshot(B, value=7)
    envelope = seal(other.manifest, kind=KIND, identity=federation.identities[B], agreement=federation.agreement)
    federation.exchanges[B]._bucket.put_message(ROUND, KIND, other, envelope)
    assert weight_of(federation.collect()[0][B], B) == 7


# --- faults


class Fault(Enum):
    FORGED_MANIFEST = auto()
    STOLEN_NAME = auto()
    ALTERED_BODY = auto()
    TRUNCATED_BODY = auto()
    LONGER_BODY = auto()
    SWAPPED_BODIES = auto()
    SWAPPED_MANIFESTS = auto()
    REPLAYED_ROUND = auto()
    RENAMED_KIND = auto()
    OVERSIZED_BODY = auto()
    OVERSIZED_MANIFEST = auto()
    GARBAGE_MANIFEST = auto()
    EMPTY_MANIFEST = auto()
    STALE_AGREEMENT = auto()
    NO_BODY = auto()
    EMPTY_BODY = auto()


def cause(fault: Fault, federation: Federation) -> str:
    """Do it to clinic b; what the refusal must say."""
    there = federation.manifest_path(B)
    read, put = federation.files.cat_file, federation.put
    identities, agreement = federation.identities, federation.agreement
    if fault is Fault.REPLAYED_ROUND:
        federation.publish(B, round_index=ROUND - 1)
        old = federation.body_path(B, round_index=ROUND - 1)
        put(there, read(federation.manifest_path(B, round_index=ROUND - 1)))
        put(federation.path(B, old.rpartition("/")[2]), read(old))
        put(federation.state_path(B), b"")
        return "round 2; expected 'snapshot' of round 3"
    if fault is Fault.STALE_AGREEMENT:
        other = agreed(identities, exchange=federation.url, seed=7)
        stale = federation.exchange(B, agreement=other)
        stale.publish(ROUND, sender=B, kind=KIND, message=snapshot(B))
        return "clinic-b has another agreement: seed: 1024 here, 7 there; "
    if fault is Fault.RENAMED_KIND:
        federation.publish(B, kind="other")
        put(there, read(federation.path(B, "other.manifest")))
        return "clinic-b presents 'other' of 'clinic-b', expected its own 'snapshot'"
    if fault is Fault.OVERSIZED_BODY:
        message = snapshot(B, size=agreement.max_snapshot_bytes // 4)
        put(there, seal(message.manifest, kind=KIND, identity=identities[B], agreement=agreement))
        return f"clinic-b announces {len(message.body)} bytes, the agreement allows {agreement.max_snapshot_bytes}"
    if fault is Fault.EMPTY_BODY:
        nothing = {"kind": KIND, "peer": B, "round_index": ROUND, "size": 0, "sha256": hashlib.sha256().hexdigest()}
        put(there, seal(json.dumps(nothing).encode(), kind=KIND, identity=identities[B], agreement=agreement))
        put(federation.path(B, f"{KIND}-{hashlib.sha256().hexdigest()[:16]}.safetensors"), b"")
        return "clinic-b announces a body of 0 bytes"
    federation.publish(B)
    body = federation.body_path(B)
    match fault:
        case Fault.FORGED_MANIFEST:
            imposter = create_identity(federation.tmp_path / "imposter", NAMES[B])
            put(there, seal(snapshot(B, value=666).manifest, kind=KIND, identity=imposter, agreement=agreement))
            return "clinic-b shows a certificate with the fingerprint"
        case Fault.STOLEN_NAME:
            forged = seal(snapshot(B, value=666).manifest, kind=KIND, identity=identities[C], agreement=agreement)
            stolen = {key: json.loads(read(there))[key] for key in ("member", "certificate")}
            put(there, json.dumps({**json.loads(forged), **stolen}).encode())
            return "the manifest of clinic-b is not signed by clinic-b"
        case Fault.ALTERED_BODY:
            content = bytearray(read(body))
            content[-1] ^= 1
            put(body, bytes(content))
            return "clinic-b sent a body that does not match its sha256"
        case Fault.TRUNCATED_BODY:
            put(body, read(body)[:-1])
            return "clinic-b announced 232 bytes, of its body 231 are there"
        case Fault.LONGER_BODY:
            put(body, read(body) + b"x")
            return "clinic-b announced 232 bytes, of its body 233 are there"
        case Fault.SWAPPED_BODIES:
            other = federation.body_path(C)
            put(body, read(other))
            return "clinic-b sent a body that does not match its sha256"
        case Fault.SWAPPED_MANIFESTS:
            put(there, read(federation.manifest_path(C)))
            return "clinic-b presents 'snapshot' of 'clinic-c'"
        case Fault.OVERSIZED_MANIFEST:
            put(there, b" " * (max_envelope_bytes(agreement) + 1000))
            return f"at most {max_envelope_bytes(agreement)} are read"
        case Fault.GARBAGE_MANIFEST:
            put(there, read(there)[:100])
            return "clinic-b sent a malformed envelope"
        case Fault.EMPTY_MANIFEST:
            put(there, b"")
            return "clinic-b sent a malformed envelope"
        case Fault.NO_BODY:
            federation.files.rm(body)
            return "clinic-b announced 232 bytes, of its body none are there"


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_a_fault_costs_one_snapshot_and_is_told_once(federate, tmp_path, fault):
    federation = federate(max_snapshot_bytes=1000)
    federation.publish(C)
    said = cause(fault, federation)
    got, missing = federation.collect()
    assert (list(got), missing) == ([C], [B])
    assert weight_of(got[C], C) == C
    ((name, reason),) = federation.refusals  # once, although it was seen at every look
    assert name == "clinic-b"
    assert said in reason
    assert reason.isprintable()
    assert dict(federation.exchanges[A].refused) == {"clinic-b": 1}
    assert federation.notices == ["round 3 goes on without clinic-b: nothing valid of it came in time"]
    left = {path.name for path in (tmp_path / NAMES[A] / "in").rglob("*") if path.is_file()}
    assert not any("clinic-b" in name for name in left)


@pytest.mark.parametrize("fault", [Fault.FORGED_MANIFEST, Fault.TRUNCATED_BODY, Fault.NO_BODY, Fault.GARBAGE_MANIFEST])
def test_what_is_put_right_before_the_deadline_is_taken(federation, fault):
    federation.publish(C)
    cause(fault, federation)
    mended = threading.Timer(0.1, federation.publish, [B])
    mended.start()
    got, missing = federation.collect(deadline_s=5)
    mended.join()
    assert (sorted(got), missing) == ([B, C], [])


def test_a_refused_body_is_not_downloaded_at_every_look(federation, monkeypatch):
    federation.publish(C)
    cause(Fault.ALTERED_BODY, federation)
    reads = spy_on_reads(monkeypatch, ".safetensors")
    federation.collect()
    assert len([path for path, _ in reads if "clinic-b" in path]) == 1
    monkeypatch.setattr(bucket_search, "BAD_BODY_S", 0.0)
    federation.collect(deadline_s=1)
    assert len([path for path, _ in reads if "clinic-b" in path]) > 2  # but when some time has passed


def test_nothing_larger_than_announced_is_read(federation, monkeypatch):
    """A store that lies about sizes: the honest length, and then no end."""
    sent = federation.publish(B)
    federation.publish(C)
    federation.put(federation.body_path(B), bytes(sent.body) + bytes(50_000_000))
    monkeypatch.setattr(Store, "size", lambda self, path: len(sent.body))
    got, _ = federation.collect()
    assert bytes(got[B].body) == bytes(sent.body)


def spy_on_reads(monkeypatch, ending):
    reads = []
    original = Store.chunks

    def chunks(self, path, *, start=0, stop):
        if path.endswith(ending):
            reads.append((path, start))
        return original(self, path, start=start, stop=stop)

    monkeypatch.setattr(Store, "chunks", chunks)
    return reads


# --- lines that break


def test_a_download_goes_on_where_it_was_cut_off(federation, monkeypatch):
    size = CHUNK_BYTES  # numbers: four megabytes
    federation.publish(B, size=size)
    federation.publish(C)
    reads, original, cuts = [], Store.chunks, [2]

    def chunks(self, path, *, start=0, stop):
        for count, chunk in enumerate(original(self, path, start=start, stop=stop)):
            if "clinic-b" in path and path.endswith(".safetensors"):
                if cuts and count == cuts[0]:
                    cuts.clear()
                    raise StoreError("cut off")
                reads.append((start, len(chunk)))
            yield chunk

    monkeypatch.setattr(Store, "chunks", chunks)
    got, missing = federation.collect(deadline_s=20)
    assert missing == []
    assert weight_of(got[B], B, size) == B
    assert [start for start, _ in reads] == [0, 0, *[2 * CHUNK_BYTES] * (len(reads) - 2)]
    assert sum(length for _, length in reads) == len(got[B].body)  # no byte twice
    assert federation.notices == ["cut off: trying again", f"{federation.url} answers again"]


def test_a_spoilt_part_of_an_earlier_try_is_fetched_anew(federation):
    federation.publish(B)
    federation.publish(C)
    got, _ = federation.collect()
    assert got[B].file is not None
    part = got[B].file.with_name(got[B].file.name + ".part")
    got[B].file.unlink()
    part.write_bytes(b"something else")
    got, missing = federation.collect()
    assert missing == []
    assert weight_of(got[B], B) == B
    assert federation.refusals == []


def test_what_came_before_a_restart_is_checked_and_not_fetched_again(federation, monkeypatch):
    federation.publish(B)
    federation.publish(C)
    federation.collect()
    reads = spy_on_reads(monkeypatch, ".safetensors")
    federation.exchanges[A] = federation.exchange(A)
    got, missing = federation.collect()
    assert missing == []
    assert weight_of(got[B], B) == B
    assert all(start == 232 for _, start in reads)


class Broken:
    """The store does not answer until it is mended; each kind of store says so in its own way."""

    def __init__(self, monkeypatch, *errors):
        self.is_broken, self.tries, self.errors = True, 0, errors
        original = Store._connect

        def connect(store):
            if self.is_broken:
                self.tries += 1
                raise self.errors[self.tries % len(self.errors)]
            return original(store)

        monkeypatch.setattr(Store, "_connect", connect)

    def mend(self):
        self.is_broken = False


@pytest.mark.parametrize("error", [TimeoutError("timed out"), PermissionError(13, "denied"), EOFError()])
def test_a_store_that_is_away_for_a_while_is_asked_again(federation, monkeypatch, error):
    federation.publish(B)
    federation.publish(C)
    broken = Broken(monkeypatch, error)
    threading.Timer(0.1, broken.mend).start()
    got, missing = federation.collect(deadline_s=5)
    assert (list(got), missing) == ([B, C], [])
    assert broken.tries > 3
    trouble, mended = federation.notices  # one word for each change, not for each try
    assert type(error).__name__ in trouble
    assert trouble.endswith("trying again")
    assert mended == f"{federation.url} answers again"


def test_publishing_waits_for_the_store_too(federation, monkeypatch):
    broken = Broken(monkeypatch, OSError("unplugged"))
    threading.Timer(0.1, broken.mend).start()
    federation.publish(B)
    federation.publish(C)
    assert federation.collect()[1] == []
    assert len(federation.notices) == 2


def test_who_cannot_publish_by_the_deadline_goes_on(federate, monkeypatch):
    federation = federate(deadline_s=0.1)
    Broken(monkeypatch, OSError("unplugged"))
    began = time.monotonic()
    federation.publish(B)
    assert time.monotonic() - began < 2
    assert federation.notices[-1] == (
        "our snapshot of round 3 could not be put into the store in 0.1 s: we go on without"
    )


class Waiting(SystemClock):
    """A clock on which nobody waits, that says how long they would have."""

    waited_s = 0.0

    def now(self):
        return self.waited_s

    def sleep(self, seconds):
        self.waited_s += seconds


@pytest.mark.parametrize(
    ("is_blocked", "most_s"),
    [(lambda index: True, 200.0), (lambda index: index % 2 == 1, 40 * 100 / 4), (lambda index: index == 1, 100.0)],
    ids=["always", "every other round", "once"],
)
def test_who_can_write_into_our_folder_does_not_cost_a_second_deadline_a_round(
    federate, monkeypatch, is_blocked, most_s
):
    """Forty rounds with a deadline of 100 s. Looking for an old message and putting a new one fail alike."""
    federation = federate(deadline_s=100.0, settings={"rounds": 100})
    clock = Waiting()
    monkeypatch.setattr(federation.exchanges[B], "_clock", clock)
    bucket = federation.exchanges[B]._bucket
    calls = {name: getattr(bucket, name) for name in ("signed_before", "put_message")}
    for index in range(1, 41):
        calls_so_far = itertools.count()

        def fail(name, *args, index=index, calls_so_far=calls_so_far):
            # The first half of the time nothing can be looked at, then nothing can be put.
            if is_blocked(index) and (name == "put_message" or next(calls_so_far) < 5):
                raise StoreError("in the way")
            return calls[name](*args)

        for name in calls:
            monkeypatch.setattr(bucket, name, partial(fail, name))
        before_s = clock.waited_s
        federation.publish(B, round_index=index)
        assert clock.waited_s - before_s <= 100.0, "one deadline for all of it"
        has_published = federation.files.exists(federation.manifest_path(B, round_index=index))
        assert has_published == (not is_blocked(index))
    assert 0 < clock.waited_s <= most_s + 40 * PAUSES_S[0]


def test_a_half_written_upload_is_never_seen(federation, monkeypatch):
    """The writer dies in the middle, of the body first and then of the manifest; nobody takes it for a message."""
    federation.publish(C)
    for dies_at in (".safetensors", ".manifest"):
        original = Store.write

        def write(self, path, chunks, dies_at=dies_at, original=original):
            def half():
                for chunk in chunks:
                    yield chunk[: len(chunk) // 2]
                    raise KeyboardInterrupt

            original(self, path, half() if path.endswith(dies_at) else chunks)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", write)
            with pytest.raises(KeyboardInterrupt):
                federation.publish(B)
        got, missing = federation.collect()
        assert (list(got), missing) == ([C], [B])
    if federation.url.startswith("file"):
        assert federation.refusals == []
        assert not federation.files.exists(federation.manifest_path(B))
    federation.publish(B)
    assert federation.collect()[1] == []


def test_a_full_disk_of_ones_own_is_no_fault_of_the_store(federation):
    federation.publish(B)
    folder = federation.tmp_path / NAMES[A]
    (folder / "in").write_bytes(b"no folder can be made here")
    with pytest.raises(RunError, match="cannot write into"):
        federation.collect()


def test_nothing_leaves_that_the_ledger_cannot_hold(federation, monkeypatch):
    def full(*args, **about):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(OutgoingLedger, "record", full)
    with pytest.raises(RunError, match="No space left"):
        federation.publish(B)
    stored = (
        federation.files.find(federation.root, detail=True).values() if federation.files.exists(federation.root) else []
    )
    assert sum(entry["size"] for entry in stored) == 0


def test_one_unreadable_file_does_not_hide_the_others(federation):
    federation.publish(C)
    federation.put(f"{federation.manifest_path(B)}/inside", b"a folder where a file should be")
    got, missing = federation.collect()
    assert (list(got), missing) == ([C], [B])
    assert "clinic-b/round-00003/snapshot.manifest is no file" in federation.notices[0]
    (why,) = [text for text in federation.notices if text.startswith("round 3 goes on without clinic-b: ")]
    assert "clinic-b/round-00003/snapshot.manifest is no file" in why, "each member's own reason"


# --- deadline, quorum, and those who are elsewhere


def test_a_member_that_never_comes_is_left_out_after_the_deadline(federation):
    federation.publish(B)
    began = time.monotonic()
    got, missing = federation.collect(deadline_s=0.3)
    assert 0.3 <= time.monotonic() - began < 2
    assert (list(got), missing) == ([B], [C])
    assert federation.notices == ["round 3 goes on without clinic-c: nothing valid of it came in time"]
    assert federation.refusals == []


def test_below_the_quorum_the_round_waits_on(federation):
    federation.publish(B)
    late = threading.Timer(0.4, federation.publish, [C])
    late.start()
    got, missing = federation.collect(deadline_s=0.1, quorum=2)
    late.join()
    assert (list(got), missing) == ([B, C], [])
    assert federation.notices == ["round 3 has 1 of the 2 others that it needs: waiting for more"]


def test_without_hope_for_the_quorum_it_ends(federate):
    federation = federate(give_up_s=0.2, quorum=2)
    federation.publish(B)
    with pytest.raises(ExchangeError, match=r"round 3 has 1 of the 2 others that it needs after 0\.2 s: join again"):
        federation.collect(deadline_s=0.1)


def test_the_agreements_deadline_and_quorum_hold_where_none_are_given(federate):
    federation = federate(deadline_s=0.1, quorum=0)
    assert federation.exchanges[A].collect(ROUND, receiver=A, peers=[B, C], kind=KIND) == ({}, [B, C])


def test_nobody_waits_for_a_member_that_is_past_the_round(federation):
    federation.publish(B, round_index=ROUND + 2)
    federation.publish(C)
    began = time.monotonic()
    got, missing = federation.collect(deadline_s=5)
    assert time.monotonic() - began < 2
    assert (list(got), missing) == ([C], [B])
    assert federation.notices == ["round 3 goes on without clinic-b: it is past it"]


def test_nobody_waits_for_a_member_that_starts_again_later(federation):
    federation.publish(C)
    federation.exchanges[B].begin(ROUND + 1)
    began = time.monotonic()
    assert federation.collect(deadline_s=5)[1] == [B]
    assert time.monotonic() - began < 2


def test_the_owner_of_the_store_cannot_say_that_a_member_is_past_the_round(federation):
    federation.publish(C)
    state = json.dumps({"first_round": 9, "latest_round": 9}).encode()
    federation.put(
        federation.state_path(B),
        seal(state, kind=".state", identity=federation.identities[C], agreement=federation.agreement),
    )
    late = threading.Timer(0.1, federation.publish, [B])
    late.start()
    assert federation.collect(deadline_s=5)[1] == []
    late.join()
    assert federation.refusals[0][0] == "clinic-b"


# --- where the others are, and what proves it


def test_before_anything_was_delivered_there_is_no_latest(federation):
    assert federation.exchanges[A].latest() is None
    federation.publish(A)  # our own does not tell where the others are
    assert federation.exchanges[A].latest() is None


def test_who_was_away_goes_on_where_a_majority_of_all_others_has_delivered(federation):
    for number in (B, C):
        federation.publish(number, round_index=5)
    with pytest.raises(OvertakenError, match="at round 5"):
        federation.collect(round_index=2, deadline_s=5)
    assert federation.exchanges[A].latest() == 5
    got, missing = federation.collect(round_index=5)
    assert (list(got), missing) == ([B, C], [])


def test_one_of_two_others_moves_nobody_forward_whatever_it_delivers(federation):
    federation.publish(B, round_index=5)
    federation.publish(C)
    got, missing = federation.collect()
    assert (list(got), missing) == ([C], [B])
    assert federation.exchanges[A].latest() == ROUND


def test_a_signed_state_without_the_messages_it_speaks_of_proves_nothing(federation):
    """Both others say, signed, that they are at the last round; nothing of that round lies there."""
    state = json.dumps({"first_round": 5, "latest_round": 5}).encode()
    for number in (B, C):
        envelope = seal(state, kind=".state", identity=federation.identities[number], agreement=federation.agreement)
        federation.put(federation.state_path(number), envelope)
    late = threading.Timer(0.4, federation.publish, [B])
    late.start()
    got, missing = federation.collect(quorum=1)
    late.join()
    assert (list(got), missing) == ([B], [C])
    assert federation.exchanges[A].latest() is None


def test_who_misses_two_rounds_costs_nothing_until_it_delivers_again(federation):
    for round_index in (1, 2):
        federation.publish(B, round_index=round_index)
        assert federation.collect(round_index=round_index)[1] == [C]
    federation.publish(B)
    began = time.monotonic()
    assert federation.collect(deadline_s=30)[1] == [C]
    assert time.monotonic() - began < 5, "a round waited for somebody who is away"
    federation.publish(C)  # late: it is back, and the next round waits for it
    federation.publish(B, round_index=4)
    late = threading.Timer(0.4, federation.publish, [C], {"round_index": 4})
    late.start()
    assert federation.collect(round_index=4, deadline_s=30)[1] == []
    late.join()


def test_two_snapshots_for_one_round_are_proof(federation):
    """clinic-c puts another one into the place of the first, which clinic-a has read by then."""
    for number in (A, B, C):
        federation.publish(number)
    assert federation.collect()[1] == []
    bucket = federation.exchanges[C]._bucket
    other = snapshot(C, value=99)
    envelope = seal(other.manifest, kind=KIND, identity=federation.identities[C], agreement=federation.agreement)
    bucket.put_message(ROUND, KIND, other, envelope)
    everybody = {"receiver": B, "peers": [A, C], "kind": KIND, "deadline_s": SHORT_S}
    federation.exchanges[B].collect(ROUND, **everybody)
    for number in (A, B, C):
        federation.publish(number, round_index=ROUND + 1)
    assert federation.collect(round_index=ROUND + 1)[1] == [C]
    assert federation.exchanges[B].collect(ROUND + 1, **everybody)[1] == [C]
    for number in (A, B):
        (file,) = (federation.tmp_path / NAMES[number] / "proofs").iterdir()
        assert verify_proof(file.read_bytes()).member == NAMES[C]


def test_receipts_full_of_forgeries_cost_a_look_for_each_message(federation, monkeypatch):
    for number in (A, B, C):
        federation.publish(number)
    looks = []
    for what in ("examine", "take_proof"):
        look = getattr(Witness, what)

        def counted(*args, what=what, look=look, **words):
            looks.append(what)
            return look(*args, **words)

        monkeypatch.setattr(Witness, what, counted)
    about_c = [("clinic-c", KIND, f"forged {index}") for index in range(1000)]
    about_us = [("clinic-a", f"kind{index}", "forged") for index in range(1000)]
    about_nobody = [(f"clinic-{index}", KIND, "forged") for index in range(1000)]
    receipts = [
        {"round_index": ROUND, "member": member, "kind": kind, "envelope": envelope}
        for member, kind, envelope in about_c + about_us + about_nobody
    ]
    proofs = {f"clinic-{index}": "none" for index in range(1000)} | {"clinic-c": "none"}
    path = federation.state_path(B).replace("/state", "/receipts.json")
    federation.put(path, json.dumps({"receipts": receipts, "proofs": proofs}).encode())
    assert sorted(federation.collect(deadline_s=30)[0]) == [B, C]
    federation.publish(B, round_index=ROUND + 1)
    federation.publish(C, round_index=ROUND + 1)
    looks.clear()
    federation.put(path, json.dumps({"receipts": receipts, "proofs": proofs}).encode())
    assert sorted(federation.collect(round_index=ROUND + 1, deadline_s=30)[0]) == [B, C]
    assert looks == [], "so many cannot be right, and none is looked at"
    assert "what clinic-b says of what it received makes no sense: it is passed over" in federation.notices
    few = {"receipts": [receipts[0], *receipts[1000:1020]], "proofs": {"clinic-c": "none"}}
    federation.put(path, json.dumps(few).encode())
    for number in (B, C):
        federation.publish(number, round_index=ROUND + 2)
    assert sorted(federation.collect(round_index=ROUND + 2, deadline_s=30)[0]) == [B, C]
    assert looks.count("take_proof") == 1
    assert looks.count("examine") == 1 + MAX_UNKNOWN
    assert f"clinic-b shows a forgery as clinic-c's {KIND} of round {ROUND}" in "".join(federation.notices)
    assert federation.exchanges[A].witness.proven() == []


def test_nobody_signs_a_second_snapshot_for_a_round_by_accident(federation):
    federation.publish(B, value=1)
    federation.publish(B, value=2)
    federation.publish(C)
    assert weight_of(federation.collect()[0][B], B) == 1
    assert "our snapshot of round 3 came out otherwise than before the restart: the first stays" in federation.notices


def test_a_member_that_has_changed_its_mind_says_so(federation):
    """It was there under our agreement, and comes back with another one."""
    federation.publish(C)
    federation.publish(B, round_index=ROUND - 1)
    assert cause(Fault.STALE_AGREEMENT, federation)
    assert federation.collect()[1] == [B]
    ((_, reason),) = federation.refusals
    assert "seed: 1024 here, 7 there" in reason


def test_another_federation_in_the_same_store_is_no_other_agreement(federation, identities):
    elsewhere = agreed(identities, exchange=federation.url, name="another study", seed=7)
    federation.exchange(B, agreement=elsewhere).publish(ROUND, sender=B, kind=KIND, message=snapshot(B))
    federation.publish(C)
    assert federation.collect()[1] == [B]
    assert federation.refusals == []


# --- the store itself


def test_a_store_is_checked_by_using_it(federation, monkeypatch):
    federation.exchanges[A].check_store()
    assert federation.files.find(federation.root) == []
    Broken(monkeypatch, PermissionError(13, "Permission denied"))
    with pytest.raises(StoreError, match="PermissionError: Permission denied"):
        federation.exchanges[A].check_store()


def test_a_store_that_gives_back_something_else_fails_the_check(federation, monkeypatch):
    monkeypatch.setattr(Store, "read", lambda self, path, most: b"other")
    with pytest.raises(StoreError, match="does not give back"):
        federation.exchanges[A].check_store()


def test_an_unknown_kind_of_store_is_refused():
    with pytest.raises(ConfigError, match="of no known kind"):
        Store("floppy://a")


def test_a_missing_package_is_named(monkeypatch):
    def missing(protocol):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(ConfigError, match=r"pip install '\.\[bucket-s3\]'"):
        Store("s3://clinics")


def test_a_password_in_an_address_is_never_shown():
    assert without_password("sftp://crad:secret@host:22/a") == "sftp://crad:***@host:22/a"
    assert without_password("s3://bucket/a@b:c") == "s3://bucket/a@b:c"


def test_ones_own_message_must_keep_to_the_agreement(federate):
    federation = federate(max_snapshot_bytes=100)
    with pytest.raises(ConfigError, match="232 bytes, the agreement allows 100"):
        federation.publish(B)


def test_an_exchange_is_its_members_own(federation, identities, tmp_path):
    with pytest.raises(ConfigError, match="member 1 of the agreement is clinic-b, not clinic-a"):
        BucketExchange(federation.agreement, identities[A], tmp_path, own=B, outgoing=federation.ledgers[A])


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_a_pipe_in_a_folder_does_not_hold_anybody_up(federation):
    federation.publish(C)
    os.makedirs(federation.path(B))
    os.mkfifo(federation.manifest_path(B))
    assert federation.collect()[1] == [B]
