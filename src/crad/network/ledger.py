"""Everything that left this machine: who got it, what it was, how many bytes. And what became of what came.

A line is written before its bytes are handed over, at most a megabyte each: whatever was cut off or killed,
the ledger never says less than what left. A line is never removed and never says less than before. What is sent again
and again, the same to the same member, is one line a minute whose count and bytes grow, so that nobody fills the disk
by asking.

At the end a line for every member says whether its snapshot was kept, as an agreement may allow, or deleted.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from crad.errors import RunError
from crad.files import FULL, full_disk
from crad.network.token_buckets import TokenBuckets

FOLD_S = 60.0  # in which what is alike grows one line
LINES_AT_ONCE, LINES_PER_S = 256, 0.1  # of their own, for one receiver; more are folded by what they are
NAMED_BY_READER = ("refusal", "receipts", "proof")  # the reader chooses their rounds and kinds, without an end
LARGEST_BYTES, LARGEST_COUNT = 10**15 - 1, 10**9 - 1  # that a line has room for
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Departure:
    """One piece that left: a snapshot's has the body's sha256 and where in it the piece begins.

    Where `count` is above one the line stands for so many pieces of one minute, and `bytes` is their sum.
    """

    time: float  # seconds since 1970
    to: str
    what: str
    bytes: int
    round: int | None = None
    kind: str | None = None
    sha256: str | None = None
    first: int = 0
    count: int = 1


@dataclass(frozen=True)
class ReceivedEntry:
    """What became of snapshots of one member: `kept` after the last round, as agreed, or `deleted`."""

    time: float  # seconds since 1970, when it had been done
    sender: str
    what: Literal["kept", "deleted"]
    bytes: int
    count: int = 1  # of snapshots, parts of them too
    round: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class GrowingLine:
    """A line for pieces that are alike, while its minute lasts."""

    offset: int  # in the file
    width: int
    sum: Departure
    until_s: float


class OutgoingLedger:
    """A jsonl file that grows by a line for every piece, or for every minute of the same; safe for several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_fault: Callable[[OSError], None] = lambda error: None  # in whichever thread something was to leave
        self._lock = threading.Lock()
        self._seen: dict[Departure, float] = {}  # what has a line of its own, and until when more of it is folded
        self._growing: dict[Departure, GrowingLine] = {}
        self._budgets = TokenBuckets()  # of lines of their own, by receiver
        self._next_sweep_s = 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
            _remove_unfinished_line(self._file.fileno())
        except OSError as error:
            if error.errno in FULL:
                raise full_disk(path.parent, error) from error
            raise RunError(f"cannot write the ledger {path}: {error.strerror}") from error

    def record(
        self,
        *,
        to: str,
        what: str,
        size: int,
        round_index: int | None = None,
        kind: str | None = None,
        sha256: str | None = None,
        first: int = 0,
    ) -> None:
        """Write down that these bytes are about to leave; OSError if it cannot be written, then they must not."""
        entry = Departure(time.time(), to, what, size, round_index, kind, sha256, first)
        try:
            with self._lock:
                self._write(entry, now_s=time.monotonic())
        except OSError as error:
            self.on_fault(error)
            raise

    def note_received(self, entry: ReceivedEntry) -> None:
        """Write down what became of something that came; OSError if it cannot be written."""
        table = {key: value for key, value in asdict(entry).items() if value is not None}
        with self._lock:
            self._append(json.dumps(table).encode() + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._file.close()

    def _write(self, entry: Departure, *, now_s: float) -> None:
        self._sweep(now_s)
        key = _key(entry)
        is_seen = self._seen.get(key, now_s) > now_s
        if not is_seen and self._has_line_left(entry.to, now_s):
            self._append(_encode(entry))
            self._seen[key] = now_s + FOLD_S
        else:
            self._fold(key if is_seen else _coarse_key(key), entry, now_s)

    def _fold(self, key: Departure, entry: Departure, now_s: float) -> None:
        """Let a line grow by this piece, or begin one that has room to grow."""
        line = self._growing.get(key)
        if line is not None and line.until_s > now_s and line.sum.count < LARGEST_COUNT:
            total = replace(line.sum, bytes=line.sum.bytes + entry.bytes, count=line.sum.count + 1)
            self._write_at(line.offset, _encode(total, width=line.width))
            self._growing[key] = replace(line, sum=total)
            return
        total = replace(key, time=entry.time, bytes=entry.bytes)
        width = len(_encode(replace(total, bytes=LARGEST_BYTES, count=LARGEST_COUNT)))
        offset = self._append(_encode(total, width=width), is_growing=True)
        self._growing[key] = GrowingLine(offset, width, total, now_s + FOLD_S)

    def _append(self, line: bytes, *, is_growing: bool = False) -> int:
        """Add a line and return where it begins; after a fault nothing of it stays."""
        end = os.lseek(self._file.fileno(), 0, os.SEEK_END)
        # A kill can fall between two pages of a write: a line that is changed later lies in one, behind blanks.
        room = PAGE_BYTES - end % PAGE_BYTES
        blanks = room if is_growing and len(line) > room else 0
        try:
            self._write_at(end, b" " * blanks + line)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), end)
            raise
        return end + blanks

    def _write_at(self, offset: int, content: bytes) -> None:
        written = 0
        while written < len(content):  # a disk that fills up takes a part first
            written += os.pwrite(self._file.fileno(), content[written:], offset + written)

    def _has_line_left(self, to: str, now_s: float) -> bool:
        return self._budgets.spend(to, rate=LINES_PER_S, burst=LINES_AT_ONCE, now=now_s)

    def _sweep(self, now_s: float) -> None:
        """Forget what is over, once a minute."""
        if now_s < self._next_sweep_s:
            return
        self._next_sweep_s = now_s + FOLD_S
        self._seen = {key: until_s for key, until_s in self._seen.items() if until_s > now_s}
        self._growing = {key: line for key, line in self._growing.items() if line.until_s > now_s}


