"""Time, threads and waiting, in one place: whatever waits through a `Clock` can be run over a virtual one in a test.

Every wait here has an end that the waiter chose, and threads are never in the way of a process that ends.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Signal(Protocol):
    """Something that happens once, and that others wait for."""

    def set(self) -> None:
        """Say that it has happened."""
        ...

    def is_set(self) -> bool:
        """Return whether it has happened."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait no longer than this; return whether it has happened."""
        ...


class Mailbox(Protocol[Item]):
    """What several workers hand to one who waits for it."""

    def put(self, item: Item) -> None:
        """Hand something over."""
        ...

    def get(self, timeout: float) -> Item:
        """Return the next thing; `queue.Empty` if none comes in this time."""
        ...

    def empty(self) -> bool:
        """Return whether there is nothing to get now."""
        ...


class Worker(Protocol):
    """A call under way beside the one that began it."""

    def is_alive(self) -> bool:
        """Return whether it has not ended yet."""
        ...

    def join(self, timeout: float) -> None:
        """Wait for its end, no longer than this."""
        ...


class Clock(Protocol):
    """Seconds that only go forward, and everything that waits for some of them."""

    def now(self) -> float:
        """Return the seconds since some moment in the past."""
        ...

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        ...

    def signal(self) -> Signal:
        """Make a signal."""
        ...

    def mailbox(self) -> Mailbox[Item]:
        """Make a mailbox."""
        ...

    def start(self, call: Callable[[], None], *, name: str) -> Worker:
        """Begin a call beside ours."""
        ...


class SystemMailbox(queue.Queue[Item]):
    """A queue that is never waited for without an end."""

    def get(self, timeout: float) -> Item:  # type: ignore[override]  # there is no waiting for ever here
        """Return the next thing; `queue.Empty` if none comes in this time."""
        return super().get(timeout=timeout)


class SystemClock:
    """The machine's own time and threads."""

    def now(self) -> float:
        """Return the seconds since some moment in the past."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        time.sleep(seconds)

    def signal(self) -> Signal:
        """Make a signal."""
        return threading.Event()

    def mailbox(self) -> Mailbox[Item]:
        """Make a mailbox."""
        return SystemMailbox()

    def start(self, call: Callable[[], None], *, name: str) -> Worker:
        """Begin a call in a thread that no end of the process waits for."""
        thread = threading.Thread(target=call, name=name, daemon=True)
        thread.start()
        return thread


SYSTEM_CLOCK = SystemClock()
