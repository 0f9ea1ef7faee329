"""Writing files so that a crash, a kill or a full disk leaves either the old content or the new, never half.

And reading TOML, for every file of settings that a user may have written.
"""

from __future__ import annotations

import errno
import os
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from crad.errors import ConfigError, CradError, RunError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # the file system has no hard links
MAX_DEPTH = 32  # of tables in tables; ours have five
MAX_BITS = 1024  # of a whole number; a seed may be long
TOO_DEEP = f"tables or lists are nested more than {MAX_DEPTH} deep: remove what should not be there"
TOO_LARGE = "a whole number has hundreds of digits: correct it"


def read_toml(path: Path | Traversable, *, what: str = "", hint: str = "") -> dict[str, Any]:
    """Return the table in a TOML file; refused with one line that names it, and `hint` where it cannot be read."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        named = f"{what} {path}".strip()
        raise ConfigError(f"cannot read {named}: {error.strerror}{hint and f'; {hint}'}") from error
    except RecursionError:
        raise ConfigError(f"{path} is not valid TOML: {TOO_DEEP}") from None
    except ValueError as error:  # tomllib's own, bytes that are no text, or a number of thousands of digits
        is_number = type(error) is ValueError
        raise ConfigError(f"{path} is not valid TOML: {TOO_LARGE if is_number else error}") from error
    fault = _fault_of(table)
    if fault is not None:
        raise ConfigError(f"{path} is not valid TOML: {fault}")
    return table


def _fault_of(table: dict[str, Any]) -> str | None:
    """Return what no file of ours has, and what others stumble over that check, hash or show a value."""
    level: list[object] = [table]
    for _ in range(MAX_DEPTH):
        if any(isinstance(one, int) and one.bit_length() > MAX_BITS for one in level):
            return TOO_LARGE
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [one for values in inner for one in values]
        if not level:
            return None
    return TOO_DEEP


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to the disk, then rename over it; a link in place of either is not followed."""
    with replacing(path) as beside:
        write_flushed(beside, content, mode="xb")
    flush_folder(path.parent)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file that is whole as soon as it has its name; not flushed to the disk."""
    with replacing(path) as beside:
        beside.write_bytes(content)


class BackgroundWriter:
    """Writes files as `write_whole` does, in a thread of its own, while the caller computes; a few wait at most."""

    def __init__(self, *, most: int = 2) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="crad-writer")
        self._most = most
        self._waiting: deque[Future[None]] = deque()

    def write(self, path: Path, content: bytes | memoryview) -> None:
        """Have a file written; wait for earlier ones where too many of them are still in memory."""
        self._wait_until(self._most - 1)
        self._waiting.append(self._thread.submit(write_whole, path, content))

    def finish(self) -> None:
        """Wait until all files have their names; what went wrong is raised here."""
        self._wait_until(0)

    def _wait_until(self, left: int) -> None:
        while len(self._waiting) > left:
            self._waiting.popleft().result()


@contextmanager
def replacing(path: Path, *, by: str = "") -> Iterator[Path]:
    """Yield a name to write under: renamed to `path` if all went well, and nothing is left of it if not.

    `by`: who writes, where several processes may do so at once.
    """
    beside = _beside(path, by)
    beside.unlink(missing_ok=True)  # of a process that was killed, or a link that somebody has planted
    try:
        yield beside
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def place_file(path: Path, *, same_as: Path | None, content: bytes | memoryview) -> None:
    """Give a file that nobody changes a second name; write the content where there is none, or that cannot be."""
    with replacing(path) as beside:
        if same_as is None or not _link(same_as, beside):
            beside.write_bytes(content)
        flush_file(beside)
    flush_folder(path.parent)


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False  # another disk, or one without links
    return True


def write_once(path: Path, content: bytes, *, permissions: int = 0o666) -> None:
    """Write a file that must not be there yet: of several processes one does it, the others get FileExistsError."""
    beside = _beside(path, str(os.getpid()))
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


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, flushed to the disk; a last one that a crash cut short is taken away first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)
    write_flushed(path, line + b"\n", mode="ab")


def flush_file(path: Path) -> None:
    """Wait until the disk has a file that was written before."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def flush_all(paths: Iterable[Path], *, folder: Path) -> None:
    """Wait until the disk has some files of a folder, each under its name."""
    for path in paths:
        flush_file(path)
    flush_folder(folder)


def flush_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def disk_faults(folder: Path) -> Iterator[None]:
    """Turn a disk that takes nothing more into one line that names the folder: it is the user's to fix.

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


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Say in one line that a folder of our own cannot be written to, whatever the reason: the user has to fix it."""
    try:
        yield
    except OSError as error:
        raise full_disk(folder, error) from error


def full_disk(folder: Path, error: OSError) -> RunError:
    """Make the error for a folder that takes nothing more."""
    return RunError(
        f"cannot write into {folder}: {error.strerror or error}: free space there and join again; nothing is lost"
    )


def _beside(path: Path, by: str) -> Path:
    return path.with_name(f".{path.name}{by and f'.{by}'}.writing")


def _disk_error(error: BaseException | None) -> OSError | None:
    """Return the disk's own word behind an error: libraries wrap it, or quote it."""
    while error is not None:
        if isinstance(error, OSError):
            return error
        if f"os error {errno.ENOSPC}" in str(error):
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        error = error.__cause__ or error.__context__
    return None


def _is_below(folder: Path, name: object) -> bool:
    return isinstance(name, str | os.PathLike) and Path(name).absolute().is_relative_to(folder.absolute())