def _key(entry: Departure) -> Departure:
    """Return what is the same in pieces that are alike."""
    return replace(entry, time=0.0, bytes=0)


def _coarse_key(key: Departure) -> Departure:
    """Return the same with nothing in it that a reader can vary without an end."""
    return replace(key, first=0, round=None, kind=None) if key.what in NAMED_BY_READER else replace(key, first=0)


def _encode(entry: Departure, *, width: int = 0) -> bytes:
    table = {key: value for key, value in asdict(entry).items() if value is not None and (key, value) != ("count", 1)}
    return json.dumps(table).ljust(width - 1).encode() + b"\n"


def read_ledger(path: Path) -> Iterator[Departure]:
    """Yield the pieces that left, in order; a last line that a crash cut short is passed over."""
    for number, table in _tables(path):
        if "sender" not in table:
            yield _parse(Departure, table, path=path, number=number)


def read_received(path: Path) -> Iterator[ReceivedEntry]:
    """Yield what became of what came, in order."""
    for number, table in _tables(path):
        if "sender" in table:
            yield _parse(ReceivedEntry, table, path=path, number=number)


def _tables(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every whole line with its number."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith("\n"):
                    yield number, _table(line, path=path, number=number)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"cannot read the ledger {path}: {error.strerror}") from error


def totals(path: Path) -> dict[str, dict[str, int]]:
    """Return the bytes by member, and by what they were."""
    sums: dict[str, Counter[str]] = {}
    for piece in read_ledger(path):
        sums.setdefault(piece.to, Counter())[piece.what] += piece.bytes
    return {to: dict(sums[to]) for to in sorted(sums)}


def _table(line: str, *, path: Path, number: int) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise _changed(path, number) from error


Entry = TypeVar("Entry", Departure, ReceivedEntry)


def _parse(kind: type[Entry], table: dict[str, Any], *, path: Path, number: int) -> Entry:
    try:
        return kind(**table)
    except TypeError as error:
        raise _changed(path, number) from error


def _changed(path: Path, number: int) -> RunError:
    return RunError(f"{path}, line {number} is no entry of a ledger: somebody or a fault has changed it")


def _remove_unfinished_line(descriptor: int) -> None:
    """Cut off a last line that a crash left unfinished: the bytes it was to announce never left."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - PAGE_BYTES)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    os.ftruncate(descriptor, end)
