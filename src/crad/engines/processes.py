"""One single-threaded process per core, or one per GPU.

Tasks go out longest first; a worker that dies is replaced, its task redone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from socket import socketpair
from typing import IO, Any

from crad import errors
from crad.device import MALLOC_SETTINGS, MemoryPeaks, gpu_names, kinds_notice, memory_peaks, visible_gpus
from crad.engines.shared_arrays import describe_dataset, write_arrays
from crad.engines.task_json import outcome_from_bytes, task_to_bytes
from crad.errors import RunError
from crad.federation.context import RunContext
from crad.federation.tasks import Task, TaskOutcome

MAX_DEATHS = 3  # of workers over one task, before the run is given up
# A worker imports from where this process does, however it was started. What it imports stays: the garbage collector
# rests meanwhile and passes over it later.
PROGRAM = (
    "import gc, json, sys; gc.disable(); sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from crad.engines.worker import main; gc.enable(); gc.freeze(); main()"
)
GRACE_SECONDS = 5.0  # for a worker to end when told to


class ProcessEngine:
    """Keeps a fixed number of worker processes busy."""

    def __init__(self, context: RunContext, *, workers: int, notice: Callable[[str], None] = lambda text: None) -> None:
        self._context = context
        self._notice = notice
        # Without a name from the start: nothing is left behind, however this process ends.
        self._data: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        self._order = json.dumps(
            {
                "experiment": context.experiment.model_dump(),
                "arrays": write_arrays(context.data.dataset, self._data),
                "dataset": describe_dataset(context.data.dataset),
            }
        ).encode()
        self.workers, self.device = workers, context.device
        # One GPU each, in turn: with more workers than GPUs some share one.
        self._visible = visible_gpus() if context.device == "cuda" else []
        self.gpus = gpu_names(context.device)[:workers]
        if (warning := kinds_notice(self.gpus)) is not None:
            notice(warning)
        self._peaks, self._host_peaks = [0] * workers, [0] * workers
        self._workers: list[_Worker] = []
        try:
            for place in range(workers):
                self._workers.append(self._start(place))
        except BaseException:
            self.close()
            raise

    def each(self, tasks: Sequence[Task]) -> Iterator[TaskOutcome]:
        """Return the outcomes as they come."""
        self._workers = [
            worker if worker.is_there else self._start(place) for place, worker in enumerate(self._workers)
        ]
        waiting = deque(sorted(tasks, key=lambda task: -task.cost))
        deaths: Counter[int] = Counter()
        try:
            while waiting or any(worker.task for worker in self._workers):
                for worker in self._workers:
                    if waiting and worker.is_free:
                        worker.give(waiting.popleft())
                for worker in self._readable():
                    try:
                        content = worker.connection.recv_bytes()
                    except (EOFError, OSError):
                        waiting.extendleft(self._bury(worker, deaths))
                        continue
                    outcome = worker.take(content)
                    if outcome is not None:
                        self._note_peak(worker, outcome)
                        yield outcome
        finally:
            # The caller has lost interest, or a client has failed: what is still going on is of no use.
            for worker in self._workers:
                if worker.task:
                    worker.end()

    def memory_peaks(self) -> MemoryPeaks:
        """Return the sum of every process's peak, at most: pages that several of them look into count for each."""
        own = memory_peaks(self.device)
        host_bytes = None if own.host_bytes is None else own.host_bytes + sum(self._host_peaks)
        return MemoryPeaks(own.device_bytes + sum(self._peaks), host_bytes)

    def close(self) -> None:
        """End all workers and wait until they are gone; free ones are kept where `kept_workers` says so."""
        for worker in self._workers:
            if _kept is not None and worker.is_free:
                _kept.append(worker)
            else:
                worker.end()
        self._workers = []
        self._data.close()

    def _start(self, place: int) -> _Worker:
        gpu = self._visible[place % len(self._visible)] if self._visible else None
        kept = next((one for one in _kept or () if one.gpu == gpu), None)  # another's GPU was chosen when it started
        if kept is not None and _kept is not None:
            _kept.remove(kept)
        worker = kept or _Worker(gpu)
        worker.begin(self._order, self._data.fileno())
        return worker

    def _note_peak(self, worker: _Worker, outcome: TaskOutcome) -> None:
        place = self._workers.index(worker)
        self._peaks[place] = max(self._peaks[place], outcome.peak_memory_bytes)
        self._host_peaks[place] = max(self._host_peaks[place], outcome.peak_host_bytes)

    def _readable(self) -> list[_Worker]:
        by_connection = {worker.connection: worker for worker in self._workers if not worker.is_free}
        return [by_connection[connection] for connection in wait(list(by_connection)) if connection in by_connection]

    def _bury(self, worker: _Worker, deaths: Counter[int]) -> list[Task]:
        """Replace a worker that died; its task, if it had one, is to be done again."""
        code = worker.end()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        task = worker.task
        whose = -1 if task is None else task.peer
        deaths[whose] += 1
        work = "before its first task" if task is None else f"while it worked for client {task.peer}"
        if deaths[whose] >= MAX_DEATHS:
            raise RunError(
                f"a worker died {work} ({how}), {MAX_DEATHS} times in a row; if memory is short (signal 9), use fewer "
                "workers; engine serial shows an error that a worker cannot"
            )
        self._notice(f"worker {worker.pid} died {work} ({how}); a new one does it again")
        place = self._workers.index(worker)
        self._workers[place] = self._start(place)
        return [] if task is None else [task]


