"""Everything that a member has signed under one agreement, on its own disk, so that no round is signed twice.

Kept from the first round to the last, a few kilobytes each: a member that jumped ahead and was killed before it had
saved a round starts again far behind the round it published last.
"""

from __future__ import annotations

from pathlib import Path

from crad.files import disk_faults, write_atomically


class SignatureRecord:
    """The envelopes of our own messages, by round and kind; each is written before anybody can see it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, round_index: int, kind: str) -> bytes | None:
        """Return the envelope that we signed for this round, None if there is none."""
        try:
            return self._path(round_index, kind).read_bytes()
        except FileNotFoundError:
            return None

    def keep(self, round_index: int, kind: str, envelope: bytes) -> None:
        """Write an envelope down, for good."""
        path = self._path(round_index, kind)
        with disk_faults(self._folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, envelope)

    def _path(self, round_index: int, kind: str) -> Path:
        return self._folder / f"round-{round_index:05d}" / f"{kind}.envelope"
