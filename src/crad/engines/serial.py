"""One client after the other in this process: the reference that every other engine must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crad.device import peak_memory_bytes, tune_malloc
from crad.federation.context import RunContext
from crad.federation.method import Method
from crad.federation.tasks import Task, TaskOutcome, TaskRunner


class SerialEngine:
    """Does the tasks in turn."""

    workers = 1

    def __init__(self, context: RunContext, method: Method) -> None:
        if context.device == "cpu":
            tune_malloc()
        self.runner = TaskRunner(context, method)
        self._device = context.device

    def each(self, tasks: Sequence[Task]) -> Iterator[TaskOutcome]:
        """Return the outcomes in the order of the tasks, each as soon as it is there."""
        return (self.runner.do(task) for task in tasks)

    def peak_memory_bytes(self) -> int:
        """Return the highest memory of this process."""
        return peak_memory_bytes(self._device)

    def close(self) -> None:
        """Do nothing: nothing was started."""
