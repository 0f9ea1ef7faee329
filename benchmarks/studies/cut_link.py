"""A line that is cut in the middle of a large transfer: `python -m benchmarks.studies.cut_link [CUT_S] [MEGABYTES]`.

Needs root, `ip` and `tc`. Two network namespaces with a throttled pair of interfaces between them, a member in each;
while one fetches the other's snapshot the line goes down for some time. Everything is removed in the end. What the
sender's ledger says tells whether the transfer went on where it was cut or began again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.studies.exchange import KIND, MEGABYTE, agree, random_snapshot
from crad.network.agreement import agreement_to_toml, read_agreement
from crad.network.https.https_exchange import HttpsExchange
from crad.network.https.server import SnapshotServer
from crad.network.identity import load_identity
from crad.network.ledger import Departure, OutgoingLedger, read_ledger
from crad.network.member_exchange import ExchangePolicy

RATE = "40mbit"
ADDRESSES = ("10.213.7.1", "10.213.7.2")  # seen by nobody but the two namespaces
PORT = 8443
CUT_AT = 0.4  # of the bytes


@contextmanager
def two_spaces() -> Iterator[tuple[str, str]]:
    """Two namespaces with a line between them, throttled both ways."""
    first, second = (f"crad-{os.getpid()}-{place}" for place in "ab")
    try:
        for space in (first, second):
            _run("ip", "netns", "add", space)
        pair = ("veth", "peer", "name", "line", "netns", second)
        _run("ip", "-n", first, "link", "add", "line", "type", *pair)
        for space, address in zip((first, second), ADDRESSES, strict=True):
            _run("ip", "-n", space, "address", "add", f"{address}/30", "dev", "line")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "link", "set", "line", "up")
            limits = ("rate", RATE, "burst", "256kb", "latency", "200ms")
            _run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "line", "root", "tbf", *limits)
        yield first, second
    finally:
        for space in (first, second):  # the line goes with them
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)  # noqa: S603, S607


def _run(*words: str) -> None:
    subprocess.run(words, check=True)  # noqa: S603


def be_member(number: int, folder: Path, megabytes: int) -> None:
    """In its namespace: member 0 publishes and waits to be ended, member 1 fetches and tells how long it took."""
    agreement = read_agreement(folder / "federation.toml")
    home = folder / f"member-{number}"
    identity, listen = load_identity(home / "keys"), f"0.0.0.0:{PORT}"
    with closing(OutgoingLedger(home / "ledger.jsonl")) as ledger:
        server = SnapshotServer(agreement, identity, home, listen=listen, ledger=ledger)
        said = print if number else (lambda text: None)
        exchange = HttpsExchange(agreement, identity, home, server, own=number, policy=ExchangePolicy(notice=said))
        with server, closing(exchange):
            if number == 0:
                message = random_snapshot(0, 1, megabytes * MEGABYTE)
                exchange.publish(1, sender=0, kind=KIND, message=message)
                sys.stdin.read()
                return
            began = time.monotonic()
            got, missing = exchange.collect(1, receiver=1, peers=[0], kind=KIND)
            assert not missing, "the snapshot came"
            print(f"fetched {len(got[0].body)} bytes in {time.monotonic() - began:.1f} s", flush=True)


def _start(space: str, number: int, folder: Path, megabytes: int) -> subprocess.Popen[bytes]:
    own = [sys.executable, "-m", "benchmarks.studies.cut_link", "member", str(number), str(folder), str(megabytes)]
    return subprocess.Popen(["ip", "netns", "exec", space, *own], stdin=subprocess.PIPE)  # noqa: S603, S607


def _snapshot_pieces(folder: Path) -> list[Departure]:
    return [piece for piece in read_ledger(folder / "member-0" / "ledger.jsonl") if piece.what == KIND]


def study(cut_s: float, megabytes: int, folder: Path) -> None:
    """Fetch, cut, restore, and read the ledger."""
    agreement = agree(folder, 2, addresses=[f"{address}:{PORT}" for address in ADDRESSES])
    (folder / "federation.toml").write_text(agreement_to_toml(agreement))
    size = megabytes * MEGABYTE
    with two_spaces() as spaces:
        sender, reader = (_start(space, number, folder, megabytes) for number, space in enumerate(spaces))
        try:
            while sum(piece.bytes for piece in _snapshot_pieces(folder)) < CUT_AT * size:
                assert (sender.poll(), reader.poll()) == (None, None), "both are at work"
                time.sleep(0.2)
            _run("ip", "-n", spaces[0], "link", "set", "line", "down")
            print(f"cut at {sum(piece.bytes for piece in _snapshot_pieces(folder)) / MEGABYTE:.0f} MB", flush=True)
            time.sleep(cut_s)
            _run("ip", "-n", spaces[0], "link", "set", "line", "up")
            print(f"restored after {cut_s:g} s", flush=True)
            assert reader.wait() == 0, "the reader has it"
        finally:
            for process in (sender, reader):
                if process.poll() is None:
                    process.terminate()
                process.communicate()
    pieces = _snapshot_pieces(folder)
    begins = [
        piece.first
        for before, piece in zip([None, *pieces], pieces, strict=False)
        if before is None or piece.first != before.first + before.bytes
    ]
    sent = sum(piece.bytes for piece in pieces)
    print(
        f"{len(begins)} requests, beginning at {', '.join(f'{first / MEGABYTE:.1f}' for first in begins)} MB; "
        f"sent {sent / MEGABYTE:.1f} MB of {megabytes} MB: {sent / size:.3f} times the size"
    )


def main(words: Sequence[str]) -> None:
    """Either the whole study, or one member inside of it."""
    if words[:1] == ["member"]:
        be_member(int(words[1]), Path(words[2]), int(words[3]))
        return
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    cut_s, megabytes = [*map(int, words), *(20, 200)[len(words) :]]
    with tempfile.TemporaryDirectory() as folder:
        study(cut_s, megabytes, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
