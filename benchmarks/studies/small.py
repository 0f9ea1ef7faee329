"""At which rate preset `small` trains: `python -m benchmarks.studies.small FOLDER [KEY=VALUE,...]`.

`local` and `centralized` on CIFAR-10 (CRAD_DATA) under every candidate, by the protocol in docs/small.md. Only
validation halves are looked at. Each finished run is a line of FOLDER/choice.jsonl; runs lie in FOLDER/runs, none is
trained twice, and the same command again continues. Several of them share FOLDER. KEY=VALUE: another world, for a
trial, or workers=1.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import crad
from benchmarks.studies.measured import add_line, read_lines
from crad.config import Experiment, parse_pairs
from crad.errors import BusyError
from crad.paper.plan import StoredRun, stored_run
from crad.runs.directory import RunDirectory

MEASURED = "choice.jsonl"
SEED = 101  # no table has it
METHODS = ("local", "centralized")
LAST = 5  # evaluated rounds whose mean counts
EQUAL = 1.0  # points within which candidates are taken for equal
WORLD: Mapping[str, Any] = {
    "preset": "small",
    "dataset": "cifar10",
    "clients": 10,
    "alpha": 0.3,
    "seed": SEED,
    "test_limit": 100,  # tested they are, but nobody looks
    "committee": False,
    "metrics": False,
}
WARM: Mapping[str, Any] = {"lr_schedule": "cosine", "warmup_rounds": 3}
STEADY: Mapping[str, Any] = {"lr_schedule": "constant", "warmup_rounds": 0}
# In the order of preference: where two are equal, the first one is taken.
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "0.01": {"lr": 0.01, **STEADY},
    "0.02": {"lr": 0.02, **STEADY},
    "0.03": {"lr": 0.03, **STEADY},
    "0.03, cosine": {"lr": 0.03, **WARM},
    "0.06, cosine": {"lr": 0.06, **WARM},
    "0.1, cosine": {"lr": 0.1, **WARM},
}


def main(words: Sequence[str]) -> None:
    """Run what is missing, then print the table and what the rule decides."""
    folder, world = Path(words[0]), {**WORLD, **(parse_pairs(words[1]) if len(words) > 1 else {})}
    folder.mkdir(parents=True, exist_ok=True)
    planned = [
        (name, method, stored_run(folder, Experiment(**{**world, **settings, "method": method})))
        for name, settings in CANDIDATES.items()
        for method in METHODS
    ]
    for name, method, run in planned:
        if run.key not in {one["key"] for one in read_lines(folder / MEASURED)} and finish(run):
            measured = {"key": run.key, "name": name, "method": method, **measure(run.path)}
            if run.key not in {one["key"] for one in read_lines(folder / MEASURED)}:  # by another command, meanwhile
                add_line(folder / MEASURED, measured)
    keys = {run.key for _, _, run in planned}
    show([one for one in read_lines(folder / MEASURED) if one["key"] in keys])


def finish(run: StoredRun) -> bool:
    """Train or continue it; tell whether it is done, which it is not while another command works on it."""
    if run.state != "done":
        try:
            crad.run(run.experiment, output=run.path, resume=run.state == "begun")
        except BusyError:
            return False
    return True


def measure(path: Path) -> dict[str, Any]:
    """Return how a run does on validation halves, mean of its last evaluated rounds, and what it cost."""
    run = RunDirectory(path)
    tested = [one["validation_accuracy"] for one in run.rounds() if one["local_accuracy"] is not None]
    summary = run.summary()
    return {
        "validation_accuracy": round(statistics.fmean(tested[-LAST:]), 2),
        "rounds_averaged": len(tested[-LAST:]),
        "round_seconds": round(summary["round_seconds"], 1),
        "peak_memory_bytes": summary["peak_memory_bytes"],
        "processor": summary["hardware"]["processor"],
        "workers": summary["hardware"]["workers"],
        "torch": summary["versions"]["torch"],
    }


def decide(accuracies: Mapping[str, Mapping[str, float]]) -> str:
    """Return the candidate that the rule takes, from percent by candidate and method.

    The constant rate with the highest mean of both methods; a falling one only where `local` gains a point or more over
    it and the mean does not lose. Of those within a point of the best the first one is taken.
    """
    scores = {name: statistics.fmean(of.values()) for name, of in accuracies.items()}
    steady = _first_of_best({name: score for name, score in scores.items() if name not in _falling()})
    better = {
        name: score
        for name, score in scores.items()
        if name in _falling()
        and accuracies[name]["local"] >= accuracies[steady]["local"] + EQUAL
        and score >= scores[steady]
    }
    return _first_of_best(better) if better else steady


def _falling() -> list[str]:
    return [name for name, settings in CANDIDATES.items() if settings["lr_schedule"] != "constant"]


def _first_of_best(scores: Mapping[str, float]) -> str:
    near = {name for name, score in scores.items() if score > max(scores.values()) - EQUAL}
    return next(name for name in CANDIDATES if name in near)


def show(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print a Markdown table, and the decision once every candidate has both methods."""
    print("", *table(lines), sep="\n")
    missing = len(CANDIDATES) * len(METHODS) - len({(one["name"], one["method"]) for one in lines})
    print(
        f"\n{missing} runs are missing: nothing is decided" if missing else f"\nDecided: {decide(by_candidate(lines))}"
    )


def by_candidate(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the accuracies of every candidate by method."""
    found: dict[str, dict[str, float]] = {name: {} for name in CANDIDATES}
    for one in lines:
        found[one["name"]][one["method"]] = one["validation_accuracy"]
    return found


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the candidates with accuracy, pace and memory of both methods, as Markdown."""
    of = {(one["name"], one["method"]): one for one in lines}
    made = [
        "| rate | local | centralized | mean | seconds a round | peak memory, MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, accuracies in by_candidate(lines).items():
        own = [of[name, method] for method in METHODS if (name, method) in of]
        cells = [f"{accuracies[method]:.2f}" if method in accuracies else "-" for method in METHODS]
        cells.append(f"{statistics.fmean(accuracies.values()):.2f}" if len(own) == len(METHODS) else "-")
        cells.append(" / ".join(f"{one['round_seconds']:.1f}" for one in own) or "-")
        cells.append(" / ".join(f"{one['peak_memory_bytes'] / 1e6:.0f}" for one in own) or "-")
        made.append(f"| {name} | {' | '.join(cells)} |")
    return made


if __name__ == "__main__":
    main(sys.argv[1:])
