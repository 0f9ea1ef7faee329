"""A worker process: one thread, one client at a time, until its parent has no more for it or is gone.

Started by `crad.engines.processes` with three inherited file descriptors: the line to its parent, a leash that closes
when the parent dies, and the data set as raw bytes that all workers map into memory.
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
from typing import Any

from crad.config import Experiment
from crad.data.dataset import Dataset
from crad.engines.arrays import map_arrays
from crad.engines.wire import outcome_to_bytes, task_from_bytes
from crad.errors import CradError
from crad.federation.work import Bench
from crad.federation.world import build_world
from crad.methods import resolve_method


def main() -> None:
    """Serve the parent at the other end of the line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends us
    line, leash, data = (int(word) for word in sys.argv[1:4])
    threading.Thread(target=_end_with_parent, args=(leash,), daemon=True).start()
    connection = Connection(line)
    # Whatever is raised while talking means that the parent has gone: there is nobody to tell.
    with suppress(EOFError, OSError):
        order = connection.recv_bytes()
        try:
            bench, answer = _set_up(json.loads(order), data), b"{}"
        except Exception as error:
            connection.send_bytes(_error_to_bytes(error))
            return
        while True:
            connection.send_bytes(answer)
            content = connection.recv_bytes()
            try:
                answer = outcome_to_bytes(bench.do(task_from_bytes(content)))
            except Exception as error:
                answer = _error_to_bytes(error)


def _set_up(order: dict[str, Any], data: int) -> Bench:
    experiment = Experiment(**order["experiment"])
    content = memoryview(mmap.mmap(data, 0, access=mmap.ACCESS_READ))
    parts: dict[str, Any] = {**order["dataset"], **map_arrays(content, order["arrays"])}
    dataset = Dataset(**{**parts, "class_names": tuple(parts["class_names"])})
    return Bench(build_world(experiment, dataset), resolve_method(experiment.method))


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
