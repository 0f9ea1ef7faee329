"""A folder that others can write into too, as a store: no link in it is followed, and nothing in it makes us wait.

Every step below the root goes by descriptor, so nobody can put a link in our way between a look and a write. The root
itself may be a link: that is its owner's choice. What lies where one of our files should be is refused by its name.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

CHUNK_BYTES = 1 << 20
STALE_S = 3600.0  # a temporary file of ours that is older belongs to a process that was killed
MOST_NAMES = 100_000  # that are read of one folder, whatever somebody puts there
DEEPEST = 16  # folders below one that is removed: ours have one
NO_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # the file system cannot flush a folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Should a pipe or a terminal take a file's place after we have looked: opening it does not wait, and is undone.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class InTheWayError(OSError):
    """Something lies there that nobody of us has put there; the words say what, and what to do."""


class SharedFolder:
    """Files by their path below a root. `FileNotFoundError` if one is not there."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._cleaned: set[str] = set()

    def size(self, path: str) -> int:
        """Return how many bytes a file has."""
        *folders, name = _split(path)
        with self._opened(folders) as folder:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        _check_file(status, path)
        return status.st_size

    def chunks(self, path: str, *, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes of a file from `start` to `stop` or its end, a megabyte at a time."""
        handle = self._open_file(path)
        try:
            stop = min(stop, os.fstat(handle).st_size)
            while start < stop and (piece := os.pread(handle, min(CHUNK_BYTES, stop - start), start)):
                start += len(piece)
                yield piece
        finally:
            os.close(handle)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Put a file there, complete and on the disk, or not at all; a link with its name is replaced, not followed."""
        *folders, name = _split(path)
        with self._opened(folders, is_made=True) as folder:
            if path not in self._cleaned:
                self._cleaned.add(path)
                _remove_left_over(folder, name)
            beside = temporary_name(name)
            handle = os.open(beside, _NEW, 0o666, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                    file.flush()
                    os.fsync(handle)
                os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
            except IsADirectoryError:
                _unlink(beside, folder)
                raise InTheWayError(f"{path} is a folder where a file of ours should be: remove it") from None
            except BaseException:
                _unlink(beside, folder)
                raise
            _flush(folder)

    def names(self, path: str) -> list[str]:
        """Return what lies in a folder, by name."""
        with self._opened(_split(path)) as folder:
            return _list(folder)

    def remove(self, path: str) -> None:
        """Take away a file, or a folder and what lies in it; of a link only itself."""
        *folders, name = _split(path)
        with self._opened(folders) as folder:
            _remove(folder, name, path=path, depth=0)

    def close(self) -> None:
        """Do nothing: nothing is kept open between two calls."""

    @contextmanager
    def _opened(self, folders: Sequence[str], *, is_made: bool = False) -> Iterator[int]:
        """Yield a descriptor of a folder below the root; every folder on the way is one, and no link."""
        if is_made:
            os.makedirs(self._root, exist_ok=True)
        handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth, name in enumerate(folders, start=1):
                if is_made:
                    _make_folder(handle, name)
                inner = _enter(handle, name, path="/".join(folders[:depth]))
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)

    def _open_file(self, path: str) -> int:
        *folders, name = _split(path)
        with self._opened(folders) as folder:
            # A device or a pipe is not even opened, and what takes its place in this moment is checked again.
            _check_file(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
            try:
                handle = os.open(name, _READ, dir_fd=folder)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise _link_error(path) from None
                raise
        try:
            _check_file(os.fstat(handle), path)
        except BaseException:
            os.close(handle)
            raise
        return handle


def temporary_name(name: str) -> str:
    """Return a name that nobody can guess for a file being written; `is_temporary` knows it again."""
    return f".{name}.{secrets.token_hex(8)}.writing"


def is_temporary(found: str, *, of: str) -> bool:
    """Return whether a name is of a file that was being written as `of`, by this version or an earlier one."""
    return re.fullmatch(rf"\.{re.escape(of)}(\.[0-9a-f]{{16}})?\.writing", found) is not None


def _split(path: str) -> list[str]:
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InTheWayError(f"{path!r} is no path in a store")
    return parts


def _enter(folder: int, name: str, *, path: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
    if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise _link_error(path)
    raise InTheWayError(f"{path} is no folder: remove it, and ask who else can write there")


def _make_folder(folder: int, name: str) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return  # or a link, or a file: entering it tells
    _flush(folder)


def _check_file(status: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _link_error(path)
    if not stat.S_ISREG(status.st_mode):
        raise InTheWayError(f"{path} is no file")


def _link_error(path: str) -> InTheWayError:
    return InTheWayError(f"{path} is a link, and none is followed here: remove it, and ask who else can write there")


def _list(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, MOST_NAMES)]


def _remove_left_over(folder: int, name: str) -> None:
    """Remove temporary files of this very file, which we alone write, that a killed process has left."""
    for found in _list(folder):
        if is_temporary(found, of=name):
            with suppress(OSError):  # not worth failing for
                status = os.stat(found, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > STALE_S:
                    os.unlink(found, dir_fd=folder)


def _remove(folder: int, name: str, *, path: str, depth: int) -> None:
    """Remove without ever following: what is no folder loses its name, a folder is entered by descriptor."""
    try:
        return os.unlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):  # Linux says the one of a folder, macOS the other
            raise
    if depth == DEEPEST:
        raise InTheWayError(f"{path} lies deeper than anything of ours: remove it by hand")
    inner = _enter(folder, name, path=path)
    try:
        for found in _list(inner):
            _remove(inner, found, path=f"{path}/{found}", depth=depth + 1)
    finally:
        os.close(inner)
    return os.rmdir(name, dir_fd=folder)


def _unlink(name: str, folder: int) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _flush(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in NO_FLUSH:
            raise
