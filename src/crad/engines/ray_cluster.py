"""A Ray cluster, or a Ray of this machine alone: about one actor per CPU. Whoever dies is replaced, its task redone.

The nodes share no disk. Data, states and messages go out as references to shared memory, new states come back as bytes.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

# Before Ray itself: it sets how Ray is imported, and says so where Ray is missing.
from crad.engines.ray_session import Membership  # isort: split

import ray
from ray.exceptions import RayError, RayTaskError

from crad.device import MemoryPeaks, kinds_notice, peak_memory_bytes
from crad.engines import count_cores
from crad.engines.processes import GRACE_SECONDS, MAX_DEATHS
from crad.engines.ray_actor import Host, Order, Place, Raw, Reference, own_versions
from crad.engines.shared_arrays import arrays_of, describe_dataset
from crad.errors import ConfigError, CradError, RunError
from crad.federation.context import RunContext
from crad.federation.message import Message
from crad.federation.tasks import Task, TaskOutcome
from crad.files import write_whole

START_SECONDS = 300.0  # for the cluster to give us the first CPU, when nobody is at work


class RayEngine:
    """Keeps a number of actors busy, wherever the cluster puts them."""

    def __init__(
        self,
        context: RunContext,
        *,
        workers: int | Literal["auto"] = "auto",
        address: str | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._context = context
        self._notice = notice
        self._seats: list[_Seat] = []
        self._bodies: dict[int, tuple[Message, Reference]] = {}
        self._peak, self._host_peak = 0, 0
        self._has_warned = False  # of GPUs that are not alike
        self._gpus_each = 0.0  # of the cluster, for one actor
        most = context.experiment.active or context.experiment.clients
        wanted = most if workers == "auto" else min(workers, most)
        cpus = min(wanted, count_cores()) if workers == "auto" else wanted
        self._membership = Membership(address=address, cpus=cpus)
        try:
            self.workers = self._count_workers(wanted, is_asked_for=workers != "auto")
            self._order = _order_for(context, has_gpus=self._gpus_each > 0)
            self._arrays = [ray.put(np.ascontiguousarray(array)) for array in arrays_of(context.data.dataset).values()]
            self._fill_seats()
        except BaseException:
            self.close()
            raise

    def each(self, tasks: Sequence[Task]) -> Iterator[TaskOutcome]:
        """Return the outcomes as they come."""
        waiting = deque(sorted(tasks, key=lambda task: -task.cost))
        deaths: Counter[int] = Counter()
        self._forget_bodies(tasks)
        self._fill_seats()
        try:
            while waiting or any(seat.task for seat in self._seats):
                for seat in self._seats:
                    if waiting and seat.is_free:
                        self._give(seat, waiting.popleft())
                seat = self._next_to_answer()
                try:
                    outcome = seat.receive()
                except RayError as error:
                    waiting.extendleft(self._bury(seat, error, deaths))
                    continue
                if outcome is None and (warning := kinds_notice(self.gpus)) is not None and not self._has_warned:
                    self._has_warned = True
                    self._notice(warning)
                if outcome is not None:
                    self._peak = max(self._peak, sum(seat.peak_memory_bytes for seat in self._seats))
                    self._host_peak = max(self._host_peak, sum(seat.peak_host_bytes for seat in self._seats))
                    yield outcome
        finally:
            # The caller has lost interest, or a client has failed: what is still going on is of no use.
            for seat in [seat for seat in self._seats if seat.task]:
                self._remove(seat)

    def memory_peaks(self) -> MemoryPeaks:
        """Return this process's peak and the sum of the actors', at most; where these have GPUs, the sum there.

        Pages that several look into count for each.
        """
        own = peak_memory_bytes("cpu")
        on_gpus = MemoryPeaks(self._peak, own + self._host_peak)
        return on_gpus if self._gpus_each else MemoryPeaks(own + self._peak, None)

    @property
    def device(self) -> str:
        """Return what the actors compute on, as they say; before the first has set up, what they were asked for."""
        return next((seat.place.device for seat in self._seats if seat.place), str(self._order.experiment["device"]))

    @property
    def gpus(self) -> list[str]:
        """Return the names of the GPUs that actors have said, in their order."""
        return [name for seat in self._seats if seat.place for name in seat.place.gpus]

    def close(self) -> None:
        """End the actors, and Ray itself if it was started here."""
        seats = list(self._seats)
        try:
            for seat in seats:
                self._remove(seat)
            for seat in seats:
                seat.join()
        finally:
            self._bodies.clear()
            self._membership.leave()

    def _count_workers(self, wanted: int, *, is_asked_for: bool) -> int:
        """Return how many actors fit. Each has a GPU to itself where there are any; more that were asked for share."""
        resources, device = ray.cluster_resources(), self._context.experiment.device
        cpus, gpus = (int(resources.get(kind, 0)) for kind in ("CPU", "GPU"))
        kinds = ["CPU", "GPU"] if device == "cuda" else ["CPU"]
        if cpus == 0 or (gpus == 0 and device == "cuda"):
            raise ConfigError(f"the Ray cluster has no {' or no '.join(kinds)} to give: ray status shows what it has")
        present = cpus
        if gpus and device in ("auto", "cuda"):
            sharing = -(-wanted // gpus) if is_asked_for else 1
            self._gpus_each, present = 1 / sharing, min(cpus, gpus * sharing)
        if is_asked_for and present < wanted:
            self._notice(f"the Ray cluster has {present} CPUs: {present} workers instead of {wanted}")
        return min(wanted, present)

    def _fill_seats(self) -> None:
        """Start new actors for those that are gone; the cluster has them as soon as it has a CPU for each."""
        kind = ray.remote(Host).options(num_cpus=1, num_gpus=self._gpus_each, max_restarts=0)
        while len(self._seats) < self.workers:
            self._seats.append(_Seat(kind.remote(), self._order, self._arrays))

    def _give(self, seat: _Seat, task: Task) -> None:
        state = None if task.state is None else _put(task.state)
        letters = {sender: (message.manifest, self._body(message)) for sender, message in task.messages.items()}
        seat.give(task, state, letters)

    def _body(self, message: Message) -> Reference:
        """Return the one reference to a message's body that all receivers share."""
        if id(message) not in self._bodies:
            self._bodies[id(message)] = (message, _put(message.body))  # held, so that no other gets its id
        return self._bodies[id(message)][1]

    def _forget_bodies(self, tasks: Sequence[Task]) -> None:
        needed = {id(message) for task in tasks for message in task.messages.values()}
        self._bodies = {key: entry for key, entry in self._bodies.items() if key in needed}

    def _next_to_answer(self) -> _Seat:
        asked = {seat.answer: seat for seat in self._seats if seat.answer is not None}
        is_any_at_work = any(seat.task for seat in self._seats)
        timeout = None if is_any_at_work else START_SECONDS
        done = futures.wait(asked, timeout, return_when=futures.FIRST_COMPLETED).done
        if not done:
            raise RunError(
                f"the Ray cluster gave this run no CPU for {START_SECONDS:.0f} seconds; ray status shows who has them"
            )
        return asked[done.pop()]

    def _bury(self, seat: _Seat, error: RayError, deaths: Counter[int]) -> list[Task]:
        """Replace an actor that died; its task, if it had one, is to be done again."""
        task = seat.task
        whose = -1 if task is None else task.peer
        deaths[whose] += 1
        work = "before its first task" if task is None else f"while it worked for client {task.peer}"
        how = _first_sentence(error)
        if deaths[whose] >= MAX_DEATHS:
            raise RunError(
                f"a Ray worker died {work}, {MAX_DEATHS} times in a row ({how}); if memory is short, use fewer "
                "workers; engine serial shows an error that a worker cannot"
            )
        self._notice(f"a Ray worker died {work} ({how}); another one does it again")
        self._remove(seat)
        self._fill_seats()
        return [] if task is None else [task]

    def _remove(self, seat: _Seat) -> None:
        seat.end()
        self._seats.remove(seat)


