"""Where to compute, how much memory it takes, and how long the pure computing."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from crad.config import Device
from crad.errors import ConfigError


def choose_device(wanted: Device) -> str:
    """Return the device to use; `auto` takes CUDA, then MPS, then the CPU."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if available[name])
    if not available[wanted]:
        present = ", ".join(name for name, is_there in available.items() if is_there)
        raise ConfigError(f"device {wanted!r} is not available on this machine; available: {present}")
    return wanted


def visible_gpus() -> list[str]:
    """Return, for each GPU that this process sees, the CUDA_VISIBLE_DEVICES with which another sees it alone."""
    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in named.split(",") if name.strip()] or [str(number) for number in range(count)]
    return names[:count]


def gpu_names(device: str) -> list[str]:
    """Return the GPUs that this process sees, by name, where it computes on them."""
    return (
        [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if device == "cuda" else []
    )


def kinds_notice(gpus: Sequence[str]) -> str | None:
    """Return what to say of GPUs of several kinds; None: all are alike."""
    kinds = sorted(set(gpus))
    if len(kinds) < 2:
        return None
    return f"GPUs of several kinds ({', '.join(kinds)}): last bits depend on which of them serves whom"


def as_double(tensor: Tensor) -> Tensor:
    """Return a tensor as float64: where it is, or on the CPU if its device has no such numbers (MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device had no memory left: CUDA has a class for that, MPS only words."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


# Freed activations stay with the process instead of being returned and faulted in again by the next batch.
MALLOC_SETTINGS = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
_MALLOPT_CODES = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_MAX_": -4}


def tune_malloc() -> bool:
    """Apply the same settings to a process that is already running, where the C library is glibc."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    limit = 2**31 - 1  # mallopt takes a C int
    return all(mallopt(_MALLOPT_CODES[name], min(int(value), limit)) for name, value in MALLOC_SETTINGS.items())


def release_memory() -> None:
    """Give back to the system what is free: before a run that shall not count what an earlier one held."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def reset_peak_memory(device: str) -> None:
    """Start measuring again, where the system can; elsewhere the peak is that of the whole process."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    release_memory()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(device: str) -> int:
    """Return the highest resident memory since the reset; on CUDA the highest allocated there."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class MemoryPeaks(NamedTuple):
    """The highest memory of a process, or of several together."""

    device_bytes: int  # where it computes: on GPUs that have a memory of their own, else the resident memory
    host_bytes: int | None  # beside such GPUs; None where there are none


def memory_peaks(device: str) -> MemoryPeaks:
    """Return the highest memory since the reset, on a device and beside it."""
    return MemoryPeaks(peak_memory_bytes(device), peak_memory_bytes("cpu") if device == "cuda" else None)


def available_memory_bytes(device: str) -> int | None:
    """Return what a program can still have on this device, None where the system does not say."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    if device == "mps":
        return max(0, int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory()))
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, _left_in_container())
    return None


def resident_bytes(device: str) -> int:
    """Return how much may stay on a GPU for later, of data or of prepared teachers: a quarter of what is free now.

    Zero on the CPU, whose memory holds the data already.
    """
    return 0 if device == "cpu" else (available_memory_bytes(device) or 0) // 4


def _left_in_container() -> int:
    """Of the limit that a container has; no limit is a very large number."""
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no such files, or the word "max"
        most = int((group / "memory.max").read_text())
        return max(0, most - int((group / "memory.current").read_text()))
    return sys.maxsize


ComputePart = Literal["teachers", "student", "evaluation"]  # what the pure computing of a round consists of


class _Stopwatch:
    """Where the pure computing of a round is timed: `with stopwatch.part("teachers"):`.

    Unless somebody listens, a part is `nullcontext` and costs nothing.
    """

    def __init__(self) -> None:
        self.part: Callable[[ComputePart], AbstractContextManager[object]] = nullcontext


stopwatch = _Stopwatch()


@contextmanager
def computing_timed(seconds: MutableMapping[ComputePart, float]) -> Iterator[None]:
    """Add up, by part, the seconds that the threads of this process compute in this block, one at a time."""
    is_running = False

    @contextmanager
    def timed(part: ComputePart) -> Iterator[None]:
        nonlocal is_running
        if is_running:  # evaluation may run a prepared teacher: its time counts once, under the outer part
            yield
            return
        started, is_running = time.perf_counter(), True
        try:
            yield
        finally:
            is_running = False
            seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - started

    before, stopwatch.part = stopwatch.part, timed
    try:
        yield
    finally:
        stopwatch.part = before
