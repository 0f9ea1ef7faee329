"""A store that several organisations can reach, over fsspec: a folder, S3, SFTP. Nothing in it is trusted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import fsspec

from crad.errors import ConfigError, CradError, printable

CHUNK_BYTES = 1 << 20
PREFETCHED = 32  # requests of 32 KB under way at once, where the store has us ask for each
# Stores with real folders: they are made first, and a file gets its name when it is complete. Others show a file only
# when all of it has arrived.
FOLDERS = {"file", "local", "sftp", "ssh", "smb"}
EXTRAS = {"s3": "s3", "s3a": "s3", "sftp": "sftp", "ssh": "sftp"}


class StoreError(OSError):
    """The store does not do what it is asked: perhaps it will later."""


class Store:
    """Small and large objects by path. Whatever goes wrong there is a `StoreError`, and the next try connects anew."""

    def __init__(self, url: str, *, options: Mapping[str, Any] | None = None) -> None:
        self.shown = without_password(url)
        self._url, self._options = url.rstrip("/"), dict(options or {})
        self._protocol = url.partition("://")[0] if "://" in url else "file"
        self._open_files: Any = None
        self._root = ""
        try:
            self._class = _store_class(self._protocol)
        except ImportError as error:
            extra = EXTRAS.get(self._protocol)
            hint = f"pip install 'crad[bucket-{extra}]'" if extra else printable(error)
            raise ConfigError(f"the store {self.shown} needs another package: {hint}") from error
        except ValueError as error:
            raise ConfigError(f"the store {self.shown} is of no known kind: {printable(error)}") from error

    def read(self, path: str, *, most: int) -> bytes | None:
        """The first `most` bytes of an object, None if it is not there."""
        pieces = []
        try:
            for piece in self.chunks(path, stop=most):
                pieces.append(piece)
        except FileNotFoundError:
            return None
        return b"".join(pieces)

    def size(self, path: str) -> int | None:
        """How large an object is, as the store says; None if it is not there."""
        with self._asked() as files, suppress(FileNotFoundError):
            return int(self._info(files, path)["size"])
        return None

    def chunks(self, path: str, *, start: int = 0, stop: int) -> Iterator[bytes]:
        """The bytes of an object from `start` to `stop` or its end, a megabyte at a time."""
        with self._asked() as files:
            stop = min(stop, int(self._info(files, path)["size"]))
            with files.open(self._at(path), "rb", cache_type="none") as file:
                file.seek(start)
                if hasattr(file, "prefetch"):
                    file.prefetch(stop, max_concurrent_requests=PREFETCHED)
                while start < stop and (piece := file.read(min(CHUNK_BYTES, stop - start))):
                    start += len(piece)
                    yield bytes(piece)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Put an object there, complete or, where the store can, not at all."""
        with self._asked() as files:
            is_folder = self._protocol in FOLDERS
            target = self._at(path)
            folder, _, name = target.rpartition("/")
            beside = f"{folder}/.{name}.writing" if is_folder else target
            if is_folder:
                files.makedirs(folder, exist_ok=True)
            with files.open(beside, "wb") as file:
                if hasattr(file, "set_pipelined"):
                    file.set_pipelined(True)  # no waiting for an answer to every 32 KB
                for chunk in chunks:
                    file.write(chunk)
                if self._protocol in ("file", "local"):
                    file.flush()
                    os.fsync(file.fileno())
            if is_folder:
                files.mv(beside, target)

    def names(self, path: str) -> list[str]:
        """What lies in a folder, by name."""
        with self._asked() as files, suppress(FileNotFoundError):
            return [str(name).rstrip("/").rpartition("/")[2] for name in files.ls(self._at(path), detail=False)]
        return []

    def remove(self, path: str) -> None:
        """Take away an object or a folder and what lies in it."""
        with self._asked() as files, suppress(FileNotFoundError):
            files.rm(self._at(path), recursive=True)

    def close(self) -> None:
        """Let go of the connection; the next question makes a new one."""
        files, self._open_files = self._open_files, None
        client = getattr(files, "client", None)
        if client is not None:
            with suppress(Exception):  # it may be broken already
                client.close()

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """The file system, connected; each kind has errors of its own, and all become one."""
        try:
            files = self._connect()
            files.invalidate_cache()  # what others put there is new every time
            yield files
        except (FileNotFoundError, StoreError, CradError):
            raise
        except Exception as error:
            self.close()
            said = getattr(error, "strerror", None) or str(error) or "no reason given"
            raise StoreError(f"{self.shown}: {type(error).__name__}: {printable(said)}") from error

    def _connect(self) -> Any:  # noqa: ANN401
        if self._open_files is None:
            given = {**self._class._get_kwargs_from_urls(self._url), **self._options}
            self._open_files = self._class(**given, skip_instance_cache=True)
            self._root = self._class._strip_protocol(self._url)
        return self._open_files

    def _info(self, files: Any, path: str) -> dict[str, Any]:  # noqa: ANN401
        info: dict[str, Any] = files.info(self._at(path))
        if info["type"] != "file":
            raise StoreError(f"{self.shown}: {path} is no file")  # reading a pipe would never end
        return info

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def without_password(url: str) -> str:
    """A store's address as it may be shown."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", url)


def _store_class(protocol: str) -> Any:  # noqa: ANN401
    if protocol in ("sftp", "ssh"):
        from crad.network.sftp import KnownHostFiles

        return KnownHostFiles
    return fsspec.get_filesystem_class(protocol)
