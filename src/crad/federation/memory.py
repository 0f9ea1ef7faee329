"""Peak memory of this process, or of its GPU."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

from crad.learning.device import release_memory


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
