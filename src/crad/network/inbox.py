"""What has arrived from others: bodies in files that are named by their content, so that a part can be gone on with."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from crad.errors import SnapshotError
from crad.federation.message import Message, message_in_file
from crad.network.arrivals import Announced, check_received

HASHED_BYTES = 1 << 20


class LateError(Exception):
    """The time for this round is over, in the middle of a transfer; what has arrived stays for the next try."""


class Inbox:
    """The bodies of one member's others, a folder for each round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def receive(
        self,
        announced: Announced,
        *,
        round_index: int,
        kind: str,
        name: str,
        chunks_from: Callable[[int], Iterable[bytes]],
    ) -> Message:
        """Return the announced message, its body from `chunks_from(first byte)`: what came before is not fetched again.

        A body that is not the announced one is refused and removed. An error in the middle leaves the part behind.
        """
        folder = self.folder / f"round-{round_index:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        whole = folder / f"{kind}-{name}-{announced.manifest.sha256[:16]}.safetensors"
        part = whole.with_name(f"{whole.name}.part")
        for other in folder.glob(f"{kind}-{name}-*.part"):
            if other != part:  # of something that was announced before: it is not gone on with
                other.unlink(missing_ok=True)
        if whole.exists():
            whole.replace(part)  # from before a restart: checked again, like a part that happens to be complete
        if part.exists():
            try:
                return self._complete(announced, part, whole, name=name, chunks_from=chunks_from)
            except SnapshotError:
                part.unlink(missing_ok=True)  # perhaps it was the old part that was wrong
        return self._complete(announced, part, whole, name=name, chunks_from=chunks_from)

    @staticmethod
    def _complete(
        announced: Announced, part: Path, whole: Path, *, name: str, chunks_from: Callable[[int], Iterable[bytes]]
    ) -> Message:
        size = announced.manifest.size
        digest, length = _hash_part(part, most=size)
        length = _append(part, chunks_from(length), digest=digest, length=length, most=size)
        try:
            check_received(announced, size=length, sha256=digest.hexdigest(), name=name)
        except SnapshotError:
            part.unlink()
            raise
        part.replace(whole)
        return message_in_file(announced.raw, whole)

    def keep_only(self, rounds: Collection[int]) -> None:
        """Remove what came in all other rounds: old ones, and later ones that were shown to us and not gone on with."""
        for folder in self.folder.glob("round-*"):
            number = folder.name.removeprefix("round-")
            if number.isdecimal() and int(number) not in rounds:
                shutil.rmtree(folder, ignore_errors=True)


def _hash_part(part: Path, *, most: int) -> tuple[hashlib._Hash, int]:
    """Return digest and length of what has arrived so far; a part that is too long is none of ours."""
    digest = hashlib.sha256()
    if not part.exists():
        return digest, 0
    length = part.stat().st_size
    if length > most:
        part.unlink()
        return digest, 0
    with part.open("rb") as file:
        for place in range(0, length, HASHED_BYTES):  # no further, should it be a device without an end
            digest.update(file.read(min(HASHED_BYTES, length - place)))
    return digest, length


def _append(part: Path, chunks: Iterable[bytes], *, digest: hashlib._Hash, length: int, most: int) -> int:
    """Write what comes, at most one byte more than announced: that is enough to be refused."""
    with part.open("ab") as file:
        for chunk in chunks:
            piece = chunk[: most + 1 - length]
            file.write(piece)
            digest.update(piece)
            length += len(piece)
            if length > most:
                break
    return length
