"""Peak memory of this process, or of its GPU."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

from crad.device import release_memory


def reset_peak_memory(device: str) -> None:
    """Start measuring anew, where the system can; elsewhere the peak is that of the whole process."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    release_memory()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(device: str) -> int:
    """The highest resident memory since the reset; on CUDA the highest allocated there."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_memory_bytes(device: str) -> int | None:
    """What a program can still have on this device, None where the system does not say."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, _left_in_container())
    return None


def _left_in_container() -> int:
    """Of the limit that a container has; no limit is a very large number."""
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no such files, or the word "max"
        most = int((group / "memory.max").read_text())
        return max(0, most - int((group / "memory.current").read_text()))
    return sys.maxsize
