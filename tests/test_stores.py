"""A federation through real stores on loopback: an S3 (moto's server) and an SFTP (a small one of paramiko's).

What a store's owner or a bad line can do is in test_bucket_exchange.py; here it is whether the two protocols work.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch

from crad.federation.message import Message, pack, read_body
from crad.network.ledger import OutgoingLedger
from crad.network.store import remote_files
from crad.network.store.bucket_exchange import BucketExchange
from crad.network.store.objects import CHUNK_BYTES, Store, StoreError
from tests.organisations import NAMES, agreed, make_identities
from tests.ports import free_port

ROUND, KIND = 3, "snapshot"
NUMBERS = CHUNK_BYTES  # four megabytes and a header: several pieces
A, B, C = range(3)


@pytest.fixture(scope="module")
def s3():
    """The address of a bucket, and what a member's peer.toml says of it."""
    pytest.importorskip("s3fs", reason="needs the extra bucket-s3")
    pytest.importorskip("flask_cors", reason="needs flask-cors, of the extra dev")
    server = pytest.importorskip("moto.server", reason="needs moto, of the extra dev").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "testing", "secret": "testing", "endpoint_url": f"http://{host}:{port}"}
    import s3fs

    s3fs.S3FileSystem(**options, skip_instance_cache=True).mkdir("clinics")
    yield "s3://clinics/federation", options
    server.stop()


@pytest.fixture(scope="module")
def sftp_root(tmp_path_factory) -> Path:
    return Path(tmp_path_factory.mktemp("sftp-root")) / "root"


@pytest.fixture(scope="module")
def sftp(tmp_path_factory, sftp_root):
    """The same for a folder behind SFTP, whose host is known."""
    pytest.importorskip("paramiko", reason="needs the extra bucket-sftp")
    from tests.sftp_server import SftpServer

    folder = tmp_path_factory.mktemp("sftp")
    with SftpServer(sftp_root) as server:
        known = folder / "known_hosts"
        known.write_text(server.known_host)
        options = {"username": "crad", "password": server.password, "known_hosts": str(known)}
        options |= {"look_for_keys": False, "allow_agent": False}
        yield f"sftp://127.0.0.1:{server.port}/federation", options


