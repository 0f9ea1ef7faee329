"""Everybody's newest snapshot, our own too, where the agreement lets them be kept after the last round.

Each lies there as it came: its body in a file named by its content, beside the envelope that its owner signed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from crad.errors import SnapshotError
from crad.federation.message import Manifest, Message, message_in_file
from crad.files import place_file, write_atomically, writing_into
from crad.network.envelope import manifest_in

ENVELOPE, BODY = ".envelope", ".safetensors"


@dataclass(frozen=True)
class KeptSnapshot:
    """One member's newest snapshot."""

    message: Message
    manifest: Manifest
    path: Path


class KeptSnapshots:
    """A folder with one snapshot of every member that has delivered one; a newer one takes an older one's place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, name: str, message: Message, envelope: bytes) -> None:
        """Keep a member's snapshot, unless a newer one is here: first the body, then the envelope that names it."""
        manifest = Manifest.model_validate_json(message.manifest)
        if self.round_of(name) > manifest.round_index:
            return
        body = self._body(name, manifest)
        with writing_into(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            place_file(body, same_as=message.file, content=message.body)
            write_atomically(self._envelope(name), envelope)
        for other in self._bodies(name):
            if other != body:
                other.unlink(missing_ok=True)

    def find(self, name: str) -> KeptSnapshot | None:
        """Return a member's snapshot, None if there is none; SnapshotError where its files are damaged."""
        try:
            raw = manifest_in(self._envelope(name).read_bytes())
            manifest = Manifest.model_validate_json(raw)
            path = self._body(name, manifest)
            return KeptSnapshot(message_in_file(raw, path), manifest, path)
        except FileNotFoundError:
            if self._envelope(name).exists():
                raise SnapshotError("the file of its snapshot is gone") from None
            return None
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, ValidationError) as error:
            raise SnapshotError(f"the file of its snapshot is damaged ({type(error).__name__})") from error

    def round_of(self, name: str) -> int:
        """Return the round of a member's snapshot; 0 where there is none that can be read."""
        try:
            found = self.find(name)
        except SnapshotError:
            return 0
        return 0 if found is None else found.manifest.round_index

    def _envelope(self, name: str) -> Path:
        return self.folder / f"{name}{ENVELOPE}"

    def _body(self, name: str, manifest: Manifest) -> Path:
        return self.folder / f"{name}-{manifest.sha256[:16]}{BODY}"

    def _bodies(self, name: str) -> list[Path]:
        # One member's name may begin with another's: what follows it is a content's sixteen letters and no more.
        found = self.folder.glob(f"{name}-*{BODY}")
        return [path for path in found if len(path.name) == len(name) + 1 + 16 + len(BODY)]
