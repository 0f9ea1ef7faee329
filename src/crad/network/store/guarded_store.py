"""A store that never holds anybody up: whatever it does not do in time is a `StoreError`, and a new connection is made.

The libraries behind a store have time-outs of their own kind, or none. Here its work is done by a thread of its own,
which is waited for with a clock and left behind when it hangs.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from crad.network.store.objects import Store, StoreError

SILENCE_S = 60.0  # without an answer, or a further megabyte
LOOK_S = 0.5

Answered = TypeVar("Answered")


class Objects(Protocol):
    """Objects by path: a `Store`, one that is guarded, or one in memory where a whole federation is simulated."""

    shown: str

    def read(self, path: str, *, most: int) -> bytes | None:
        """Return the first `most` bytes of an object, None if it is not there."""
        ...

    def size(self, path: str) -> int | None:
        """Return how large an object is, None if it is not there."""
        ...

    def chunks(self, path: str, *, start: int = 0, stop: int) -> Iterator[bytes]:
        """Yield the bytes of an object from `start` to `stop` or its end."""
        ...

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Put an object there."""
        ...

    def names(self, path: str) -> list[str]:
        """Return what lies in a folder, by name."""
        ...

    def remove(self, path: str) -> None:
        """Take away an object or a folder."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class GuardedStore:
    """The store at an address, asked by one thread at a time and never waited for without an end."""

    def __init__(self, make: Callable[[], Store], *, silence_s: float = SILENCE_S) -> None:
        self._make, self._silence_s = make, silence_s
        store = make()  # an address that cannot work is refused here
        self.shown = store.shown
        self._thread: StoreThread | None = StoreThread(store)

    def read(self, path: str, *, most: int) -> bytes | None:
        """Return the first `most` bytes of an object, None if it is not there."""
        return self._do(lambda store: store.read(path, most=most))

    def size(self, path: str) -> int | None:
        """Return how large an object is, None if it is not there."""
        return self._do(lambda store: store.size(path))

    def chunks(self, path: str, *, start: int = 0, stop: int) -> Iterator[bytes]:
        """Yield the bytes of an object from `start` to `stop` or its end, a megabyte at a time."""
        thread = self._at_work()
        pieces = self._do(lambda store: store.chunks(path, start=start, stop=stop), thread)
        while True:
            piece = self._do(lambda _: next(pieces, None), thread)
            if piece is None:
                return
            yield piece

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Put an object there, complete or, where the store can, not at all."""
        thread = self._at_work()
        self._do(lambda store: store.write(path, thread.noting(chunks)), thread)

    def names(self, path: str) -> list[str]:
        """Return what lies in a folder, by name."""
        return self._do(lambda store: store.names(path))

    def remove(self, path: str) -> None:
        """Take away an object or a folder and what lies in it."""
        self._do(lambda store: store.remove(path))

    def close(self) -> None:
        """Let go of the connection; the next question makes a new one."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.leave()

    def _do(self, call: Callable[[Store], Answered], thread: StoreThread | None = None) -> Answered:
        thread = thread or self._at_work()
        if thread.is_left:
            raise StoreError(f"{self.shown}: the connection was given up")
        done = thread.begin(call)
        while True:
            try:
                result, error = done.get(timeout=LOOK_S if self._silence_s > LOOK_S else self._silence_s)
            except queue.Empty:
                if time.monotonic() - thread.moved_at < self._silence_s:
                    continue
                self.close()
                raise StoreError(f"{self.shown} does not answer for {self._silence_s:g} s") from None
            if error is not None:
                raise error
            return result  # type: ignore[no-any-return]

    def _at_work(self) -> StoreThread:
        if self._thread is None:
            self._thread = StoreThread(self._make())
        return self._thread


class StoreThread:
    """A thread that works on one connection to a store, one call after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._calls: queue.SimpleQueue[tuple[Callable[[Store], Any], queue.SimpleQueue[Any]] | None]
        self._calls = queue.SimpleQueue()
        self.is_left = False
        self.moved_at = time.monotonic()
        threading.Thread(target=self._work, name="crad-store", daemon=True).start()

    def begin(self, call: Callable[[Store], Any]) -> queue.SimpleQueue[Any]:
        """Have a call done; what comes of it, a result or an error, is put into the queue returned."""
        self.moved_at = time.monotonic()
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((call, done))
        return done

    def noting(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield the chunks; with every one that is taken it is known that the store is alive."""
        for chunk in chunks:
            self.moved_at = time.monotonic()
            yield chunk

    def leave(self) -> None:
        """End after the call that is under way, should it ever end."""
        self.is_left = True
        self._calls.put(None)

    def _work(self) -> None:
        while (asked := self._calls.get()) is not None:
            call, done = asked
            try:
                done.put((call(self._store), None))
            except BaseException as error:  # also an interruption: it is the caller's to hear of
                done.put((None, error))
        self._store.close()
