"""A store that is asked over fsspec: S3, SFTP, SMB. What its protocol cannot promise is in docs/deploy.md."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from crad.network.store.shared_folder import CHUNK_BYTES, DEEPEST, STALE_S, InTheWayError, is_temporary, temporary_name

PREFETCHED = 32  # requests of 32 KB under way at once, where the store has us ask for each
# Stores with real folders: they are made first, and a file gets its name when it is complete. Others show a file only
# when all of it has arrived. By protocol the mode that makes a new file and refuses one that is there.
NEW_FILE = {"sftp": "wxb", "ssh": "wxb", "smb": "xb"}


class RemoteFiles:
    """Objects by their path below a root. `FileNotFoundError` if one is not there."""

    def __init__(self, files: Any, root: str, *, protocol: str) -> None:  # noqa: ANN401  # fsspec has no types
        self._files, self._root = files, root
        self._new_file = NEW_FILE.get(protocol)
        self._cleaned: set[str] = set()

    def size(self, path: str) -> int:
        """Return how large an object is, as the store says."""
        self._files.invalidate_cache()  # what others put there is new every time
        info = self._files.info(self._at(path))
        if info["type"] != "file":
            raise InTheWayError(f"{path} is no file")  # reading a pipe would never end
        return int(info["size"])

    def chunks(self, path: str, *, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes of an object from `start` to `stop` or its end, a megabyte at a time."""
        stop = min(stop, self.size(path))
        if start >= stop:
            return
        with self._files.open(self._at(path), "rb", cache_type="none") as file:
            file.seek(start)
            if hasattr(file, "prefetch"):
                file.prefetch(stop, max_concurrent_requests=PREFETCHED)
            while start < stop and (piece := file.read(min(CHUNK_BYTES, stop - start))):
                start += len(piece)
                yield bytes(piece)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Put an object there, complete or, where the store can, not at all."""
        self._files.invalidate_cache()
        if self._new_file is None:
            self._fill(self._at(path), "wb", chunks)
            return
        folder, _, name = path.rpartition("/")
        self._make_folders(folder)
        self._remove_left_over(folder, name)
        beside = self._at(f"{folder}/{temporary_name(name)}")
        try:
            self._fill(beside, self._new_file, chunks)
            self._files.mv(beside, self._at(path))
        except BaseException:
            with suppress(Exception):  # the line may be gone: it is cleared away later
                self._files.rm_file(beside)
            raise

    def names(self, path: str) -> list[str]:
        """Return what lies in a folder, by name."""
        self._files.invalidate_cache()
        return [_last(name) for name in self._files.ls(self._at(path), detail=False)]

    def remove(self, path: str) -> None:
        """Take away an object or a folder and what lies in it; of a link only itself."""
        self._files.invalidate_cache()
        place = self._at(path)
        if self._new_file is None:
            self._files.rm(place, recursive=True)
        else:
            self._remove_entry(place, self._files.info(place)["type"], depth=0)

    def close(self) -> None:
        """Let go of the connection."""
        client = getattr(self._files, "client", None)
        if client is not None:
            with suppress(Exception):  # it may be broken already
                client.close()

    def _fill(self, place: str, mode: str, chunks: Iterable[bytes | memoryview]) -> None:
        with self._files.open(place, mode) as file:
            if hasattr(file, "set_pipelined"):
                file.set_pipelined(True)  # no waiting for an answer to every 32 KB
            for chunk in chunks:
                file.write(chunk)

    def _make_folders(self, folder: str) -> None:
        """Make the folders down to this one; below the root a link is refused, as far as one can look from here."""
        self._files.makedirs(self._root, exist_ok=True)
        parts = folder.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            try:
                kind = self._files.info(self._at(path))["type"]
            except FileNotFoundError:
                self._files.makedirs(self._at(path), exist_ok=True)
                continue
            if kind != "directory":
                raise InTheWayError(f"{path} is a link or no folder: remove it, and ask who else can write there")

    def _remove_entry(self, place: str, kind: str, *, depth: int) -> None:
        """Remove by what each entry is itself: removing all below a path would go through a link."""
        if kind != "directory":
            self._files.rm_file(place)
            return
        if depth == DEEPEST:
            raise InTheWayError(f"{place} lies deeper than anything of ours: remove it by hand")
        for entry in self._files.ls(place, detail=True):
            self._remove_entry(f"{place}/{_last(entry['name'])}", entry["type"], depth=depth + 1)
        self._files.rmdir(place)

    def _remove_left_over(self, folder: str, name: str) -> None:
        """Remove temporary files of this very file, which we alone write, that a killed process has left."""
        if f"{folder}/{name}" in self._cleaned:
            return
        self._cleaned.add(f"{folder}/{name}")
        with suppress(Exception):  # not worth failing for
            for entry in self._files.ls(self._at(folder), detail=True):
                written = entry.get("mtime")
                if entry["type"] != "file" or written is None or not is_temporary(_last(entry["name"]), of=name):
                    continue
                if time.time() - written.timestamp() > STALE_S:
                    self._files.rm_file(entry["name"])

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def _last(name: object) -> str:
    return str(name).rstrip("/").rpartition("/")[2]
