"""Where the clients of a round are run: in this process, in one process per core, on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from crad.config import Experiment
from crad.device import gpu_names
from crad.engines.serial import SerialEngine
from crad.errors import ConfigError
from crad.federation.context import RunContext
from crad.federation.method import Method
from crad.federation.tasks import Engine
from crad.plugins import OBJECT, is_object


def make_engine(context: RunContext, method: Method, *, notice: Callable[[str], None] = lambda text: None) -> Engine:
    """Make the engine that the settings ask for; `auto` takes one process per core, or per GPU, once that is
    worth starting them.

    `notice` hears of what went wrong and was put right, such as a worker that died.
    """
    experiment = context.experiment
    private = _only_in_this_process(experiment)
    if private and is_object(private):
        return _in_this_process(context, method, private, notice=notice)
    if experiment.engine in ("processes", "ray") and private:
        raise ConfigError(
            f"{private!r} is known to this process alone, so engine {experiment.engine} "
            "cannot use it: put it into a module"
        )
    if experiment.engine == "ray":
        from crad.engines.ray_cluster import RayEngine

        return RayEngine(context, workers=experiment.workers, address=experiment.ray_address, notice=notice)
    workers = min(count_workers(context), len(method.roster(context)))
    if private and workers > 1 and experiment.engine == "auto":
        notice(f"{private!r} is known to this process alone: one worker; put it into a module to use all cores")
    if experiment.engine == "serial" or (experiment.engine == "auto" and (workers == 1 or private)):
        return SerialEngine(context, method)
    if experiment.engine == "auto" and experiment.workers == "auto":
        from crad.engines.patient import PatientEngine

        return PatientEngine(context, method, workers=workers, notice=notice)
    from crad.engines.processes import ProcessEngine

    return ProcessEngine(context, workers=workers, notice=notice)


def _in_this_process(
    context: RunContext, method: Method, private: str, *, notice: Callable[[str], None]
) -> SerialEngine:
    """Return one process, and say why where more were to be had."""
    experiment = context.experiment
    if experiment.engine in ("processes", "ray") or min(count_workers(context), len(method.roster(context))) > 1:
        notice(
            f"{private.removeprefix(OBJECT)!r} is an object in this process's memory: one process instead of several; "
            "put it into a module and name it by import path to use all cores"
        )
    return SerialEngine(context, method)


def count_workers(context: RunContext) -> int:
    """Return how many processes a run on this machine uses: never more than clients that can work at once."""
    experiment = context.experiment
    if experiment.engine == "serial":
        return 1
    if experiment.workers != "auto":
        wanted = experiment.workers
    else:
        # A GPU is shared badly by processes; on a CPU one single-threaded process per core is the fastest.
        wanted = count_cores() if context.device == "cpu" else max(1, len(gpu_names(context.device)))
    return min(wanted, experiment.active or experiment.clients)


def count_cores() -> int:
    """Return the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on a Mac
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(cores, _container_cores() or cores))


def _container_cores() -> int | None:
    """Return what a container may use of the machine, None where there is no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def _only_in_this_process(experiment: Experiment) -> str | None:
    """Return a model or method of a script or notebook, or one passed in memory: no other process can import it."""
    names = (*experiment.models, experiment.method)
    return next((name for name in names if name.startswith("__main__:") or is_object(name)), None)
