"""What a round's exchange costs: `python -m benchmarks.studies.exchange [MEMBERS] [MEGABYTES] [ROUNDS]`.

Every member is a process with its own keys and its own server. All publish a snapshot of random weights, all fetch
everybody else's over mutual TLS on loopback and look at every number, as learning would.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from crad.federation.message import pack, read_body
from crad.network.agreement import Agreement, make_agreement
from crad.network.https.https_exchange import HttpsExchange
from crad.network.https.server import SnapshotServer
from crad.network.identity import create_identity, load_identity
from crad.network.ledger import OutgoingLedger, totals
from crad.site.setup import member_entry

MEGABYTE = 10**6
KIND = "snapshot"
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Cost:
    """One member's part of one round."""

    round_index: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int  # resident, beyond the idle process; mapped snapshots count


def agree(folder: Path, members: int, *, addresses: list[str] | None = None, **agreed: Any) -> Agreement:  # noqa: ANN401
    """Keys for so many members, and their agreement."""
    entries = []
    for number in range(members):
        identity = create_identity(folder / f"member-{number}" / "keys", f"member-{number}")
        address = addresses[number] if addresses else f"127.0.0.1:{_free_port()}"
        entries.append(member_entry(identity, address=address, architecture="cnn6"))
    table = {
        "name": "exchange",
        "classes": ["a", "b"],
        "image_shape": [8, 8, 1],
        "mean": [0.0],
        "std": [1.0],
        "deadline_s": PATIENCE_S,
        "settings": {"rounds": 1000},
        **agreed,
    }
    return make_agreement(table | {"members": [entry.model_dump(mode="json", exclude_none=True) for entry in entries]})


@dataclass(frozen=True)
class Study:
    """What all members share: where they are, what they exchange, where they meet and tell what it cost."""

    folder: Path
    agreement: Agreement
    size: int
    rounds: int
    meeting: Any
    costs: Any


def take_part(number: int, study: Study) -> None:
    """One member: publish, meet the others, fetch, look; `rounds` times."""
    torch.set_num_threads(1)
    agreement, home = study.agreement, study.folder / f"member-{number}"
    address = str(agreement.members[number].address)
    others = [other for other in range(len(agreement.members)) if other != number]
    with closing(OutgoingLedger(home / "ledger.jsonl")) as ledger:
        identity = load_identity(home / "keys")
        server = SnapshotServer(agreement, identity, home, listen=address, ledger=ledger)
        with server, closing(HttpsExchange(agreement, identity, home, server, own=number)) as exchange:
            idle = _memory("VmRSS")
            for round_index in range(1, study.rounds + 1):
                message = random_snapshot(number, round_index, study.size)
                study.meeting.wait()
                _forget_peak()
                began, cpu_began = time.perf_counter(), time.process_time()
                exchange.publish(round_index, sender=number, kind=KIND, message=message)
                got, missing = exchange.collect(round_index, receiver=number, peers=others, kind=KIND)
                assert not missing, "everybody is there"
                for sender, one in got.items():
                    read_body(one, sender=sender, expected={"w": torch.empty(study.size // 4, device="meta")})
                seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
                study.costs.put(Cost(round_index, seconds, cpu_seconds, _memory("VmHWM") - idle))
                del got, one
                study.meeting.wait()  # whoever is done first serves the others to the end
    assert len(totals(home / "ledger.jsonl")) == len(others), "everybody else got something"


def random_snapshot(number: int, round_index: int, size: int) -> Any:  # noqa: ANN401  # a Message
    """Random weights of so many bytes, which nothing could compress."""
    generator = torch.Generator().manual_seed(1000 * round_index + number)
    return pack({"w": torch.randn(size // 4, generator=generator)}, kind=KIND, peer=number, round_index=round_index)


def _memory(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return 1024 * int(line.split()[1])


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(words: Sequence[str]) -> None:
    """Start everybody, print a line per round."""
    members, megabytes, rounds = [*map(int, words), *(5, 45, 3)[len(words) :]]
    size = megabytes * MEGABYTE
    context = multiprocessing.get_context("spawn")
    meeting, costs = context.Barrier(members, timeout=PATIENCE_S), context.Queue()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = Study(folder, agree(folder, members), size, rounds, meeting, costs)
        processes = [context.Process(target=take_part, args=(number, study)) for number in range(members)]
        for process in processes:
            process.start()
        found: list[Cost] = [costs.get(timeout=PATIENCE_S) for _ in range(members * rounds)]
        for process in processes:
            process.join()
    models = members * megabytes
    print(f"{members} members, {megabytes} MB each, {members * (members - 1)} transfers a round; models: {models} MB")
    print("| round | seconds | MB/s over all | CPU s per member | peak MB beyond idle | and beyond the models |")
    print("|---|---|---|---|---|---|")
    for round_index in range(1, rounds + 1):
        own = [cost for cost in found if cost.round_index == round_index]
        slowest, peak = max(cost.seconds for cost in own), max(cost.peak_bytes for cost in own) / MEGABYTE
        cpu = sum(cost.cpu_seconds for cost in own) / members
        rate = megabytes * members * (members - 1) / slowest
        print(f"| {round_index} | {slowest:.1f} | {rate:.0f} | {cpu:.2f} | {peak:.0f} | {peak - models:.0f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
