"""Writing files so that a crash, a kill or a full disk leaves either the old content or the new, never half."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crad.errors import CradError, RunError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # the file system has no hard links


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to the disk, then rename over it; a link in place of either is not followed."""
    beside = path.with_name(f".{path.name}.writing")
    beside.unlink(missing_ok=True)  # of a process that was killed, or a link that somebody has planted
    try:
        write_flushed(beside, content, mode="xb")
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def write_once(path: Path, content: bytes, *, permissions: int = 0o666) -> None:
    """Write a file that must not be there yet: of several processes one does it, the others get FileExistsError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    beside.unlink(missing_ok=True)
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, permissions))
        write_flushed(beside, content, mode="r+b")
        try:
            os.link(beside, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    flush_folder(path.parent)


def write_flushed(path: Path, content: bytes, *, mode: str = "wb") -> None:
    """Write (or append, mode "ab"; only a new file, "xb") and wait until the disk has it."""
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def disk_faults(folder: Path) -> Iterator[None]:
    """A disk that takes nothing more is the user's to fix: one line that names the folder, whoever wrote there.

    Errors of reading, and of files elsewhere, are passed on as they are.
    """
    try:
        yield
    except CradError:
        raise
    except Exception as error:
        fault = _disk_error(error)
        if fault is not None and fault.errno in FULL:
            raise full_disk(folder, fault) from error
        if isinstance(error, OSError) and _is_below(folder, error.filename):
            reason = error.strerror or error
            raise RunError(
                f"cannot read or write {error.filename}: {reason}: fix that and join again; nothing is lost"
            ) from error
        raise


def full_disk(folder: Path, error: OSError) -> RunError:
    """The error for a folder that takes nothing more."""
    return RunError(
        f"cannot write into {folder}: {error.strerror or error}: free space there and join again; nothing is lost"
    )


def _disk_error(error: BaseException | None) -> OSError | None:
    """The disk's own word behind an error: libraries wrap it, or quote it."""
    while error is not None:
        if isinstance(error, OSError):
            return error
        if f"os error {errno.ENOSPC}" in str(error):
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        error = error.__cause__ or error.__context__
    return None


def _is_below(folder: Path, name: object) -> bool:
    return isinstance(name, str | os.PathLike) and Path(name).absolute().is_relative_to(folder.absolute())
