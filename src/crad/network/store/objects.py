"""A store that several organisations can reach, over fsspec: a folder, S3, SFTP. Nothing in it is trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import fsspec

from crad.errors import ConfigError, CradError, install_hint, printable
from crad.network.store.remote_files import RemoteFiles
from crad.network.store.shared_folder import CHUNK_BYTES as CHUNK_BYTES
from crad.network.store.shared_folder import InTheWayError, SharedFolder

LOCAL = ("file", "local")
EXTRAS = {"s3": "s3", "s3a": "s3", "sftp": "sftp", "ssh": "sftp"}


class StoreError(OSError):
    """The store does not do what it is asked: perhaps it will later."""


class Files(Protocol):
    """What a kind of store can do, by paths below its root; each kind has errors of its own."""

    def size(self, path: str) -> int:
        """Return how large an object is, as the store says."""
        ...

    def chunks(self, path: str, *, start: int, stop: int) -> Iterator[bytes]:
        """Its bytes from `start` to `stop` or its end."""
        ...

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Put an object there, complete or, where the store can, not at all."""
        ...

    def names(self, path: str) -> list[str]:
        """Return what lies in a folder, by name."""
        ...

    def remove(self, path: str) -> None:
        """Take away an object or a folder and what lies in it."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class SpoiltError(StoreError):
    """What lies at a path is no file: a link, a folder, a pipe that somebody has put there."""


class Store:
    """Small and large objects by path. Whatever goes wrong there is a `StoreError`, and the next try connects again."""

    def __init__(self, url: str, *, options: Mapping[str, Any] | None = None) -> None:
        self.shown = without_password(url)
        self._url, self._options = url.rstrip("/"), dict(options or {})
        self._protocol = url.partition("://")[0] if "://" in url else "file"
        self._open_files: Files | None = None
        try:
            self._class = _store_class(self._protocol)
        except ImportError as error:
            extra = EXTRAS.get(self._protocol)
            hint = install_hint(f"bucket-{extra}") if extra else printable(error)
            raise ConfigError(f"the store {self.shown} needs another package: {hint}") from error
        except ValueError as error:
            raise ConfigError(f"the store {self.shown} is of no known kind: {printable(error)}") from error

    def read(self, path: str, *, most: int) -> bytes | None:
        """Return the first `most` bytes of an object, None if it is not there."""
        pieces = []
        try:
            for piece in self.chunks(path, stop=most):
                pieces.append(piece)
        except FileNotFoundError:
            return None
        return b"".join(pieces)

    def size(self, path: str) -> int | None:
        """Return how large an object is, as the store says; None if it is not there."""
        with self._asked() as files, suppress(FileNotFoundError):
            return files.size(path)
        return None

    def chunks(self, path: str, *, start: int = 0, stop: int) -> Iterator[bytes]:
        """Yield the bytes of an object from `start` to `stop` or its end, a megabyte at a time."""
        with self._asked() as files:
            yield from files.chunks(path, start=start, stop=stop)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Put an object there, complete or, where the store can, not at all."""
        with self._asked() as files:
            files.write(path, chunks)

    def names(self, path: str) -> list[str]:
        """Return what lies in a folder, by name."""
        with self._asked() as files, suppress(FileNotFoundError):
            return files.names(path)
        return []

    def remove(self, path: str) -> None:
        """Take away an object or a folder and what lies in it."""
        with self._asked() as files, suppress(FileNotFoundError):
            files.remove(path)

    def close(self) -> None:
        """Let go of the connection; the next question makes a new one."""
        files, self._open_files = self._open_files, None
        if files is not None:
            files.close()

    @contextmanager
    def _asked(self) -> Iterator[Files]:
        """Yield the files, connected; each kind has errors of its own, and all become one."""
        try:
            yield self._connect()
        except (FileNotFoundError, StoreError, CradError):
            raise
        except InTheWayError as error:
            raise SpoiltError(f"{self.shown}: {error}") from error
        except Exception as error:
            self.close()
            said = getattr(error, "strerror", None) or str(error) or "no reason given"
            raise StoreError(f"{self.shown}: {type(error).__name__}: {printable(said)}") from error

    def _connect(self) -> Files:
        if self._open_files is None:
            root = self._class._strip_protocol(self._url)
            if self._protocol in LOCAL:
                self._open_files = SharedFolder(root)
            else:
                given = {**self._class._get_kwargs_from_urls(self._url), **self._options}
                connected = self._class(**given, skip_instance_cache=True)
                self._open_files = RemoteFiles(connected, root, protocol=self._protocol)
        return self._open_files


def without_password(url: str) -> str:
    """Return a store's address as it may be shown."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", url)


def _store_class(protocol: str) -> Any:  # noqa: ANN401
    if protocol in ("sftp", "ssh"):
        from crad.network.store.sftp import KnownHostFiles

        return KnownHostFiles
    return fsspec.get_filesystem_class(protocol)
