"""Which settings make a better student: `python -m benchmarks.studies.rule FOLDER [DATA [SEED,... [NAME;...]]]`.

Candidates for `crad-plus`, by the protocol in docs/choosing-the-rule.md, where they were written down before any of
them ran. The yardstick is the accuracy of a client's student on the validation halves of all other clients, the mean
over the last rounds: what is measured on test images at the end of a run is not looked at. A line is appended to
FOLDER/rule.jsonl for each run that is done, and nothing in it is measured twice: the same command goes on after an
interruption. What lost is dropped: it is in the tables of what was measured, and cannot be run any more.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.measured import add_line, read_lines
from benchmarks.studies.student import logits_of_model, others_accuracy
from crad.analysis.intervals import paired
from crad.config import Experiment
from crad.config.older_names import HAS_DROPPED
from crad.engines.serial import SerialEngine
from crad.errors import ConfigError, unknown_name
from crad.federation.context import RunContext, build_run_context
from crad.federation.exchange import MemoryExchange
from crad.federation.peer import Peer
from crad.federation.roster import PeerSlot, Roster
from crad.federation.rounds import RoundRunner
from crad.federation.tasks import load_tensors
from crad.methods import check_recipe, resolve_method

MEASURED = "rule.jsonl"
SEEDS = (101, 102, 103)
ROUNDS, MEASURED_ROUNDS = 30, 5
# As in docs/student.md: half of every shard is held out, so that a quarter of all images measures.
WORLD: Mapping[str, Any] = {
    "preset": "mini",
    "clients": 5,
    "resize": 16,
    "train_limit": 2900,
    "held_out": 0.5,
    "proxy_size": 0,
    "test_limit": 100,
    "rounds": ROUNDS,
    "eval_every": ROUNDS,
    "committee": False,
    "metrics": False,
    "engine": "serial",
}
DATA = ("cifar10", "pathmnist")
JUDGED = ("accuracy", "own")
GAIN, OWN_LOSS, AHEAD = 1.5, 2.0, 5  # points, points, pairs of six: docs/choosing-the-rule.md
BASELINE = "crad-plus"
PLUS: Mapping[str, Any] = {"method": "crad-plus"}
PLAIN: Mapping[str, Any] = {"local_loss": "plain", "teacher_prior": "remove"}
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    # To compare with.
    "local, balanced loss": {"method": "local", "local_loss": "balanced"},
    "crad": {"method": "crad"},
    "uniform, balanced loss": {"method": "uniform", "local_loss": "balanced"},
    BASELINE: PLUS,
    # Each one change of crad-plus.
    "average 0.5": {**PLUS, "snapshot_average": 0.5},
    "average 0.8": {**PLUS, "snapshot_average": 0.8},
    "missing classes 2": {**PLUS, "missing_weight": 2.0},
    "missing classes 4": {**PLUS, "missing_weight": 4.0},
    "calibrated": {**PLUS, "calibration": "temperature"},
    "log pooling": {**PLUS, "pooling": "log"},
    "calibrated, log pooling": {**PLUS, "calibration": "temperature", "pooling": "log"},
    "priors removed": {**PLUS, **PLAIN},
    "support-all, priors removed": {"method": "support-all", **PLAIN},
    "lambda rising": {**PLUS, "distill_schedule": "rising"},
    "lambda falling": {**PLUS, "distill_schedule": "falling"},
    "lambda by class 0.5": {**PLUS, "distill_by_class": 0.5},
    "lambda by class 1": {**PLUS, "distill_by_class": 1.0},
    "both of two": {**PLUS, "filter": "consensus-of-three"},
}
COMPARED = ("local, balanced loss", "crad", "uniform, balanced loss", BASELINE)
CHANGES = tuple(name for name in CANDIDATES if name not in COMPARED)
DROPPED = (
    *("average 0.5", "average 0.8", "calibrated", "log pooling", "calibrated, log pooling"),
    *("lambda falling", "lambda by class 0.5", "lambda by class 1", "both of two"),
)


def main(words: Sequence[str]) -> None:
    """Measure what is missing, then print tables of all that is there."""
    folder, dataset = Path(words[0]), words[1] if len(words) > 1 else "cifar10"
    seeds = [int(one) for one in words[2].split(",")] if len(words) > 2 else SEEDS
    names = words[3].split(";") if len(words) > 3 else [name for name in CANDIDATES if name not in DROPPED]
    for name in names:
        if name not in CANDIDATES:
            raise unknown_name("candidate", name, CANDIDATES)
        if name in DROPPED:
            raise ConfigError(f"candidate {name!r} lost and was dropped: run it at commit {HAS_DROPPED}")
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for name in names:
            if (dataset, seed, name) not in {key_of(one) for one in read(folder)}:
                found = measure(Experiment(**{**WORLD, **CANDIDATES[name], "dataset": dataset, "seed": seed}))
                if (dataset, seed, name) not in {key_of(one) for one in read(folder)}:  # another command may be as far
                    add_line(folder / MEASURED, {"dataset": dataset, "seed": seed, "name": name, **found})
    show(read(folder))


def measure(experiment: Experiment) -> dict[str, Any]:
    """Train all clients, and return how their students do on each other's validation halves in the last rounds."""
    context, started = build_run_context(experiment), time.process_time()
    method = resolve_method(experiment.method, experiment.method_settings)
    check_recipe(experiment, method)
    rows: list[list[dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as kept:
        roster = Roster(context, method.roster(context), Path(kept))
        runner = RoundRunner(method, roster, exchange=MemoryExchange(), engine=SerialEngine(context, method))
        for done in runner.run():
            if done.index > experiment.rounds - MEASURED_ROUNDS:
                rows.append([accuracies_of(context, slot) for slot in roster])
    seconds = time.process_time() - started
    clients = [
        {name: statistics.fmean(one[client][name] for one in rows) for name in rows[0][client]}
        for client in range(len(rows[0]))
    ]
    means = {name: round(statistics.fmean(one[name] for one in clients), 2) for name in clients[0]}
    each = [round(one["accuracy"], 2) for one in clients]
    return {**means, "clients": each, "processor_seconds": round(seconds, 1)}


def accuracies_of(context: RunContext, slot: PeerSlot) -> dict[str, float]:
    """Return a client's accuracies in percent: on the others' validation halves, and on its own."""
    peer = Peer(context, slot.member)
    if slot.state is not None:
        peer.load_state(load_tensors(slot.state), slot.measured, with_optimizer=False)
    return {
        "accuracy": others_accuracy(peer, logits_of_model(peer)),
        "own": statistics.fmean(score.accuracy for score in slot.measured.validation),
    }


def key_of(line: Mapping[str, Any]) -> tuple[str, int, str]:
    """Return which run a line is of."""
    return line["dataset"], line["seed"], line["name"]


def read(folder: Path) -> list[dict[str, Any]]:
    """Return what was measured."""
    return read_lines(folder / MEASURED)


def show(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print a Markdown table for each data set, and what the rule decides once every run is there."""
    for dataset in sorted({one["dataset"] for one in lines}):
        print("", *table(lines, dataset), sep="\n")
    missing = len(CANDIDATES) * len(SEEDS) * len(DATA) - len({key_of(one) for one in lines} & set(planned()))
    print(f"\n{missing} runs are missing: nothing is decided" if missing else f"\nDecided: {said(winners(lines))}")


def planned() -> list[tuple[str, int, str]]:
    """Return every run of the protocol."""
    return [(dataset, seed, name) for dataset in DATA for seed in SEEDS for name in CANDIDATES]


def said(names: Sequence[str]) -> str:
    """Return the winners in words."""
    return ", ".join(names) or f"nobody wins, {BASELINE} stays what it is"


def table(lines: Sequence[Mapping[str, Any]], dataset: str) -> list[str]:
    """Return a data set's candidates by seed, and what each has more than the baseline, as Markdown."""
    of = {(one["name"], one["seed"]): one for one in lines if one["dataset"] == dataset}
    seeds = sorted({seed for _, seed in of})
    base = {seed: of[BASELINE, seed]["accuracy"] for seed in seeds if (BASELINE, seed) in of}
    made = [
        f"| {dataset} | " + " | ".join(map(str, seeds)) + f" | mean | over {BASELINE} | own | average | s |",
        "|---|" + "---:|" * (len(seeds) + 5),
    ]
    for name in CANDIDATES:
        if own := {seed: of[name, seed] for seed in seeds if (name, seed) in of}:
            made.append(f"| {name} | " + " | ".join(row_of(name, own, base, seeds)) + " |")
    return made


def winners(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the candidates that the rule of decision lets into the recipe, by the protocol in the docs.

    On both data sets `GAIN` points above the baseline by the mean and not more than `OWN_LOSS` below it on own samples;
    ahead in at least `AHEAD` of all pairs.
    """
    of = {key_of(one): one for one in lines}
    found = []
    for name in CHANGES:
        more = {
            (dataset, seed): {key: of[dataset, seed, name][key] - of[dataset, seed, BASELINE][key] for key in JUDGED}
            for dataset in DATA
            for seed in SEEDS
        }
        means = [
            {key: statistics.fmean(more[dataset, seed][key] for seed in SEEDS) for key in JUDGED} for dataset in DATA
        ]
        is_ahead = sum(one["accuracy"] > 0 for one in more.values()) >= AHEAD
        if is_ahead and all(one["accuracy"] >= GAIN and one["own"] >= -OWN_LOSS for one in means):
            found.append(name)
    return found


def row_of(
    name: str, own: Mapping[int, Mapping[str, Any]], base: Mapping[int, float], seeds: Sequence[int]
) -> list[str]:
    """Return the cells of a candidate."""
    accuracies = {seed: line["accuracy"] for seed, line in own.items()}
    difference = None if name == BASELINE else paired(accuracies, base)
    averages = [line["average"] for line in own.values() if "average" in line]
    return [
        *(f"{accuracies[seed]:.1f}" if seed in accuracies else "" for seed in seeds),
        f"{statistics.fmean(accuracies.values()):.1f}",
        "" if difference is None else f"{difference.figure.mean:+.1f}",
        f"{statistics.fmean(line['own'] for line in own.values()):.1f}",
        f"{statistics.fmean(averages):.1f}" if averages else "",
        f"{statistics.fmean(line['processor_seconds'] for line in own.values()):.0f}",
    ]


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        print(f"rule: {error}", file=sys.stderr)
        sys.exit(2)
