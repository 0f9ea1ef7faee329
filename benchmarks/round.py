"""One whole round of the full-width pool: `crad.run` on one process against the naive loop, round by round in turn."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import torch

import crad
from benchmarks.data import cifar_like, models_for
from benchmarks.harness import (
    Section,
    Settings,
    TalkingChild,
    count_flops,
    gemm_gflops,
    gemm_work,
    share_of_peak,
    speedup,
    stopwatch,
)
from crad.config import Experiment
from crad.device import ComputePart, computing_timed
from crad.federation.context import RunContext, build_run_context
from crad.federation.peer import new_model
from crad.models import Architecture
from crad.runs.callbacks import LambdaCallback

PAPER_SHARD = 5000  # images a client has with CIFAR-10 among ten
CLIENTS = 10  # as in the paper: nine teachers are three quarters of the naive loop's work


@dataclass
class Rounds:
    """What is gathered while the two run in turn."""

    naive_s: list[float] = field(default_factory=list)
    gemm_s: list[float] = field(default_factory=list)
    parts_s: list[dict[ComputePart, float]] = field(default_factory=list)
    loss_gaps: list[float] = field(default_factory=list)


def run(settings: Settings) -> Section:
    """Two rounds of both, in turn; ten test images, so that the test of the last round costs next to nothing."""
    clients = settings.choose(CLIENTS, CLIENTS, 3)
    experiment = Experiment(
        dataset=cifar_like(settings),
        clients=clients,
        rounds=2,
        eval_every=1000,
        train_limit=clients * settings.choose(400, 50, 20),
        width=settings.choose(1.0, 1.0, 0.125),
        models=models_for(settings),
        test_limit=10,
        proxy_size=0,
        partition="iid",
        device="cpu",
        engine="serial",
        workers=1,
    )
    gathered, result = _side_by_side(experiment, settings)
    seconds = [line["timing"]["seconds"] for line in result.rounds]
    return _section(experiment, gathered, seconds)


def round_flops(experiment: Experiment) -> int:
    """Operations of a round as the naive loop does it; a training step counts as three forward passes."""
    context = build_run_context(experiment)
    architectures = [context.architecture_of(client) for client in range(experiment.clients)]
    forward = {architecture: _forward_flops(context, architecture) for architecture in set(architectures)}
    everybody = sum(forward[architecture] for architecture in architectures)
    total = 0
    for architecture, shard in zip(architectures, context.data.shards, strict=True):
        own = forward[architecture]
        total += len(shard.train) * (everybody - own + 3 * own) + len(shard.validation) * own
    return total


def _forward_flops(context: RunContext, architecture: Architecture) -> int:
    model = new_model(context, architecture, seed=0).eval()
    images = torch.zeros(1, context.data.dataset.in_channels, *context.data.dataset.image_size)
    return count_flops(lambda: model(images))


def _side_by_side(experiment: Experiment, settings: Settings) -> tuple[Rounds, crad.Result]:
    """A round of `crad.run`, the same round naively, a matrix product, and so on."""
    torch.set_num_threads(1)
    gemm, gathered = gemm_work(), Rounds()
    parts: dict[ComputePart, float] = {}

    def naive_round(record: dict[str, Any]) -> None:
        index = record["round"]
        settings.say(f"round {index} of {experiment.rounds}: crad took {record['timing']['seconds']:.1f} s")
        gathered.parts_s.append(dict(parts))
        answer = naive.ask(str(index))
        settings.say(f"round {index} of {experiment.rounds}: the naive loop took {answer['seconds']:.1f} s")
        gathered.naive_s.append(answer["seconds"])
        gathered.gemm_s += [stopwatch(gemm) for _ in range(5)]
        totals = [client["losses"]["total"] for client in record["clients"]]
        gathered.loss_gaps += [abs(mine - its) for mine, its in zip(answer["losses"], totals, strict=True)]
        parts.clear()

    # In a process of its own: crad sets malloc for its process, and the naive loop must not profit from it.
    with TalkingChild("naive", experiment.model_dump_json()) as naive, computing_timed(parts):
        result = crad.run(experiment, callbacks=[LambdaCallback(on_round=naive_round)])
    return gathered, result


def _section(experiment: Experiment, gathered: Rounds, seconds: list[float]) -> Section:
    peak, ratio = gemm_gflops(gathered.gemm_s), speedup(gathered.naive_s, seconds)
    flops, per_client = round_flops(experiment), (experiment.train_limit or 0) // experiment.clients
    pairs = list(zip(gathered.parts_s, seconds, strict=True))
    naive_s, crad_s = statistics.median(gathered.naive_s), statistics.median(seconds)
    rest = statistics.median(1 - sum(parts.values()) / total for parts, total in pairs)
    at_full = rest / (rest + (1 - rest) * PAPER_SHARD / per_client)
    shares = {
        name: statistics.median(parts.get(name, 0.0) / total for parts, total in pairs) for name in gathered.parts_s[0]
    }
    rows = [
        ["naive loop", f"{naive_s:.1f}", "1", share_of_peak(flops, naive_s, peak)],
        ["crad.run, one process", f"{crad_s:.1f}", str(ratio), share_of_peak(flops, crad_s, peak)],
    ]
    spent = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
    return Section(
        "round",
        f"One round: {experiment.clients} clients of width {experiment.width:g}, {experiment.train_limit} images, "
        "one thread",
        ("what", "seconds", "ratio", "of GEMM peak (effective)"),
        rows,
        notes=[
            f"Of crad's round: {spent}; beyond pure computing {100 * rest:.1f} %. That rest is writing, checking, "
            f"loading and preparing snapshots and costs the same whatever the shard: {rest * crad_s:.1f} s here "
            f"with {per_client} images a client, {100 * at_full:.1f} % of a round with the paper's {PAPER_SHARD}.",
            f"{flops / 1e12:.2f} TFLOP a round, GEMM peak {peak:.0f} GFLOP/s. Largest difference between the two in a "
            f"client's mean loss: {max(gathered.loss_gaps):.1e}.",
        ],
        numbers=[
            {
                "naive_s": gathered.naive_s,
                "crad_s": seconds,
                "ratio": ratio.median,
                "flops": flops,
                "peak_gflops": peak,
                "parts_s": gathered.parts_s,
                "beyond_computing": rest,
                "beyond_computing_at_paper_shard": at_full,
                "largest_loss_gap": max(gathered.loss_gaps),
            }
        ],
    )
