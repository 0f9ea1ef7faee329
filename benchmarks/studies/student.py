"""How near a student comes to its committee: `python -m benchmarks.studies.student FOLDER [DATA [SEED,... [NAME;..]]]`.

Candidates for the students of method `experts`, by the protocol in docs/student.md. Experts are trained and exchanged
once for each data set and seed; every candidate begins with the same ones. The yardstick is the accuracy of a client's
student on the validation halves of all other clients: no test image is looked at. What is measured is appended to
FOLDER/student.jsonl, and nothing in it is measured twice.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.studies.measured import add_line, read_lines
from crad.aggregation import TeacherJudge, resolve_rule
from crad.config import Experiment
from crad.engines.serial import SerialEngine
from crad.federation.class_statistics import stack_statistics
from crad.federation.context import RunContext, build_run_context
from crad.federation.exchange import MemoryExchange
from crad.federation.method import RoundContext
from crad.federation.peer import Peer
from crad.federation.roster import Roster
from crad.federation.rounds import RoundRunner
from crad.federation.tasks import load_tensors
from crad.federation.teachers import TeacherCache
from crad.inference.engine import soft_predictions
from crad.methods import resolve_method
from crad.methods.experts import kept_teachers
from crad.randomness import repeatable
from crad.training.digest import logits_on

MEASURED = "student.jsonl"
EXPERT_ROUNDS, STUDENT_ROUNDS = 15, 10
SEEDS = (101, 102, 103)
# Half of every shard is held out, so that a quarter of all images measures: 145 to train on and 72 of each client.
WORLD: Mapping[str, Any] = {
    "preset": "mini",
    "clients": 5,
    "resize": 16,
    "train_limit": 2900,
    "held_out": 0.5,
    "proxy_size": 0,
    "test_limit": 100,
    "rounds": EXPERT_ROUNDS + STUDENT_ROUNDS,
    "eval_every": EXPERT_ROUNDS + STUDENT_ROUNDS,
    "committee": False,
    "metrics": False,
    "engine": "serial",
    "method": "experts",
    "method_settings": {"expert_rounds": EXPERT_ROUNDS},
}
LONGER: Mapping[str, Any] = {"student_epochs": 4}
COSINE: Mapping[str, Any] = {**LONGER, "student_schedule": "cosine"}
FAST: Mapping[str, Any] = {**LONGER, "student_lr": 0.03}
DREAMS: Mapping[str, Any] = {"dreams": 16, "dream_steps": 50}
# By name: settings of the run, then of the method.
CANDIDATES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "one epoch": ({}, {}),
    "longer": ({}, LONGER),
    "longer, cosine": ({}, COSINE),
    "longer, cosine, rate x3": ({}, {**COSINE, "student_lr": 0.03}),
    "lambda 0.9": ({"distill_weight": 0.9}, COSINE),
    "missing classes": ({}, {**COSINE, "missing_weight": 4.0}),
    "strong": ({"distill_augment": "strong"}, COSINE),
    "mixup": ({"distill_augment": "mixup"}, COSINE),
    "cutmix": ({"distill_augment": "cutmix"}, COSINE),
    "crops": ({"distill_augment": "crops"}, COSINE),
    "patches": ({"distill_augment": "patches"}, COSINE),
    "mixup where sure": ({"distill_augment": "mixup"}, {**COSINE, "sure": 0.5}),
    "cutmix where sure": ({"distill_augment": "cutmix"}, {**COSINE, "sure": 0.5}),
    "dreams from own": ({}, {**COSINE, **DREAMS}),
    "dreams from noise": ({}, {**COSINE, **DREAMS, "dream_start": "noise"}),
    # Of the second step: what gained in the first, together.
    "longer, rate x3": ({}, FAST),
    "longer, rate x3, patches": ({"distill_augment": "patches"}, FAST),
    "longer, rate x3, patches, dreams": (
        {"distill_augment": "patches"},
        {**FAST, **DREAMS, "dream_start": "noise"},
    ),
}


def main(words: Sequence[str]) -> None:
    """Measure what is missing, then print a table of all that is there."""
    folder, dataset = Path(words[0]), words[1] if len(words) > 1 else "cifar10"
    seeds = [int(one) for one in words[2].split(",")] if len(words) > 2 else SEEDS
    names = words[3].split(";") if len(words) > 3 else list(CANDIDATES)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        known = {(one["dataset"], one["seed"], one["name"]) for one in read(folder)}
        missing = [name for name in names if (dataset, seed, name) not in known]
        if missing:
            measure(folder, dataset, seed, missing)
    show(read(folder))


def measure(folder: Path, dataset: str, seed: int, names: Sequence[str]) -> None:
    """Train the experts of a seed, then students of each candidate, one client after the other."""
    with tempfile.TemporaryDirectory() as kept:
        context, states = train_experts(Experiment(**{**WORLD, "dataset": dataset, "seed": seed}), Path(kept))
        alone, committee = [], []
        for client in range(len(states)):
            peer = student(context, states, client)
            alone.append(others_accuracy(peer, logits_of_model(peer)))
            committee.append(others_accuracy(peer, logits_of_committee(peer)))
        for name, of in (("expert alone", alone), ("committee of experts", committee)):
            write(folder, dataset, seed, name, of, seconds=0.0)
        for name in names:
            started = time.process_time()
            found = [train_student(context, states, client, name) for client in range(len(states))]
            write(folder, dataset, seed, name, found, seconds=time.process_time() - started)


def train_experts(experiment: Experiment, folder: Path) -> tuple[RunContext, list[Path]]:
    """Return the world, and where every client lies after the exchange, with all experts in its memory."""
    context = build_run_context(experiment)
    method = resolve_method(experiment.method, experiment.method_settings)
    roster = Roster(context, method.roster(context), folder)
    runner = RoundRunner(method, roster, exchange=MemoryExchange(), engine=SerialEngine(context, method))
    rounds = runner.run()
    for _ in range(EXPERT_ROUNDS):
        next(rounds)
    return context, [slot.state for slot in roster if isinstance(slot.state, Path)]


def student(context: RunContext, states: Sequence[Path], client: int) -> Peer:
    """Return a client as the exchange left it."""
    [member] = [one for one in resolve_method("experts").roster(context) if one.index == client]
    peer = Peer(context, member)
    peer.load_state(load_tensors(states[client]), peer.evaluation)
    return peer


def train_student(context: RunContext, states: Sequence[Path], client: int, name: str) -> float:
    """Return how the student of one client does after all its rounds."""
    of_run, of_method = CANDIDATES[name]
    settings = {**context.experiment.model_dump(), **of_run}
    settings["method_settings"] = {"expert_rounds": EXPERT_ROUNDS, **of_method}
    changed = replace(context, experiment=Experiment(**settings))
    learn = resolve_method("experts", settings["method_settings"]).phases[2].learn
    peer, teachers = student(changed, states, client), TeacherCache(changed)
    for round_index in range(EXPERT_ROUNDS + 1, EXPERT_ROUNDS + STUDENT_ROUNDS + 1):
        with repeatable(changed.experiment.seed, "student", client, round_index, device=changed.device):
            learn(peer, {}, RoundContext(round_index, teachers))
    return others_accuracy(peer, logits_of_model(peer))


def others_accuracy(peer: Peer, logits_of: Any) -> float:  # noqa: ANN401
    """Return the share of the other clients' validation samples that are recognised, in percent."""
    hits, samples = 0, 0
    for client, shard in enumerate(peer.data.shards):
        if client == peer.index or not len(shard.validation):
            continue
        images = peer.data.samples(shard.validation)
        said_B = logits_of(peer.data.preprocessor.inputs(images.samples)).argmax(dim=1)
        hits += int((said_B == images.labels).sum())
        samples += len(images)
    return 100.0 * hits / samples


