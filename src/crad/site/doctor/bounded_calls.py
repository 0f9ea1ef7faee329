"""Questions whose answer somebody else can hold back: each in a thread of its own, waited for until a time we chose.

A thread that is late is left behind. It is a daemon, so neither we nor the end of the process wait for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

Reply = TypeVar("Reply")
MOST_AT_ONCE = 16


class BoundedCall(Generic[Reply]):
    """A call that has been begun; `outcome` waits for it, but not longer than is said."""

    def __init__(self, call: Callable[[], Reply]) -> None:
        self._call = call
        self._ended: queue.SimpleQueue[tuple[Reply | None, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="crad-errand", daemon=True).start()

    def outcome(self, *, until: float) -> Reply:
        """Return what the call returned or raised; TimeoutError if it has not by this time of the monotonic clock."""
        try:
            told, error = self._ended.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return told  # type: ignore[return-value]  # None only where the call returns it

    def _run(self) -> None:
        try:
            self._ended.put((self._call(), None))
        except BaseException as error:
            self._ended.put((None, error))


def all_within(
    seconds: float, calls: Sequence[Callable[[], Reply]], *, late: Callable[[int], Reply], at_once: int = MOST_AT_ONCE
) -> list[Reply]:
    """Return the outcomes of all calls in order, some at once, each with this time in all; `late` stands in by place.

    Nobody takes another's time: whoever is slow is late alone.
    """
    told: list[Reply] = []
    for first in range(0, len(calls), at_once):
        errands = [BoundedCall(call) for call in calls[first : first + at_once]]
        until = time.monotonic() + seconds
        for place, errand in enumerate(errands, start=first):
            try:
                told.append(errand.outcome(until=until))
            except TimeoutError:
                told.append(late(place))
    return told


def as_they_come(call: Callable[[Callable[[Reply], None]], None], *, seconds: float) -> Iterator[Reply]:
    """Yield what a call tells its listener, each as it comes; TimeoutError if it has not ended in this time."""
    news: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    until = time.monotonic() + seconds
    errand = BoundedCall(lambda: call(news.put))
    is_over = False
    while not is_over:
        try:
            errand.outcome(until=min(until, time.monotonic() + 0.05))
            is_over = True
        except TimeoutError:
            if time.monotonic() >= until:
                yield from _drained(news)
                raise
        yield from _drained(news)


def _drained(news: queue.SimpleQueue[Reply]) -> Iterator[Reply]:
    while not news.empty():
        yield news.get()