@pytest.fixture(params=["s3", "sftp"])
def store(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def members(store, tmp_path):
    """Three members that meet there."""
    url, options = store
    identities = make_identities(tmp_path / "identities")
    agreement = agreed(identities, exchange=url, deadline_s=60.0, quorum=2)
    ledgers = [OutgoingLedger(tmp_path / name / "ledger.jsonl") for name in NAMES]
    exchanges = [
        BucketExchange(
            agreement, identities[own], tmp_path / NAMES[own], own=own, outgoing=ledgers[own], options=options
        )
        for own in range(3)
    ]
    yield exchanges
    for exchange, ledger in zip(exchanges, ledgers, strict=True):
        exchange.close()
        ledger.close()


def snapshot(peer: int, *, round_index: int = ROUND) -> Message:
    return pack({"w": torch.full((NUMBERS,), float(peer))}, kind=KIND, peer=peer, round_index=round_index)


def publish(members: list[BucketExchange], number: int, *, round_index: int = ROUND) -> None:
    members[number].publish(round_index, sender=number, kind=KIND, message=snapshot(number, round_index=round_index))


def test_everybody_gets_what_the_others_have_put_there(members):
    members[A].begin(ROUND)
    assert members[A].latest() is None
    publish(members, B)
    late = threading.Timer(0.5, publish, [members, C])
    late.start()
    got, missing = members[A].collect(ROUND, receiver=A, peers=[B, C], kind=KIND)
    late.join()
    assert (list(got), missing) == ([B, C], [])
    for number, message in got.items():
        tensors = read_body(message, sender=number, expected={"w": torch.empty(NUMBERS)})
        assert torch.equal(tensors["w"], torch.full((NUMBERS,), float(number)))
    assert members[A].latest() == ROUND


def test_a_new_round_is_seen_and_old_ones_go(members, store):
    for round_index in (1, 2, 3):
        publish(members, B, round_index=round_index)
        publish(members, C, round_index=round_index)
        got, _ = members[A].collect(round_index, receiver=A, peers=[B, C], kind=KIND)
        assert list(got) == [B, C]
    url, options = store
    files = Store(url, options=options)
    agreement = members[B]._agreement
    assert sorted(files.names(f"{agreement.hash[:16]}/{NAMES[B]}")) == ["round-00002", "round-00003", "state"]
    files.close()


def test_the_doctors_try_works(members):
    members[B].check_store()


def test_a_body_is_read_from_where_it_was_cut_off(store):
    url, options = store
    files = Store(url, options=options)
    content = bytes(range(256)) * (CHUNK_BYTES // 100)
    files.write("some/where/body", [content[:CHUNK_BYTES], content[CHUNK_BYTES:]])
    assert files.size("some/where/body") == len(content)
    start = CHUNK_BYTES + 12345
    assert b"".join(files.chunks("some/where/body", start=start, stop=len(content))) == content[start:]
    assert files.size("some/where/else") is None
    assert files.read("some/where/else", most=10) is None
    files.remove("some")
    assert files.names("some/where") == []
    files.close()


@pytest.fixture
def sftp_files(sftp, sftp_root):
    """The store, and the folder behind it."""
    url, options = sftp
    folder = sftp_root / "federation"
    folder.mkdir(exist_ok=True)
    files = Store(url, options=options)
    yield files, folder
    files.close()


def test_a_planted_link_is_not_written_through_over_sftp_either(sftp_files, tmp_path):
    files, folder = sftp_files
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (folder / "mine").mkdir()
    (folder / "mine" / ".state.writing").symlink_to(victim)
    (folder / "mine" / "state").symlink_to(victim)
    files.write("mine/state", [b"ours"])
    assert victim.read_bytes() == b"precious"
    assert files.read("mine/state", most=10) == b"ours"
    (folder / "yours").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="yours is a link or no folder"):
        files.write("yours/state", [b"ours"])
    files.remove("yours")
    assert victim.read_bytes() == b"precious", "of a link only itself goes"


def test_a_name_that_was_guessed_is_not_written_over_sftp(sftp_files, tmp_path, monkeypatch):
    files, folder = sftp_files
    monkeypatch.setattr(remote_files, "temporary_name", lambda name: ".guessed")
    (folder / "guess").mkdir()
    (folder / "guess" / ".guessed").symlink_to(tmp_path / "made")
    with pytest.raises(StoreError):
        files.write("guess/state", [b"ours"])
    assert not (tmp_path / "made").exists()


def test_a_pipe_behind_sftp_is_not_opened(sftp_files):
    files, folder = sftp_files
    os.mkfifo(folder / "pipe")
    began = time.monotonic()
    with pytest.raises(StoreError, match="pipe is no file"):
        files.read("pipe", most=1)
    assert time.monotonic() - began < 5


def test_what_a_killed_process_left_behind_sftp_is_removed_after_an_hour(sftp_files):
    files, folder = sftp_files
    (folder / "left").mkdir()
    old = time.time() - 2 * 3600
    for name in (".state.0123456789abcdef.writing", ".other.0123456789abcdef.writing"):
        (folder / "left" / name).write_bytes(b"half")
        os.utime(folder / "left" / name, (old, old))
    (folder / "left" / ".state.fedcba9876543210.writing").write_bytes(b"now")
    files.write("left/state", [b"ours"])
    assert sorted(files.names("left")) == [
        *(".other.0123456789abcdef.writing", ".state.fedcba9876543210.writing", "state")
    ]


def test_wrong_keys_are_a_fault_of_the_store_and_are_not_shown(sftp):
    url, options = sftp
    files = Store(url, options={**options, "password": "not this one"})
    with pytest.raises(StoreError, match=r"^sftp://127.0.0.1:[0-9]+/federation: AuthenticationException") as fault:
        files.read("x", most=1)
    assert "not this one" not in str(fault.value)


def test_a_host_whose_key_nobody_knows_gets_no_password(sftp, tmp_path: Path):
    url, options = sftp
    (tmp_path / "known_hosts").touch()
    files = Store(url, options={**options, "known_hosts": str(tmp_path / "known_hosts")})
    with pytest.raises(StoreError, match="not found in known_hosts"):
        files.read("x", most=1)


def test_an_s3_that_is_not_there_is_a_fault_of_the_store(s3):
    url, options = s3
    port = free_port()
    config = {"retries": {"max_attempts": 0}, "connect_timeout": 2}
    there = {**options, "endpoint_url": f"http://127.0.0.1:{port}", "config_kwargs": config}
    with pytest.raises(StoreError, match=r"^s3://clinics/federation: "):
        Store(url, options=there).read("x", most=1)
