"""What a member has published: the last two rounds, in files that a crash leaves whole or not at all."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crad.federation.exchange import KEPT_ROUNDS
from crad.federation.message import Manifest, Message
from crad.files import place_file, write_atomically, writing_into

Absent = Literal["later", "gone"]
READ_BY = ".read-by-"


@dataclass(frozen=True)
class Published:
    """One message as it lies on disk: its signed envelope, and the body's file, which never changes."""

    envelope: bytes
    body: Path
    manifest: Manifest
    payload_bytes: int  # as Message counts it


class Outbox:
    """The rounds that others may still ask for. One thread publishes, others look."""

    def __init__(self, folder: Path, *, federation: str) -> None:
        self.folder = folder
        self._federation = federation
        self._lock = threading.Lock()
        self._published: dict[tuple[int, str], Published] = {}
        self._first: int | None = None
        with writing_into(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._take_up()

    @property
    def first_round(self) -> int | None:
        """Return the first round that is given out; None before anything is known."""
        with self._lock:
            return self._first

    @property
    def latest_round(self) -> int | None:
        """Return the newest round published."""
        with self._lock:
            return max((round_index for round_index, _ in self._published), default=None)

    def begin(self, round_index: int) -> None:
        """Give messages out from this round on: whoever asks for an older one that is not here need not wait."""
        with self._lock:
            kept = [index for index, _ in self._published]
            self._first = min([round_index, *kept])

    def publish(self, round_index: int, kind: str, *, envelope: bytes, message: Message) -> Published:
        """Put a message where others can fetch it: first the body, then the envelope that announces it."""
        manifest = Manifest.model_validate_json(message.manifest)
        folder = self._folder_of(round_index)
        body = _body_path(folder, kind, manifest)
        entry = Published(envelope, body, manifest, message.payload_bytes)
        with writing_into(folder):
            folder.mkdir(exist_ok=True)
            place_file(body, same_as=message.file, content=message.body)
            write_atomically(folder / f"{kind}.envelope", envelope)
        with self._lock:
            before = self._published.get((round_index, kind))
            self._published[round_index, kind] = entry
            old = [key for key in self._published if key[0] <= round_index - KEPT_ROUNDS]
            for key in old:
                del self._published[key]
            self._first = min(index for index, _ in self._published)
        if before is not None and before.body != body:
            before.body.unlink(missing_ok=True)
        for index in {index for index, _ in old}:
            shutil.rmtree(self._folder_of(index), ignore_errors=True)
        return entry

    def look(self, round_index: int, kind: str) -> Published | Absent:
        """Return the message, or whether it may still come."""
        with self._lock:
            found = self._published.get((round_index, kind))
            if found is not None:
                return found
            latest = max((index for index, _ in self._published), default=-1)
            is_over = round_index < latest or (self._first is not None and round_index < self._first)
            return "gone" if is_over else "later"

    def note_reader(self, published: Published, name: str) -> None:
        """Note that a member has this message in full. On disk: after a restart it will not ask for it again."""
        with suppress(OSError):  # the round may be gone by now
            _reader_mark(published.body, name).touch()

    def readers(self, round_index: int) -> set[str]:
        """Return who has fetched something of this round, as it is published now."""
        with self._lock:
            bodies = [entry.body for (index, _), entry in self._published.items() if index == round_index]
        marks = [mark for body in bodies for mark in body.parent.glob(_reader_mark(body, "*").name)]
        return {mark.name.rpartition(READ_BY)[2] for mark in marks}

    def _take_up(self) -> None:
        """Take up what an earlier process published of this same agreement: it is still there to be asked for."""
        for folder in sorted(self.folder.glob("round-*")):
            for file in sorted(folder.glob("*.envelope")):
                with suppress(ValueError, KeyError):
                    index, envelope = int(folder.name.removeprefix("round-")), file.read_bytes()
                    entry = _read_published(folder, file.name.removesuffix(".envelope"), envelope)
                    if json.loads(envelope)["federation"] == self._federation and entry.body.exists():
                        self._published[index, file.name.removesuffix(".envelope")] = entry
            if not any(index == int(folder.name.removeprefix("round-")) for index, _ in self._published):
                shutil.rmtree(folder, ignore_errors=True)
        if self._published:
            self._first = min(index for index, _ in self._published)

    def _folder_of(self, round_index: int) -> Path:
        return self.folder / f"round-{round_index:05d}"


def _read_published(folder: Path, kind: str, envelope: bytes) -> Published:
    raw = base64.b64decode(json.loads(envelope)["manifest"])
    manifest = Manifest.model_validate_json(raw)
    return Published(envelope, _body_path(folder, kind, manifest), manifest, len(raw) + manifest.size)


def _body_path(folder: Path, kind: str, manifest: Manifest) -> Path:
    # Named by its content: whoever is still reading the old body of a round published again reads it to its end.
    return folder / f"{kind}-{manifest.sha256[:16]}.safetensors"


def _reader_mark(body: Path, name: str) -> Path:
    return body.with_name(f"{body.name}{READ_BY}{name}")
