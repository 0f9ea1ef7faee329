"""What runs in a process of its own: memory is measured from the start, and two may compute at once.

    python -m benchmarks.child needed|read|run SETTINGS_AS_JSON
    python -m benchmarks.child naive SETTINGS_AS_JSON
    python -m benchmarks.child gemm SECONDS

Prints one line of JSON; `naive` one for every round number that it reads, `gemm` one for every line.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from typing import Any

import torch

import crad
from benchmarks.harness import GEMM_SIDE, gemm_work
from benchmarks.naive import NaiveFederation
from crad.config import Experiment
from crad.device import peak_memory_bytes
from crad.federation.context import build_run_context
from crad.federation.method import one_peer_per_client
from crad.federation.peer import Peer


def main() -> None:
    """Do what the first argument says."""
    what, argument = sys.argv[1:]
    torch.set_num_threads(1)
    if what == "gemm":
        gemm(float(argument))
        return
    experiment = Experiment(**json.loads(argument))
    if what == "naive":
        naive(experiment)
        return
    work = {"needed": work_with_active_models, "read": read_data, "run": whole_run}[what]
    print(json.dumps(work(experiment)), flush=True)


def whole_run(experiment: Experiment) -> dict[str, Any]:
    """Peak resident bytes and seconds of a run."""
    started = time.perf_counter()
    result = crad.run(experiment)
    # A run resets the counter when it begins; its rounds say what came after.
    peaks = [line["timing"]["peak_memory_bytes"] for line in result.rounds]
    return {"peak_bytes": max(*peaks, peak_memory_bytes("cpu")), "seconds": time.perf_counter() - started}


def read_data(experiment: Experiment) -> dict[str, Any]:
    """Peak resident bytes and seconds of reading and dividing the data."""
    started = time.perf_counter()
    build_run_context(experiment)
    return {"peak_bytes": peak_memory_bytes("cpu"), "seconds": time.perf_counter() - started}


def work_with_active_models(experiment: Experiment) -> dict[str, Any]:
    """Hold as many models as are active, each with its momentum, and one frozen teacher; one batch through each.

    Peak resident bytes when there was only the data, and in the end.
    """
    context = build_run_context(experiment)
    idle_bytes = peak_memory_bytes("cpu")
    members = one_peer_per_client(context)[: experiment.active]
    peers = [Peer(context, member) for member in members]
    batch = context.data.preprocessor.inputs(
        context.data.samples(context.data.shards[0].train).samples[: experiment.batch_size]
    )
    batch = batch.repeat(-(-experiment.batch_size // len(batch)), 1, 1, 1)[: experiment.batch_size]
    teacher = copy.deepcopy(peers[0].model).eval()  # of the largest architecture
    for peer in peers:
        with torch.no_grad():
            target = torch.softmax(teacher(batch), dim=1)
        loss = torch.nn.functional.cross_entropy(peer.model(batch), target)
        peer.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        peer.optimizer.step()
        peer.optimizer.zero_grad(set_to_none=True)
    return {"idle_bytes": idle_bytes, "peak_bytes": peak_memory_bytes("cpu")}


def naive(experiment: Experiment) -> None:
    """Rounds of the naive loop as they are asked for, with the C library's own malloc, as one would run it first."""
    federation = NaiveFederation(experiment)
    for line in sys.stdin:
        started = time.perf_counter()
        losses = federation.run_round(int(line))
        print(json.dumps({"losses": losses, "seconds": time.perf_counter() - started}), flush=True)


def gemm(seconds: float) -> None:
    """Matrix products for so long, each time it is told to begin; GFLOP/s. The first line says that it is ready."""
    work = gemm_work()
    work()
    print("{}", flush=True)
    for _ in sys.stdin:
        started, products = time.perf_counter(), 0
        while (passed := time.perf_counter() - started) < seconds:
            work()
            products += 1
        print(json.dumps({"gflops": products * 2 * GEMM_SIDE**3 / passed / 1e9}), flush=True)


if __name__ == "__main__":
    main()
