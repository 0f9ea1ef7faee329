"""What runs in a process of its own: memory is measured from the start, and two may compute at once.

    python -m benchmarks.child idle|run SETTINGS_AS_JSON
    python -m benchmarks.child gemm SECONDS

Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

import crad
from benchmarks.harness import GEMM_SIDE, gemm_work
from crad.config import Experiment
from crad.federation.memory import peak_memory_bytes
from crad.federation.world import build_world


def main() -> None:
    """Do what the first argument says."""
    what, argument = sys.argv[1:]
    answer = gemm(float(argument)) if what == "gemm" else memory(what, Experiment(**json.loads(argument)))
    print(json.dumps(answer), flush=True)


def memory(what: str, experiment: Experiment) -> dict[str, Any]:
    """Peak resident bytes of holding the data, or of a whole run."""
    torch.set_num_threads(1)
    if what == "idle":
        world = build_world(experiment)
        return {"peak_bytes": peak_memory_bytes("cpu"), "images": len(world.dataset.train_labels)}
    started = time.perf_counter()
    result = crad.run(experiment)
    # A run resets the counter when it begins; its rounds say what came after.
    peaks = [line["timing"]["peak_memory_bytes"] for line in result.rounds]
    return {"peak_bytes": max(*peaks, peak_memory_bytes("cpu")), "seconds": time.perf_counter() - started}


def gemm(seconds: float) -> dict[str, Any]:
    """Matrix products for so long, once told to begin; GFLOP/s."""
    torch.set_num_threads(1)
    work = gemm_work()
    work()
    print("ready", flush=True)
    sys.stdin.readline()
    started, products = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        work()
        products += 1
    return {"gflops": products * 2 * GEMM_SIDE**3 / passed / 1e9}


if __name__ == "__main__":
    main()