class _PaidBefore:
    """Seconds that tasks took in this process for want of workers: of one run, or of all that share their workers."""

    seconds = 0.0


paid_before = _PaidBefore()


def forget_what_was_paid() -> None:
    """Begin to count again, unless this run shares its workers with others before it."""
    if _kept is None:
        paid_before.seconds = 0.0


def kept_workers_wait() -> bool:
    """Return whether workers of an earlier run are there, which cost nothing to start."""
    return bool(_kept)


_kept: list[_Worker] | None = None  # workers that wait for the next run; None: nobody asked for that


@contextmanager
def kept_workers() -> Iterator[None]:
    """Let the runs inside share their workers: starting one takes seconds, which several short runs would feel."""
    global _kept
    if _kept is not None:  # inside another one, which ends them
        yield
        return
    _kept, paid_before.seconds = [], 0.0
    try:
        yield
    finally:
        waiting, _kept = _kept, None
        for worker in waiting:
            worker.end()


class _Worker:
    """The parent's end of one worker process; it sees one GPU, if any is named."""

    def __init__(self, gpu: str | None = None) -> None:
        self.gpu = gpu
        mine, theirs = socketpair()
        leash_theirs, self._leash = os.pipe()
        inherited = (theirs.fileno(), leash_theirs)
        self._process = subprocess.Popen(  # noqa: S603  # our own module, no shell
            [sys.executable, "-c", PROGRAM, _import_path(), *map(str, inherited)],
            pass_fds=inherited,
            env=worker_environment(gpu),
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in a terminal reaches the parent alone
        )
        theirs.close()
        os.close(leash_theirs)
        self.connection = Connection(mine.detach())
        self.task: Task | None = None
        self._is_ready = False

    def begin(self, order: bytes, data: int) -> None:
        """Tell it what run it is for."""
        self._is_ready = False
        with suppress(OSError):  # it died: seen when its answer is read
            self.connection.send_bytes(order)
            send_handle(self.connection, data, self.pid)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def is_there(self) -> bool:
        """Return whether it has not been ended."""
        return not self.connection.closed

    @property
    def is_free(self) -> bool:
        """Return whether it has set up and has nothing to do."""
        return self._is_ready and self.task is None

    def give(self, task: Task) -> None:
        """Hand over a task."""
        self.task = task
        with suppress(OSError):  # it died: seen when its answer is read
            self.connection.send_bytes(task_to_bytes(task))

    def take(self, content: bytes) -> TaskOutcome | None:
        """Take its answer: an outcome, or None when it has set up. What it raised is raised here."""
        if content.startswith(b'{"error"'):
            raise _error_from(json.loads(content))
        if not self._is_ready:
            self._is_ready = True
            return None
        self.task = None
        return outcome_from_bytes(content)

    def end(self) -> int:
        """End the process and return its exit code."""
        if self.is_there:
            self.connection.close()
            os.close(self._leash)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)  # the leash ends it, or it is dying by itself: its own code says more
            self._process.terminate()
        try:
            return self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def worker_environment(gpu: str | None) -> dict[str, str]:
    """Return the environment of a worker: one thread, and one GPU or whatever this process has."""
    seen = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    return {**os.environ, **MALLOC_SETTINGS, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **seen}


def _import_path() -> str:
    return json.dumps([str(Path(entry).absolute()) for entry in sys.path])


def _error_from(entry: dict[str, Any]) -> Exception:
    if entry["error"] is None:
        return RuntimeError(f"a worker failed:\n{entry['traceback']}")
    if entry["error"] == "OSError":  # a full disk, say: reported like one in this process
        return OSError(entry["errno"], entry["message"])
    kind = getattr(errors, entry["error"], RunError)  # a plugin's own kind of CradError is not among ours
    error: Exception = kind(entry["message"])
    return error
