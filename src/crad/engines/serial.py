"""One client after the other in this process: the reference that every other engine must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crad.device import MemoryPeaks, gpu_names, memory_peaks, tune_malloc
from crad.federation.context import RunContext
from crad.federation.method import Method
from crad.federation.tasks import Task, TaskOutcome, TaskRunner
from crad.files import BackgroundWriter, write_whole


class SerialEngine:
    """Does the tasks in turn."""

    workers = 1

    def __init__(self, context: RunContext, method: Method) -> None:
        if context.device == "cpu":
            tune_malloc()
        # While a GPU works for the next client, the last one's state is written.
        self._writer = None if context.device == "cpu" else BackgroundWriter()
        write = write_whole if self._writer is None else self._writer.write
        self.runner = TaskRunner(context, method, write=write)
        self.device, self.gpus = context.device, gpu_names(context.device)[:1]

    def each(self, tasks: Sequence[Task]) -> Iterator[TaskOutcome]:
        """Return the outcomes in the order of the tasks, each as soon as it is there.

        After the last one all files are there, too.
        """
        for task in tasks:
            yield self.runner.do(task)
        if self._writer is not None:
            self._writer.finish()

    def memory_peaks(self) -> MemoryPeaks:
        """Return the highest memory of this process."""
        return memory_peaks(self.device)

    def close(self) -> None:
        """Do nothing: nothing was started."""
