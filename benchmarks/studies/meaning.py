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
from crad.federation.exchange import MemoryExchange
from crad.federation.federated_data import FederatedData, build_federated_data
from crad.federation.roster import Roster
from crad.federation.rounds import RoundLoop
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
        world = build_federated_data(Experiment(**own, seed=seed))
        for way in WAYS:
            meant = _meaning(world, way)
            print(f"{dataset} seed {seed} {way}: {_line(_told(_simulate(world, meant)), meant, world)}", flush=True)


def _meaning(world: FederatedData, way: str) -> NDArray[np.int64]:
    """What client 1 calls each class."""
    called = np.arange(world.num_classes)
    if way == "shifted":
        return np.roll(called, -1)
    if way == "swapped":
        first, second = np.argsort(-world.shard_counts()[WRONG], kind="stable")[:2]
        called[[first, second]] = called[[second, first]]
    return called


def _simulate(world: FederatedData, called: NDArray[np.int64]) -> list[Record]:
    labels = world.dataset.train_labels.copy()
    where = world.shards[WRONG].indices
    labels[where] = called[labels[where]]
    world = replace(world, dataset=replace(world.dataset, train_labels=labels))
    method = resolve_method(world.experiment.method)
    with tempfile.TemporaryDirectory() as folder:
        roster = Roster(world, method.roster(world), Path(folder))
        loop = RoundLoop(method, roster, exchange=MemoryExchange(), engine=SerialEngine(world, method))
        return [round_record(done, roster) for done in loop.run()]


def _told(records: list[Record]) -> list[Told]:
    found = []
    numbers = [str(number) for number in range(10_000)]
    for student in sorted({client["client"] for record in records for client in record["clients"]}):
        own = [{"clients": [one for one in record["clients"] if one["client"] == student]} for record in records]
        for entry in confused_members(own, numbers, numbers):
            found.append(Told(student, int(entry["member"]), int(entry["theirs"]), int(entry["ours"])))
    return found


def _line(told: list[Told], called: NDArray[np.int64], world: FederatedData) -> str:
    changed = set(np.flatnonzero(called != np.arange(world.num_classes)).tolist())
    of_wrong = [one for one in told if one.teacher == WRONG and one.student != WRONG]
    right = [one for one in of_wrong if one.own in changed and called[one.own] == one.said]
    by_wrong = [one for one in told if one.student == WRONG]
    false = [one for one in told if WRONG not in (one.student, one.teacher)] if changed else told
    students = len({one.student for one in of_wrong}) if changed else 0
    return (
        f"{students} of {world.experiment.clients - 1} others were told, {len(right)} pairs right, "
        f"{len(of_wrong) - len(right) if changed else 0} wrong; itself told {len(by_wrong) if changed else 0}; "
        f"honest ones accused by honest ones {len(false)}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
