"""What audits prove beside what is claimed: `python -m benchmarks.studies.audit FOLDER [heart|pathmnist [SEED,...]]`.

The worlds of `experiments/private.toml`, trained alone with canaries at every epsilon of that table; and once at
epsilon 4 with the noise switched off, which an audit must find. Claims are audited at delta 1e-5: at the 1e-3 that the
table has on heart nothing could be refuted. What is measured is appended to FOLDER/audit.jsonl, and nothing in it is
measured twice.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.studies.measured import add_line, read_lines
from crad.analysis.privacy_audit import audit_run
from crad.api import run
from crad.config import Experiment
from crad.training import private_step

EPSILONS = (8.0, 4.0, 2.0, 1.0)
BROKEN = 4.0  # the claim that is made while there is no noise
DELTA = 1e-5
CANARIES = {"heart": 400, "pathmnist": 1000}  # of each client: the smallest network on heart has 458 weights
SEEDS = (1, 2, 3)
PLAN = Path(__file__).parents[2] / "experiments" / "private.toml"


def main(words: Sequence[str]) -> None:
    """Measure what is missing, then print a table of all that is there."""
    folder, dataset = Path(words[0]), words[1] if len(words) > 1 else "heart"
    seeds = [int(one) for one in words[2].split(",")] if len(words) > 2 else SEEDS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "audit.jsonl"
    for seed in seeds:
        for epsilon, has_noise in [(BROKEN, False), *((one, True) for one in EPSILONS)]:
            key = {"dataset": dataset, "seed": seed, "epsilon": epsilon, "has_noise": has_noise}
            if not any(key.items() <= one.items() for one in read_lines(path)):
                add_line(path, {**key, **measure(dataset, seed, epsilon, has_noise=has_noise)})
    show(read_lines(path))


def measure(
    dataset: str, seed: int, epsilon: float, *, has_noise: bool, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Train alone with canaries and audit the run."""
    experiment = Experiment(
        **{
            **world(dataset),
            "private_training": epsilon,
            "seed": seed,
            "canaries": CANARIES[dataset],
            **(settings or {}),
        }
    )
    with tempfile.TemporaryDirectory() as kept, without_noise(not has_noise):
        run(experiment, output=Path(kept) / "run")
        audit = audit_run(Path(kept) / "run", delta=min(DELTA, experiment.delta))
    return {
        "canaries": audit.whole.canaries,
        "guesses": audit.whole.guesses,
        "correct": audit.whole.correct,
        "delta": audit.delta,
        "claimed": round(audit.whole.claimed_epsilon, 2),
        "lower_bound": round(audit.whole.epsilon_lower_bound, 2),
        "ceiling": round(audit.whole.ceiling, 2),
        "is_broken": bool(audit.broken),
    }


def world(dataset: str) -> dict[str, Any]:
    """Return the settings of the table's row at epsilon 4, on this data."""
    plan = tomllib.loads(PLAN.read_text(encoding="utf-8"))
    [column] = [one for one in plan["columns"] if one["name"] == dataset]
    [row] = [one for one in plan["rows"] if one["name"] == "local-4"]
    said = {**plan["settings"], **column["settings"], **row["settings"], **row["settings_in"].get(dataset, {})}
    without_limits = {name: None if value == "none" else value for name, value in said.items()}
    fixed = {"preset": "mini", "committee": False, "metrics": False, "engine": "serial", "workers": 1}
    return {**without_limits, **fixed}


def without_noise(is_off: bool) -> AbstractContextManager[object]:
    """Return a context in which private steps add nothing to their sums, where that is asked for."""
    if not is_off:
        return nullcontext()
    return mock.patch.object(private_step.torch, "randn", lambda shape, **_: torch.zeros(shape))


def show(found: Sequence[Mapping[str, Any]]) -> None:
    """Print a table: a line for every claim, a bound for every seed."""
    print("| data | claimed at the run's delta | at delta 1e-5 | proven, by seed | at most provable |")
    print("|---|---:|---:|---:|---:|")
    for dataset in CANARIES:
        for epsilon, has_noise in [*((one, True) for one in EPSILONS), (BROKEN, False)]:
            same = [
                one
                for one in found
                if (one["dataset"], one["epsilon"], one["has_noise"]) == (dataset, epsilon, has_noise)
            ]
            if not same:
                continue
            said = f"{epsilon:g}" + ("" if has_noise else ", the noise switched off")
            proven = ", ".join(f"{one['lower_bound']:.2f}" for one in sorted(same, key=lambda one: one["seed"]))
            print(f"| {dataset} | {said} | {same[0]['claimed']:.2f} | {proven} | {same[0]['ceiling']:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