class _Seat:
    """The driver's end of one actor: what it was asked last, if it has not answered yet."""

    def __init__(self, actor: Any, order: Order, arrays: Sequence[Reference]) -> None:  # noqa: ANN401  # Ray's handle
        self._actor = actor
        self._is_ready = False
        self.task: Task | None = None
        self.answer: futures.Future[TaskOutcome | Place] | None = None
        self.peak_memory_bytes, self.peak_host_bytes = 0, 0
        self.place: Place | None = None
        self._ask(actor.set_up.remote(order, *arrays))

    @property
    def is_free(self) -> bool:
        """Return whether it has set up and has nothing to do."""
        return self._is_ready and self.task is None

    def give(self, task: Task, state: Reference | None, letters: dict[int, tuple[bytes, Reference]]) -> None:
        """Hand over a task, with references in place of what lies in files here."""
        self.task = task
        bare = replace(task, state=None, messages={}, save_to=None)
        self._ask(self._actor.do.remote(bare, state, letters))

    def receive(self) -> TaskOutcome | None:
        """Take its answer: an outcome whose content is stored, or None when it has set up; raise what it raised."""
        assert self.answer is not None, "it was asked"
        try:
            outcome = self.answer.result()
        except RayTaskError as error:
            if isinstance(error.cause, RayError):
                raise error.cause from None  # what it needed was lost with a node
            raise _raised_by_work(error) from None
        self.answer = None
        self._is_ready = True
        if isinstance(outcome, Place):
            self.place = outcome
            return None
        assert self.task is not None, "it answers to one"
        self.peak_memory_bytes = max(self.peak_memory_bytes, outcome.peak_memory_bytes)
        self.peak_host_bytes = max(self.peak_host_bytes, outcome.peak_host_bytes)
        if outcome.content is not None and self.task.save_to is not None:
            write_whole(self.task.save_to, outcome.content)
            outcome = replace(outcome, content=None)
        self.task = None
        return outcome

    def end(self) -> None:
        """End the actor, whatever it is doing; one that is dead already may be gone."""
        with suppress(Exception):
            ray.kill(self._actor, no_restart=True)

    def join(self) -> None:
        """Wait, after `end`, until nobody here waits for the actor any more."""
        self._listener.join(GRACE_SECONDS)

    def _ask(self, reference: Reference) -> None:
        # In a thread of its own: a signal that arrives while the main thread is inside Ray becomes a SystemError.
        self.answer = futures.Future()
        self._listener = threading.Thread(target=_listen, args=(reference, self.answer), daemon=True)
        self._listener.start()