def logits_of_model(peer: Peer) -> Any:  # noqa: ANN401
    """Return what the client's own model says of inputs, as a function."""
    return lambda inputs: logits_on(peer.model, inputs)


def logits_of_committee(peer: Peer) -> Any:  # noqa: ANN401
    """Return what its students are drawn to, as a function."""
    experiment, experts, cache = peer.experiment, kept_teachers(peer), TeacherCache(peer.context)
    published = stack_statistics([one.statistics for one in experts])

    def said(inputs: Tensor) -> Tensor:
        q_KBC = soft_predictions(
            [partial(cache.get, one) for one in experts], inputs, temperature=experiment.temperature
        )
        judge = TeacherJudge.begin(
            resolve_rule("support-all"),
            published,
            filter_kind=None,
            source="reported",
            teacher_prior=peer.context.recipe.teacher_prior,
        )
        return judge.combine(
            q_KBC,
            torch.ones(len(experts), dtype=torch.bool),
            min_support=experiment.min_support,
            epsilon=experiment.epsilon,
            unsupported=experiment.unsupported,
            temperature=experiment.temperature,
        ).target_BC

    return said


def write(folder: Path, dataset: str, seed: int, name: str, accuracies: Sequence[float], *, seconds: float) -> None:
    """Append one line, unless it stands there already."""
    if any((one["dataset"], one["seed"], one["name"]) == (dataset, seed, name) for one in read(folder)):
        return
    line = {"dataset": dataset, "seed": seed, "name": name, "accuracy": round(statistics.fmean(accuracies), 2)}
    line |= {"clients": [round(one, 2) for one in accuracies], "processor_seconds": round(seconds, 1)}
    add_line(folder / MEASURED, line)


def read(folder: Path) -> list[dict[str, Any]]:
    """Return what was measured."""
    return read_lines(folder / MEASURED)


def show(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print a Markdown table: candidates by data set and seed."""
    places = sorted({(one["dataset"], one["seed"]) for one in lines})
    print("| students | " + " | ".join(f"{dataset}, {seed}" for dataset, seed in places) + " | processor s |")
    print("|---|" + "---:|" * (len(places) + 1))
    for name in ("expert alone", *CANDIDATES, "committee of experts"):
        of = {(one["dataset"], one["seed"]): one for one in lines if one["name"] == name}
        if not of:
            continue
        cells = [f"{of[place]['accuracy']:.1f}" if place in of else "" for place in places]
        seconds = statistics.fmean(one["processor_seconds"] for one in of.values())
        print(f"| {name} | {' | '.join(cells)} | {seconds:.0f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
