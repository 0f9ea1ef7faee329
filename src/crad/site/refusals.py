"""What was refused on its way in: by whom, why, when. Lines are added, never changed, and outlive a restart."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

from crad.files import write_flushed

MAX_LINES = 10_000  # a member that misbehaves for ever must not fill the disk


class RefusalLog:
    """A jsonl file with a line for every refusal."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = sum(count for reasons in read_refusals(path).values() for count in reasons.values())

    def add(self, name: str, reason: str) -> None:
        """Note that something of this member was refused for this reason."""
        if self._lines >= MAX_LINES:
            return
        self._lines += 1
        entry = {"time": time.time(), "member": name, "reason": reason}
        write_flushed(self._path, json.dumps(entry).encode() + b"\n", mode="ab")


def read_refusals(path: Path) -> dict[str, dict[str, int]]:
    """Return how often something was refused, by member and reason; a line that a crash cut short is passed over."""
    counts: dict[str, Counter[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
            counts.setdefault(str(entry["member"]), Counter())[str(entry["reason"])] += 1
        except (ValueError, KeyError, TypeError):
            continue
    return {name: dict(reasons) for name, reasons in counts.items()}
