"""Writing files so that a crash, a kill or a full disk leaves either the old content or the new, never half."""

from __future__ import annotations

import errno
import os
from pathlib import Path

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


def write_once(path: Path, content: bytes) -> None:
    """Write a file that must not be there yet: of several processes one does it, the others get FileExistsError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    beside.unlink(missing_ok=True)
    try:
        write_flushed(beside, content, mode="xb")
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
