"""Are shifted labels found and nobody else accused?

`python -m benchmarks.studies.meaning DATASET [SEEDS] [SETTING=VALUE...]` runs every seed three times: with labels as
they are; with those of client 1 shifted by one; with its two largest classes swapped. A line says what clients were
told of others, that is what was found in two rounds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crad.analysis.confusions import confused_members
from crad.config import Experiment, parse_pairs
from crad.engines.serial import SerialEngine
from crad.federation.context import RunContext, build_run_context
from crad.federation.exchange import MemoryExchange
from crad.federation.roster import Roster
from crad.federation.rounds import RoundRunner
from crad.methods import resolve_method
from crad.runs.records import Record, round_record

WAYS = ("honest", "shifted", "swapped")
WRONG = 1  # the client whose labels are


@dataclass(frozen=True)
class Told:
    """What one student was told of one teacher's class."""

    student: int
    teacher: int
    said: int
    own: int


def main(arguments: Sequence[str]) -> None:
    """Run and print a line for every seed and way."""
    torch.set_num_threads(1)
    dataset, seeds, *words = [*arguments, "1"] if len(arguments) == 1 else arguments
    own: dict[str, Any] = {"clients": 4, "alpha": 1.0, "rounds": 8, "proxy_size": 0, "eval_every": 1000, "workers": 1}
    own |= {"preset": "demo" if dataset == "digits" else "mini", "dataset": dataset}
    for word in words:
        own |= parse_pairs(word)
    for seed in map(int, seeds.split(",")):
        context = build_run_context(Experiment(**own, seed=seed))
        for way in WAYS:
            meant = _meaning(context, way)
            print(f"{dataset} seed {seed} {way}: {_line(_told(_simulate(context, meant)), meant, context)}", flush=True)


def _meaning(context: RunContext, way: str) -> NDArray[np.int64]:
    """What client 1 calls each class."""
    called = np.arange(context.data.num_classes)
    if way == "shifted":
        return np.roll(called, -1)
    if way == "swapped":
        first, second = np.argsort(-context.data.shard_counts()[WRONG], kind="stable")[:2]
        called[[first, second]] = called[[second, first]]
    return called


def _simulate(context: RunContext, called: NDArray[np.int64]) -> list[Record]:
    labels = context.data.dataset.train_labels.copy()
    where = context.data.shards[WRONG].indices
    labels[where] = called[labels[where]]
    data = replace(context.data, dataset=replace(context.data.dataset, train_labels=labels))
    context = replace(context, data=data)
    method = resolve_method(context.experiment.method)
    with tempfile.TemporaryDirectory() as folder:
        roster = Roster(context, method.roster(context), Path(folder))
        loop = RoundRunner(method, roster, exchange=MemoryExchange(), engine=SerialEngine(context, method))
        return [round_record(done, roster) for done in loop.run()]


def _told(records: list[Record]) -> list[Told]:
    found = []
    numbers = [str(number) for number in range(10_000)]
    for student in sorted({client["client"] for record in records for client in record["clients"]}):
        own = [{"clients": [one for one in record["clients"] if one["client"] == student]} for record in records]
        for entry in confused_members(own, numbers, numbers):
            found.append(Told(student, int(entry["member"]), int(entry["theirs"]), int(entry["ours"])))
    return found


def _line(told: list[Told], called: NDArray[np.int64], context: RunContext) -> str:
    changed = set(np.flatnonzero(called != np.arange(context.data.num_classes)).tolist())
    of_wrong = [one for one in told if one.teacher == WRONG and one.student != WRONG]
    right = [one for one in of_wrong if one.own in changed and called[one.own] == one.said]
    by_wrong = [one for one in told if one.student == WRONG]
    false = [one for one in told if WRONG not in (one.student, one.teacher)] if changed else told
    students = len({one.student for one in of_wrong}) if changed else 0
    return (
        f"{students} of {context.experiment.clients - 1} others were told, {len(right)} pairs right, "
        f"{len(of_wrong) - len(right) if changed else 0} wrong; itself told {len(by_wrong) if changed else 0}; "
        f"honest ones accused by honest ones {len(false)}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
