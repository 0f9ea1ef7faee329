"""SIGTERM is treated like Ctrl-C: the last complete round is on disk, and the user is told how to go on.

Where others have a say in how long something takes, a command that was asked to end has a moment to do so in order;
then it ends, whatever it or one of its threads still waits for. Nothing is lost by that: a run survives SIGKILL.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

LEAVE_S = 3.0  # to end in order: answers on their way, threads, files
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
HEARD_S = 0.5  # for the watch to wake up
SHOW_CURSOR = b"\x1b[?25h"  # a moving line on a terminal hides it

_watching, _heard = threading.Event(), threading.Event()


class Terminated(BaseException):
    """The process was asked to end. No KeyboardInterrupt, or the command-line library would swallow it."""


def raise_on_sigterm() -> None:
    """Turn SIGTERM into `Terminated` from now on."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def leave(code: int) -> NoReturn:
    """End with this code; at once where `ending_soon` has heard a signal, for the interpreter's own end takes seconds.

    It takes down every module and waits for threads, and the watch cannot run any more. Files are closed by now.
    """
    if not _heard.wait(HEARD_S if _watching.is_set() else 0.0):
        sys.exit(code)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@contextmanager
def ending_soon(*, leave_s: float = LEAVE_S) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the process within `leave_s` while the block lasts, whatever it is waiting for.

    Python runs its own handlers between two steps of the main thread, which may hang in a name server's answer or wait
    for a thread that never ends, also while the interpreter ends. A thread of our own hears of the signal at once.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _watching.set()
    threading.Thread(target=_watch, args=(reader, leave_s), name="crad-ending", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # without a signal the watch ends here; with one it goes on until the process has ended


def _watch(reader: int, leave_s: float) -> None:
    with os.fdopen(reader, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number[0] in CODES:
                _heard.set()
                time.sleep(leave_s)
                _end(CODES[signal.Signals(number[0])], leave_s=leave_s)


def _end(code: int, *, leave_s: float) -> NoReturn:
    # Only if it takes them at once: whoever reads our words may be the one that does not move.
    with suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:
            cursor = SHOW_CURSOR if os.isatty(2) else b""
            words = f"crad: ended {leave_s:g} s after it was asked to, without waiting any longer\n"
            os.write(2, cursor + words.encode())
    os._exit(code)