def _listen(reference: Reference, answer: futures.Future[TaskOutcome | Place]) -> None:
    try:
        answer.set_result(ray.get(reference))
    except BaseException as error:
        answer.set_exception(error)


def _order_for(context: RunContext, *, has_gpus: bool) -> Order:
    # Of one kind everywhere: an actor that finds no GPU on its node must not go on with a CPU by itself.
    device = "cuda" if has_gpus else "cpu" if context.experiment.device == "auto" else context.experiment.device
    return Order(
        experiment={**context.experiment.model_dump(), "device": device},
        dataset=describe_dataset(context.data.dataset),
        arrays=tuple(arrays_of(context.data.dataset)),
        path=tuple(str(Path(entry).absolute()) for entry in sys.path),
        versions=own_versions(),
    )


def _put(content: Path | bytes | memoryview) -> Reference:
    """Copy once into this node's shared memory; other nodes fetch it from here."""
    raw: Raw = np.memmap(content, mode="r") if isinstance(content, Path) else np.frombuffer(content, np.uint8)
    return ray.put(np.asarray(raw))  # a plain array: others look into it without a copy


def _raised_by_work(error: RayTaskError) -> Exception:
    cause = error.cause
    return cause if isinstance(cause, CradError) else RuntimeError(f"a Ray worker failed:\n{error}")


def _first_sentence(error: RayError) -> str:
    """Return why from Ray's last line, which says it at great length."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip().split(". ")[0].rstrip(".")
