"""Everything that left this machine: who got it, what it was, how many bytes. Lines are added, never changed.

A line is written before its bytes are handed over, at most a megabyte each: whatever was cut off or killed,
the ledger never says less than what left.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from crad.errors import RunError
from crad.files import FULL, full_disk


@dataclass(frozen=True)
class Departure:
    """One piece that left: a snapshot's has the body's sha256 and where in it the piece begins."""

    time: float  # seconds since 1970
    to: str
    what: str
    bytes: int
    round: int | None = None
    kind: str | None = None
    sha256: str | None = None
    first: int = 0


class OutgoingLedger:
    """A jsonl file that grows by a line for every piece; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_fault: Callable[[OSError], None] = lambda error: None  # in whichever thread something was to leave
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _mend(path)
            self._file = path.open("a", encoding="utf-8")
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
        line = json.dumps({key: value for key, value in asdict(entry).items() if value is not None})
        try:
            with self._lock:
                self._file.write(line + "\n")
                self._file.flush()
        except OSError as error:
            self.on_fault(error)
            raise

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._file.close()


def read_ledger(path: Path) -> Iterator[Departure]:
    """The pieces that left, in order; a last line that a crash cut short is passed over."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith("\n"):
                    yield _parse(line, path=path, number=number)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"cannot read the ledger {path}: {error.strerror}") from error


def totals(path: Path) -> dict[str, dict[str, int]]:
    """Bytes by member, and by what they were."""
    sums: dict[str, Counter[str]] = {}
    for piece in read_ledger(path):
        sums.setdefault(piece.to, Counter())[piece.what] += piece.bytes
    return {to: dict(sums[to]) for to in sorted(sums)}


def _parse(line: str, *, path: Path, number: int) -> Departure:
    try:
        return Departure(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise RunError(f"{path}, line {number} is no entry of a ledger: somebody or a fault has changed it") from error


def _mend(path: Path) -> None:
    """Cut off a last line that a crash left unfinished: the bytes it was to announce never left."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
