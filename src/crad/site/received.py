"""What came from others, at the end: deleted unless the agreement lets it be kept, and the ledger says which."""

from __future__ import annotations

import shutil
import struct
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from crad.errors import SnapshotError
from crad.federation.message import encode
from crad.federation.tasks import load_tensors
from crad.files import write_whole, writing_into
from crad.network.agreement import Agreement
from crad.network.ledger import OutgoingLedger, ReceivedEntry, read_received
from crad.network.store.kept_snapshots import KeptSnapshots
from crad.runs.directory import RunDirectory
from crad.runs.records import Record
from crad.site.settings import Site
from crad.site.state_folder import EXCHANGE, LEDGER, state_folder

CHECKPOINT = "checkpoint"  # in the place of a sender: what a method kept of the others in our own state
MEMORY = "memory."  # before the names of such tensors
HEADER_BYTES = 1 << 24  # of a state: the names of its tensors come first


def delete_after_end(agreement: Agreement, site: Site) -> int:
    """Delete what came, if all rounds are over and the agreement does not let it be kept; return how many there were.

    For whatever a crash left behind. While another process is at work there nothing is touched.
    """
    folder = state_folder(agreement, site)
    directory = RunDirectory(folder)
    is_over = (directory.checkpoint_folder / f"round-{agreement.rounds:05d}.json").exists()
    if agreement.committee or not is_over or directory.is_busy or not _has_received(folder):
        return 0
    with closing(OutgoingLedger(folder / LEDGER)) as ledger:
        return delete_received(folder, ledger, names=[member.name for member in agreement.members])


def delete_received(folder: Path, ledger: OutgoingLedger, *, names: Sequence[str]) -> int:
    """Delete everything that came from the others, then say so in the ledger, a line for each member."""
    counts, sizes = Counter[str](), Counter[str]()
    with writing_into(folder):
        for path in _received_files(folder):
            sender = _sender(path, names)
            sizes[sender] += path.stat().st_size
            counts[sender] += 1
            path.unlink(missing_ok=True)
        shutil.rmtree(folder / EXCHANGE / "in", ignore_errors=True)
        for path in _states_with_memory(folder):
            sizes[CHECKPOINT] += _strip_memory(path)
            counts[CHECKPOINT] += 1
        for sender in sorted(counts):
            ledger.note_received(ReceivedEntry(time.time(), sender, "deleted", sizes[sender], counts[sender]))
    return sum(counts.values())


def note_kept(kept: KeptSnapshots, ledger: OutgoingLedger, *, names: Iterable[str]) -> None:
    """Say in the ledger whose snapshots stay, each once however often this is asked."""
    told = {(entry.sender, entry.sha256) for entry in read_received(ledger.path) if entry.what == "kept"}
    for name in names:
        try:
            found = kept.find(name)
        except SnapshotError:
            continue  # the committee says so of it
        if found is None or (name, found.manifest.sha256) in told:
            continue
        with writing_into(kept.folder):
            ledger.note_received(
                ReceivedEntry(
                    time.time(),
                    name,
                    "kept",
                    found.manifest.size,
                    round=found.manifest.round_index,
                    sha256=found.manifest.sha256,
                )
            )


def deleted_record(folder: Path) -> Record:
    """Return what the ledger says of deletions: how many, how much, and when the last was done."""
    entries = [entry for entry in read_received(folder / LEDGER) if entry.what == "deleted"]
    return {
        "count": sum(entry.count for entry in entries),
        "bytes": sum(entry.bytes for entry in entries),
        "time": max((entry.time for entry in entries), default=None),
    }


def _has_received(folder: Path) -> bool:
    return any(_received_files(folder)) or any(_states_with_memory(folder))


def _received_files(folder: Path) -> list[Path]:
    """Return every snapshot of others on disk, whole or in part."""
    return sorted(path for path in (folder / EXCHANGE / "in").rglob("*") if path.is_file())


def _sender(path: Path, names: Sequence[str]) -> str:
    """Return whose file this is: `snapshot-clinic-b-0123456789abcdef.safetensors`, perhaps a part."""
    words = path.name.partition(".")[0].rpartition("-")[0]
    found = [name for name in names if words == name or words.endswith(f"-{name}")]
    return max(found, key=len, default="somebody")


def _states_with_memory(folder: Path) -> list[Path]:
    """Return the states in which a method kept something from round to round, the others' models perhaps."""
    found = []
    for path in sorted((RunDirectory(folder).checkpoint_folder / "states").glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
            if f'"{MEMORY}'.encode() in file.read(min(length, HEADER_BYTES)):
                found.append(path)
    return found


def _strip_memory(path: Path) -> int:
    """Write a state without what was kept for later rounds, of which there are none; return its bytes."""
    tensors = load_tensors(path)
    write_whole(path, encode({name: tensor for name, tensor in tensors.items() if not name.startswith(MEMORY)}))
    return sum(tensor.nbytes for name, tensor in tensors.items() if name.startswith(MEMORY))
