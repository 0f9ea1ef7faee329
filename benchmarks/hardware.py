"""The line that belongs beside every number."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch


def hardware_line() -> str:
    """Processor, cores, vector instructions, torch, date."""
    vectors = torch.backends.cpu.get_cpu_capability()
    return (
        f"{processor_name()}, {os.cpu_count()} cores, {vectors}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}"
    )


def processor_name() -> str:
    """As the system calls it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", maxsplit=1)[1].strip()
    return platform.processor() or platform.machine()
