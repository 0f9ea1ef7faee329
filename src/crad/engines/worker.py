"""A worker process: one thread, one client at a time, until its parent has no more for it or is gone.

Started by `crad.engines.processes` with two inherited file descriptors: the line to its parent, and a leash that closes
when the parent dies. On the line come orders, each with a run's settings and the file of its data set, which all
workers map into memory; and tasks of the run that was ordered last.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from crad.config import Experiment
from crad.device import reset_peak_memory
from crad.engines.shared_arrays import assemble_dataset, map_arrays
from crad.engines.task_json import outcome_to_bytes, task_from_bytes
from crad.errors import CradError
from crad.federation.context import build_run_context
from crad.federation.tasks import TaskRunner, with_peaks
from crad.methods import resolve_method

ORDER = b'{"experiment"'  # how an order begins; a task begins otherwise


def main() -> None:
    """Serve the parent at the other end of the line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends us
    line, leash = (int(word) for word in sys.argv[1:3])
    threading.Thread(target=_end_with_parent, args=(leash,), daemon=True).start()
    connection, runner = Connection(line), None
    # Whatever is raised while talking means that the parent has gone: there is nobody to tell.
    with suppress(EOFError, OSError):
        while True:
            content = connection.recv_bytes()
            is_order = content.startswith(ORDER)
            data = recv_handle(connection) if is_order else None
            try:
                if data is not None:
                    runner = None  # the run before is over: its data and models may go
                    runner, answer = _set_up(json.loads(content), data), b"{}"
                else:
                    assert runner is not None, "a run is ordered before its tasks"
                    answer = outcome_to_bytes(with_peaks(runner.do(task_from_bytes(content)), runner.device))
            except Exception as error:
                answer = _error_to_bytes(error)
            connection.send_bytes(answer)


def _set_up(order: dict[str, Any], data: int) -> TaskRunner:
    experiment = Experiment(**order["experiment"])
    content = memoryview(mmap.mmap(data, 0, access=mmap.ACCESS_READ))
    os.close(data)  # the mapping stays
    dataset = assemble_dataset(order["dataset"], map_arrays(content, order["arrays"]))
    context = build_run_context(experiment, dataset)
    reset_peak_memory(context.device)  # of the run before
    return TaskRunner(context, resolve_method(experiment.method, experiment.method_settings))


def _end_with_parent(leash: int) -> None:
    os.read(leash, 1)  # nobody ever writes: it returns when the other end is closed, however the parent ended
    os._exit(1)


def _error_to_bytes(error: Exception) -> bytes:
    is_ours = isinstance(error, CradError)
    kind = type(error).__name__ if is_ours else "OSError" if isinstance(error, OSError) else None
    number = error.errno if isinstance(error, OSError) else None
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    entry = {"error": kind, "message": text, "errno": number, "traceback": traceback.format_exc()}
    return json.dumps(entry).encode()
