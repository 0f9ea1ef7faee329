"""What crad-plus is made of: `python -m benchmarks.studies.choosing FOLDER [SEED,... [SETTING,... [KEY=VALUE,...]]]`.

A small federation, so that many settings and seeds can be had: the CIFAR-10 subset (CRAD_DATA) at 16x16, ten clients,
20 rounds, otherwise `mini`. Every part is taken out of the candidate or exchanged for another, one at a time. Accuracy
is the mean over the evaluated rounds of the last third, which is steadier than one round. Runs lie in FOLDER, none is
trained twice, and several of these commands share them. SETTING: some of the rows only, without liars. KEY=VALUE:
another world than the one above.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import crad
from crad.analysis.intervals import Paired, paired
from crad.config import RECIPES, Experiment, parse_pairs
from crad.errors import BusyError
from crad.paper.measures import MIN_SUPPORT
from crad.paper.plan import stored_run
from crad.runs.directory import RunDirectory
from crad.runs.records import Record

SEEDS = (11, 12, 13)

CANDIDATE: Mapping[str, Any] = {
    "method": "crad",
    "local_loss": "balanced",
    "evidence": "pooled",
    "filter": "weighted-consensus",
    "matching": "same",
}
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "candidate": CANDIDATE,
    "plain loss": {**CANDIDATE, "local_loss": "plain"},
    "reported evidence": {**CANDIDATE, "evidence": "reported"},
    "own evidence": {**CANDIDATE, "evidence": "own"},
    "filter median": {**CANDIDATE, "filter": "median"},
    "filter weighted-median": {**CANDIDATE, "filter": "weighted-median"},
    "filter weighted": {**CANDIDATE, "filter": "weighted"},
    "filter self-scaled": {**CANDIDATE, "filter": "self-scaled"},
    "filter support": {**CANDIDATE, "filter": "support"},
    "mixup": {**CANDIDATE, "matching": "mixup"},
    "crad as published": {"method": "crad"},
}
LIED_TO = ("candidate", "reported evidence", "own evidence", "filter median")
METRICS = ("global", "local", "rare-class")


@dataclass(frozen=True)
class Choice:
    """One setting in one world."""

    name: str
    liars: int

    def experiment(self, data: Path, seed: int, world: Mapping[str, Any]) -> Experiment:
        """Its run with one seed, in the study's world or a changed one."""
        settings = {**CHOICES[self.name], "liars": self.liars, **world}
        return Experiment(
            **{"preset": "mini", "dataset": str(data), "rounds": 20, "proxy_size": 0, "seed": seed, **settings},
            workers=1,
            engine="serial",
        )


def main(words: Sequence[str]) -> None:
    """Run what is missing, then print every choice minus the candidate, with 95 % intervals."""
    folder = Path(words[0])
    seeds = tuple(map(int, words[1].split(","))) if len(words) > 1 else SEEDS
    world = parse_pairs(words[3]) if len(words) > 3 else {}
    data = make_data(folder)
    choices = [Choice(name, 0) for name in CHOICES] + [Choice(name, 2) for name in LIED_TO]
    if len(words) > 2:
        wanted = {"candidate", *words[2].split(",")}
        choices = [choice for choice in choices if choice.name in wanted and not choice.liars]
    for seed in seeds:
        for choice in choices:
            run_missing(folder, choice.experiment(data, seed, world))
    paths = {
        choice: {seed: stored_run(folder, choice.experiment(data, seed, world)).path for seed in seeds}
        for choice in choices
    }
    found = {
        choice: {
            seed: late_accuracy(path) for seed, path in of_seeds.items() if RunDirectory(path).summary_file.is_file()
        }
        for choice, of_seeds in paths.items()
    }
    print(f"crad-plus is {RECIPES['crad-plus']}\n")
    show(found)


def make_data(folder: Path) -> Path:
    """The subset at half its sides, every pixel the mean of four."""
    path = folder / "cifar10-16.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        arrays = dict(np.load(Path(os.environ["CRAD_DATA"]) / "cifar10.npz"))
        for name in ("train_images", "test_images"):
            count, height, width, depth = arrays[name].shape
            blocks = arrays[name].reshape(count, height // 2, 2, width // 2, 2, depth)
            arrays[name] = blocks.mean(axis=(2, 4)).round().astype(np.uint8)
        beside = path.with_name(f".{os.getpid()}.npz")
        np.savez_compressed(beside, **arrays)
        beside.replace(path)
    return path


def run_missing(folder: Path, experiment: Experiment) -> None:
    """Train or continue it, unless it is done or another command works on it."""
    stored = stored_run(folder, experiment)
    if stored.state == "done" or RunDirectory(stored.path).is_busy:
        return
    try:
        crad.run(stored.experiment, output=stored.path, resume=stored.state == "begun")
    except BusyError:
        return
    print(f"{stored.label}: {late_accuracy(stored.path)}", flush=True)


def late_accuracy(run: Path) -> dict[str, float]:
    """Global, local and rare-class accuracy in percent, means over the evaluated rounds of the last third."""
    rounds = RunDirectory(run).rounds()
    late = [one for one in rounds[-(len(rounds) // 3) :] if one["global_accuracy"] is not None]
    return {
        "global": round(statistics.fmean(one["global_accuracy"] for one in late), 2),
        "local": round(statistics.fmean(one["local_accuracy"] for one in late), 2),
        "rare-class": round(statistics.fmean(map(_rare_class, late)), 2),
    }


def _rare_class(one: Record) -> float:
    return statistics.fmean(
        100 * hits / count
        for client in one["clients"]
        for held, hits, count in zip(
            client["validation"]["counts"], client["global"]["hits"], client["global"]["counts"], strict=True
        )
        if held < MIN_SUPPORT
    )


def show(found: Mapping[Choice, Mapping[int, Mapping[str, float]]]) -> None:
    """A Markdown table: means, and the paired difference to the candidate in the same world."""
    print("| setting | seeds |" + "".join(f" {metric} | Δ |" for metric in METRICS))
    print("|---|---:|" + "---:|---|" * len(METRICS))
    for choice, by_seed in found.items():
        if not by_seed:
            continue
        base = found[Choice("candidate", choice.liars)]
        cells = []
        for metric in METRICS:
            own = {seed: values[metric] for seed, values in by_seed.items()}
            cells.append(f"{statistics.fmean(own.values()):.2f}")
            difference = paired(own, {seed: values[metric] for seed, values in base.items()})
            cells.append("" if choice.name == "candidate" or difference is None else _shown(difference))
        lies = ", two of ten lie" if choice.liars else ""
        print(f"| {choice.name}{lies} | {len(by_seed)} | {' | '.join(cells)} |")


def _shown(difference: Paired) -> str:
    if difference.interval is None:
        return f"{difference.figure.mean:+.2f}"
    low, high = difference.interval
    return f"{difference.figure.mean:+.2f} ({low:+.2f} to {high:+.2f})"


if __name__ == "__main__":
    main(sys.argv[1:])
