"""One process until more would have paid for themselves: what `--workers auto` takes on a machine with several cores.

Starting a worker costs about what importing torch costs, whatever the run. How long a run will take is not known before
it begins, but what it has taken so far is. So the clients are worked for in this process until that has taken as long
as starting workers does, and only then are they started: a run that is over before never pays for them, and no run
loses more by the wait than that. Where a task is done changes no bit (decision 0007), so nor does the clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from crad.device import MemoryPeaks
from crad.engines.processes import ProcessEngine, forget_what_was_paid, kept_workers_wait, paid_before
from crad.engines.serial import SerialEngine
from crad.federation.context import RunContext
from crad.federation.method import Method
from crad.federation.tasks import Task, TaskOutcome

START_SECONDS = 2.0  # processor time of a worker until its first task: Python, torch, the package; measured 1.7 to 2.5


class PatientEngine:
    """Does tasks here, and has them done by workers from when that is worth it."""

    def __init__(
        self,
        context: RunContext,
        method: Method,
        *,
        workers: int,
        notice: Callable[[str], None],
        clock: Callable[[], float] = time.process_time,  # a busy machine starts workers later, too
    ) -> None:
        self._context, self._notice, self._clock = context, notice, clock
        self._wanted, self.device = workers, context.device
        forget_what_was_paid()
        self._here: SerialEngine | None = SerialEngine(context, method)
        self._there: ProcessEngine | None = None

    @property
    def workers(self) -> int:
        """Return how many processes do tasks at the moment."""
        return 1 if self._there is None else self._there.workers

    def each(self, tasks: Sequence[Task]) -> Iterator[TaskOutcome]:
        """Return the outcomes as they come."""
        waiting = deque(tasks)
        while waiting and self._there is None:
            if len(waiting) > 1 and self._is_worth_it():
                self._start()
                break
            yield self._do_here(waiting.popleft())
        if waiting and self._there is not None:
            yield from self._there.each(list(waiting))

    def memory_peaks(self) -> MemoryPeaks:
        """Return the highest memory of all processes together."""
        return self._at_work.memory_peaks()

    @property
    def gpus(self) -> Sequence[str]:
        """Return the names of the GPUs that are used, by now."""
        return self._at_work.gpus

    @property
    def _at_work(self) -> SerialEngine | ProcessEngine:
        engine = self._here if self._there is None else self._there
        assert engine is not None, "one of them is"
        return engine

    def close(self) -> None:
        """End the workers, if there are any."""
        if self._there is not None:
            self._there.close()

    def _is_worth_it(self) -> bool:
        return kept_workers_wait() or paid_before.seconds >= START_SECONDS

    def _do_here(self, task: Task) -> TaskOutcome:
        assert self._here is not None, "as long as there are no workers"
        began = self._clock()
        (outcome,) = self._here.each([task])
        paid_before.seconds += self._clock() - began
        return outcome

    def _start(self) -> None:
        self._here = None  # and what it holds in memory
        self._there = ProcessEngine(self._context, workers=self._wanted, notice=self._notice)
