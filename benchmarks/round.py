"""One whole round of the full-width pool: `crad.run` on one process against the naive loop, round by round in turn."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

import crad
from benchmarks.data import cifar_like
from benchmarks.engine import computing_timed
from benchmarks.harness import (
    Section,
    Settings,
    TalkingChild,
    gemm_gflops,
    gemm_work,
    share_of_peak,
    speedup,
    stopwatch,
)
from crad.api import Hooks
from crad.config import Experiment

CLIENTS = 4


@dataclass
class Rounds:
    """What is gathered while the two run in turn."""

    naive_s: list[float] = field(default_factory=list)
    gemm_s: list[float] = field(default_factory=list)
    parts_s: list[dict[str, float]] = field(default_factory=list)
    loss_gaps: list[float] = field(default_factory=list)
    flops: int = 0


def run(settings: Settings) -> Section:
    """Rounds without test evaluation; the first one warms up and has its operations counted."""
    measured = settings.choose(3, 1)
    experiment = Experiment(
        dataset=cifar_like(settings.output),
        clients=CLIENTS,
        rounds=measured + 2,  # the first warms up, the last is tested
        eval_every=1000,
        train_limit=CLIENTS * settings.choose(120, 40),
        test_limit=10,
        proxy_size=0,
        partition="iid",
        device="cpu",
        engine="serial",
        workers=1,
    )
    gathered, result = _side_by_side(experiment, settings)
    seconds = [line["timing"]["seconds"] for line in result.rounds[1:-1]]
    return _section(experiment, gathered, seconds)


def _side_by_side(experiment: Experiment, settings: Settings) -> tuple[Rounds, crad.Result]:
    """A round of `crad.run`, the same round naively, a matrix product, and so on."""
    torch.set_num_threads(1)
    gemm, gathered = gemm_work(), Rounds()
    parts: defaultdict[str, float] = defaultdict(float)

    def naive_round(record: dict[str, Any]) -> None:
        index = record["round"]
        settings.say(f"round {index} of {experiment.rounds}: crad took {record['timing']['seconds']:.1f} s")
        if index < experiment.rounds:
            answer = naive.ask(str(index))
            gathered.flops = answer.get("flops", gathered.flops)
            if index > 1:
                gathered.parts_s.append(dict(parts))
                gathered.naive_s.append(answer["seconds"])
                gathered.gemm_s += [stopwatch(gemm) for _ in range(5)]
            totals = [client["losses"]["total"] for client in record["clients"]]
            gathered.loss_gaps += [abs(mine - its) for mine, its in zip(answer["losses"], totals, strict=True)]
        parts.clear()

    # In a process of its own: crad sets malloc for its process, and the naive loop must not profit from it.
    with TalkingChild("naive", experiment.model_dump_json()) as naive, computing_timed(parts):
        result = crad.run(experiment, hooks=Hooks(on_round=naive_round))
    return gathered, result


def _section(experiment: Experiment, gathered: Rounds, seconds: list[float]) -> Section:
    peak, ratio = gemm_gflops(gathered.gemm_s), speedup(gathered.naive_s, seconds)
    naive_s, crad_s = statistics.median(gathered.naive_s), statistics.median(seconds)
    beyond = [1 - sum(parts.values()) / total for parts, total in zip(gathered.parts_s, seconds, strict=True)]
    shares = {
        name: statistics.median(parts[name] / total for parts, total in zip(gathered.parts_s, seconds, strict=True))
        for name in gathered.parts_s[0]
    }
    rows = [
        ["naive loop", f"{naive_s:.1f}", "1", share_of_peak(gathered.flops, naive_s, peak)],
        ["crad.run, one process", f"{crad_s:.1f}", str(ratio), share_of_peak(gathered.flops, crad_s, peak)],
    ]
    spent = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
    return Section(
        "round",
        f"One round: {experiment.clients} clients of the full-width pool, {experiment.train_limit} images, one thread",
        ("what", "seconds", "ratio", "of GEMM peak (effective)"),
        rows,
        notes=[
            f"Of crad's round: {spent}; beyond pure computing {100 * statistics.median(beyond):.1f} % (target: at "
            f"most 3 %). {gathered.flops / 1e12:.2f} TFLOP a round, GEMM peak {peak:.0f} GFLOP/s. Largest difference "
            f"between the two in a client's mean loss: {max(gathered.loss_gaps):.1e}. Packing, checking and loading "
            "snapshots cost the same whatever the shard, so short shards overstate what is beyond pure computing."
        ],
        numbers=[
            {
                "naive_s": gathered.naive_s,
                "crad_s": seconds,
                "ratio": ratio.median,
                "flops": gathered.flops,
                "peak_gflops": peak,
                "parts_s": gathered.parts_s,
                "beyond_computing": statistics.median(beyond),
                "largest_loss_gap": max(gathered.loss_gaps),
            }
        ],
    )
