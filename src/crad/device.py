"""Where to compute, and how to make it repeatable there."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from crad.config import Device
from crad.errors import ConfigError


def choose_device(wanted: Device) -> str:
    """The device to use; `auto` takes CUDA, then MPS, then the CPU."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if available[name])
    if not available[wanted]:
        present = ", ".join(name for name, is_there in available.items() if is_there)
        raise ConfigError(f"device {wanted!r} is not available on this machine; available: {present}")
    return wanted


# Freed activations stay with the process instead of being returned and faulted in again by the next batch.
MALLOC_SETTINGS = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
_MALLOPT_CODES = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_MAX_": -4}


def tune_malloc() -> bool:
    """The same settings for a process that is already running, where the C library is glibc."""
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


@contextmanager
def repeatable(seed: int, device: str) -> Iterator[None]:
    """Run a block with one CPU thread, deterministic kernels and torch's own generator seeded; then restore.

    Sums over several threads are rounded differently, so the thread count would change the weights. One thread
    per client makes a serial run and one process per core agree to the last bit.
    """
    threads = torch.get_num_threads()
    cudnn = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        # Our models draw nothing while they train, but a user's may have dropout.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if device == "cuda" else []):
            torch.default_generator.manual_seed(seed)
            if device == "cuda":
                torch.cuda.manual_seed_all(seed)
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
