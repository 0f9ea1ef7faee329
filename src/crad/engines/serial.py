"""One client after the other in this process: the reference that every other engine must equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crad.device import peak_memory_bytes, tune_malloc
from crad.federation.federated_data import FederatedData
from crad.federation.method import Method
from crad.federation.tasks import Task, TaskOutcome, TaskRunner


class SerialEngine:
    """Does the tasks in turn."""

    workers = 1

    def __init__(self, world: FederatedData, method: Method) -> None:
        if world.device == "cpu":
            tune_malloc()
        self.bench = TaskRunner(world, method)
        self._device = world.device

    def each(self, tasks: Sequence[Task]) -> Iterator[TaskOutcome]:
        """The outcomes in the order of the tasks, each as soon as it is there."""
        return (self.bench.do(task) for task in tasks)

    def peak_memory_bytes(self) -> int:
        """The highest memory of this process."""
        return peak_memory_bytes(self._device)

    def close(self) -> None:
        """Nothing was started."""
