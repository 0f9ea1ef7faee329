"""One independent random generator per purpose.

Every draw in a run comes from `stream(seed, "peer", 3, "round", 12, "shuffle")` or its torch twin. The
generator depends on the words alone, never on how many draws were made elsewhere, so a run can be resumed,
reordered or spread over processes and still give the same numbers.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


# What "fp32" is on GPUs from Ampere on: in convolutions 10 bits of mantissa, as torch has it and about eight times as
# fast; in matrix products all 23. Said here, so that neither torch nor a user's program decides it.
TF32 = {"convolutions": True, "matrix_products": False}


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a numpy generator for one purpose: `stream(1024, "partition")`."""
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose)))


def torch_stream(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a torch CPU generator for one purpose; draw on the CPU, then move, so that devices agree."""
    import torch

    generator = torch.Generator(device="cpu")
    generator.manual_seed(torch_seed(seed, *purpose))
    return generator


def torch_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose, for code that only takes a number."""
    return _key(seed, purpose) & (2**63 - 1)


def repeatable(seed: int, *purpose: str | int, device: str) -> ExitStack:
    """Give a block one CPU thread, deterministic kernels and torch's own generator seeded, `with repeatable(...):`.

    What was before is restored at its end. The seed is that of the purpose, or with no purpose the number itself.

    Sums over several threads are rounded differently, so the thread count would change the weights. One thread
    per client makes a serial run and one process per core agree to the last bit.
    """
    import torch

    number, cudnn = torch_seed(seed, *purpose) if purpose else seed, torch.backends.cudnn
    with ExitStack() as before:
        before.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        for name, value in (("deterministic", True), ("benchmark", False)):
            before.callback(setattr, cudnn, name, getattr(cudnn, name))
            setattr(cudnn, name, value)
        if device == "cuda":
            backends: dict[str, Any] = {"convolutions": cudnn, "matrix_products": torch.backends.cuda.matmul}
            for name, backend in backends.items():
                before.callback(setattr, backend, "allow_tf32", backend.allow_tf32)
                backend.allow_tf32 = TF32[name]
        # Our models draw nothing while they train, but a user's may have dropout.
        before.enter_context(forked_generators(device))
        torch.default_generator.manual_seed(number)
        if device == "cuda":
            torch.cuda.manual_seed_all(number)
        elif device == "mps":
            torch.mps.manual_seed(number)
        return before.pop_all()


def forked_generators(device: str) -> ExitStack:
    """Put torch's own generators, the CPU's and the device's, back at the end of a block as they were at its start."""
    import torch

    with ExitStack() as before:
        gpus = range(torch.cuda.device_count()) if device.startswith("cuda") else []
        before.enter_context(torch.random.fork_rng(devices=gpus))
        if device == "mps":
            before.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
        return before.pop_all()


def generator_state(device: torch.device) -> torch.Tensor:
    """Return the state of torch's own generator of a device: it moves with every draw."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else torch.get_rng_state()


def set_generator_state(device: torch.device, state: torch.Tensor) -> None:
    """Put torch's own generator of a device back to a state: what is drawn next is drawn again."""
    import torch

    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def _key(seed: int, purpose: tuple[str | int, ...]) -> int:
    # JSON keeps ("a", 12) and ("a1", 2) apart, and 3 from "3".
    words = json.dumps([int(seed), *purpose], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:16], "big")
