"""A clock that stands still while anybody works, and jumps to the next moment when all wait; one task at a time."""

from __future__ import annotations

import queue
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

FOREVER = 1e18
MOST_AT_ONCE = 20_000  # steps without a moment passing


class StuckError(AssertionError):
    """Everybody waits, and nobody for a moment that will come."""


class Task:
    """A call under way: a process of a member, or one of its threads."""

    def __init__(self, clock: VirtualClock, call: Callable[[], None], name: str, owner: object) -> None:
        self._clock, self.name, self.owner = clock, name, owner
        self.until: float = 0.0
        self.ready: Callable[[], bool] | None = None
        self.is_done = False
        self.error: BaseException | None = None
        self.greenlet = greenlet(lambda: self._run(call))

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except GreenletExit:
            pass
        except BaseException as error:
            self.error = error
        self.is_done = True

    def is_alive(self) -> bool:
        return not self.is_done

    def join(self, timeout: float) -> None:
        self._clock.wait(timeout, lambda: self.is_done)


class VirtualSignal:
    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._is_set = clock, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float) -> bool:
        self._clock.wait(timeout, lambda: self._is_set)
        return self._is_set


class VirtualMailbox:
    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._items = clock, deque[Any]()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self, timeout: float) -> Any:
        self._clock.wait(timeout, lambda: bool(self._items))
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class VirtualClock:
    """All tasks of a simulation. Which of several ready ones runs next is drawn."""

    def __init__(self, seed: int) -> None:
        self._now = 0.0
        self._rng = random.Random(seed)
        self._tasks: list[Task] = []
        self._killed: list[Task] = []  # kept, so that nothing of them runs when they are forgotten
        self._here = getcurrent()
        self.steps = 0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.wait(seconds, None)

    def signal(self) -> VirtualSignal:
        return VirtualSignal(self)

    def mailbox(self) -> VirtualMailbox:
        return VirtualMailbox(self)

    def start(self, call: Callable[[], None], *, name: str, owner: object = None) -> Task:
        current = self._current()
        if owner is None and current is not None:
            owner = current.owner  # a thread belongs to its process
        task = Task(self, call, name, owner)
        self._tasks.append(task)
        return task

    def wait(self, seconds: float, ready: Callable[[], bool] | None) -> None:
        """Let the others run until this is ready or so many seconds have passed."""
        task = self._current()
        if task is None or task not in self._tasks:
            raise GreenletExit  # killed: what its `finally` would still do never happened
        task.until, task.ready = self._now + max(0.0, seconds), ready
        self._here.switch()

    def kill(self, owner: object) -> None:
        """End a process and its threads between two of their steps, with nothing put in order."""
        mine = [task for task in self._tasks if task.owner is owner]
        self._killed += mine
        self._tasks = [task for task in self._tasks if task.owner is not owner]

    def run(self, *, until: Callable[[], bool], after_step: Callable[[], None], end: float) -> None:
        """Run until this is so; `StuckError` if nobody can go on, or the end of the time is reached."""
        at_once = 0  # steps since time went on
        while not until():
            ready = [task for task in self._tasks if task.until <= self._now or (task.ready and task.ready())]
            if not ready:
                at_once = 0
                self._now = min((task.until for task in self._tasks), default=FOREVER)
                if self._now >= end:
                    waiting = sorted(task.name for task in self._tasks)
                    raise StuckError(f"at {end:g} s {waiting} still wait")
                continue
            task = self._rng.choice(ready)
            self.steps, at_once = self.steps + 1, at_once + 1
            if at_once > MOST_AT_ONCE:
                raise StuckError(f"at {self._now:g} s {task.name} spins without end")
            task.greenlet.switch()
            if task.is_done:
                self._tasks.remove(task)
                if task.error is not None:
                    raise task.error
            after_step()

    def _current(self) -> Task | None:
        current = getcurrent()
        known = [task for task in (*self._tasks, *self._killed) if task.greenlet is current]
        return known[0] if known else None
