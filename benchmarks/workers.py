"""Two worker processes against one, beside what two processes can gain at all on this machine."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

import crad
from benchmarks.data import cifar_like, models_for
from benchmarks.harness import Ratio, Section, Settings, TalkingChild, speedup
from crad.config import Experiment


def run(settings: Settings) -> Section:
    """The same run with one and two workers, in turn; the ceiling is measured before every pair."""
    pairs = settings.choose(3, 1, 1)
    ceilings, seconds, is_same = [], {1: [], 2: []}, True  # type: ignore[var-annotated]
    for pair in range(pairs):
        settings.say(f"pair {pair + 1} of {pairs}")
        ceilings.append(two_process_ceiling(settings.choose(5.0, 2.0, 0.1)))
        results = {workers: crad.run(_experiment(settings, workers)) for workers in (1, 2)}
        for workers, result in results.items():
            seconds[workers] += [line["timing"]["seconds"] for line in result.rounds[1:-1]]
        is_same = is_same and _without_timing(results[1]) == _without_timing(results[2])
    ratio = speedup(seconds[1], seconds[2])
    medians = {workers: statistics.median(values) for workers, values in seconds.items()}
    agreement = "agree to the last digit" if is_same else "DIFFER"
    return _section(ceilings, ratio, notes=[f"The records of both runs {agreement}."], medians=medians)


def _section(ceilings: list[float], ratio: Ratio, *, notes: list[str], medians: dict[int, float]) -> Section:
    ceiling = statistics.median(ceilings)
    of_ceiling = f"{100 * ratio.median / ceiling:.0f} %"
    rows = [
        ["two plain GEMM processes (the ceiling)", "", "", f"{ceiling:.2f}", "100 %"],
        ["crad.run", f"{medians[1]:.1f}", f"{medians[2]:.1f}", str(ratio), of_ceiling],
    ]
    return Section(
        "workers",
        "Two processes against one",
        ("what", "one, s a round", "two, s a round", "ratio", "of the ceiling"),
        rows,
        notes=notes,
        numbers=[{"ceilings": ceilings, "ratio": ratio.median, "seconds": medians}],
    )


def _experiment(settings: Settings, workers: int) -> Experiment:
    return Experiment(
        dataset=cifar_like(settings),
        clients=settings.choose(6, 6, 2),
        rounds=settings.choose(4, 3, 3),  # the first warms up, the last is tested
        eval_every=1000,
        train_limit=settings.choose(1200, 480, 40),
        test_limit=10,
        proxy_size=0,
        partition="iid",
        width=settings.choose(0.5, 0.5, 0.125),
        models=models_for(settings),
        device="cpu",
        workers=workers,
    )


def _without_timing(result: crad.Result) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "timing"} for line in result.rounds]


def two_process_ceiling(seconds: float) -> float:
    """How much more two single-thread processes multiply at once than one alone: at most 2, less on a busy machine."""
    with ExitStack() as stack:
        children = [stack.enter_context(TalkingChild("gemm", str(seconds))) for _ in range(2)]
        for child in children:
            child.hear()  # ready: importing torch is over
        alone = children[0].ask("go")["gflops"]
        for child in children:
            child.tell("go")
        return float(sum(child.hear()["gflops"] for child in children) / alone)
