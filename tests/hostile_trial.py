"""A run of three honest members beside hostile ones, and everything that is looked at meanwhile and afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crad.data.agreed.shard_files import write_shard
from crad.federation.context import build_run_context
from crad.network.agreement import agreement_to_toml, make_agreement
from tests.clinics import SETTINGS, Clinics, Forked, experiment, found_clinics
from tests.hostile import HOSTILE, LEARNS_WRONG, let_loose
from tests.hostile_folder import TREASURE

HONEST = (0, 1, 2)
ROUNDS = 3
LARGEST = 1 << 20  # bytes of a snapshot, as agreed
LOOK_S = 0.05
PLENTY = {"held_out": 0.4}  # enough images to measure what a class means
TRAINING_S = 60.0  # for starting, learning and the model alone, on a machine that has other things to do


@dataclass
class Used:
    """The most that one process had at once."""

    descriptors: int = 0
    memory_kb: int = 0

    def look(self, pid: int) -> None:
        """Look once; a process that has just ended has nothing."""
        try:
            self.descriptors = max(self.descriptors, len(os.listdir(f"/proc/{pid}/fd")))
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.memory_kb = max(self.memory_kb, int(line.split()[1]))
        except OSError:
            return


class Trial:
    """Three honest members, and hostile ones with these behaviours."""

    def __init__(
        self,
        folder: Path,
        behaviours: tuple[str, ...],
        *,
        exchange: str = "https",
        rounds: int = ROUNDS,
        deadline_s: float,
        turns: Mapping[str, range] | None = None,
        away_after: int | None = None,
    ) -> None:
        self.hostile = dict(enumerate(behaviours, start=len(HONEST)))
        self.rounds, self.deadline_s, self.folder, self.turns = rounds, deadline_s, folder, turns or {}
        self.clinics = found_clinics(
            folder,
            clients=len(HONEST) + len(behaviours),
            exchange=exchange,
            deadline_s=deadline_s,
            max_snapshot_bytes=LARGEST,
            settings={**SETTINGS, "rounds": rounds, **(PLENTY if LEARNS_WRONG in behaviours else {})},
        )
        if LEARNS_WRONG in behaviours:
            write_plenty(self.clinics, shifted=len(HONEST) + behaviours.index(LEARNS_WRONG))
        self._name_networks()
        for number in HONEST if away_after is not None else ():
            site = self.clinics.site(number)
            site.write_text(site.read_text() + f"\naway_after = {away_after}\n")
        (folder / TREASURE / "folder").mkdir(parents=True)
        (folder / TREASURE / "secret.txt").write_text("nobody writes here")
        self.used = {number: Used() for number in HONEST}

    def run(self) -> None:
        """From the first process to the end of the last honest one."""
        for number, name in self.hostile.items():
            let_loose(self.clinics, number, name, honest=HONEST, turns=self.turns)
        before = self._outside()
        began = time.monotonic()
        processes = {number: self.clinics.join_forked(number, log=self._log(number)) for number in HONEST}
        self._watch(processes, until=began + self.longest_s)
        self.took_s = time.monotonic() - began
        self.codes = {number: process.poll() for number, process in processes.items()}
        self.written_outside = sorted(str(one) for one in dict(self._outside() ^ before))

    def end(self) -> None:
        """End everybody, and leave no file behind that looks like a terabyte."""
        self.clinics.end()
        for path in self.folder.glob("bucket/*/*/*/*"):
            if path.is_file() and not path.is_symlink() and path.stat().st_size > LARGEST:
                path.unlink()

    @property
    def longest_s(self) -> float:
        """What the promise allows: every round's deadline, one to be read, one to begin, and the training."""
        return (self.rounds + 2) * self.deadline_s + TRAINING_S

    @property
    def silenced(self) -> set[int]:
        """Honest members whom somebody keeps from publishing, as whoever can write into their folder can."""
        return {HONEST[1]} if "plants links" in self.hostile.values() else set()

    @property
    def is_flooded(self) -> bool:
        """Whether somebody holds connections without end."""
        return "holds silent sockets" in {*self.hostile.values(), *self.turns}

    def strange_in_store(self) -> list[str]:
        """What lies in the store and is in no member's part of it."""
        root, part = self.folder / "bucket", self.clinics.agreement.hash[:16]
        if not root.exists():
            return []
        names = {member.name for member in self.clinics.agreement.members}
        inner = {one.name for one in (root / part).iterdir()}
        agreements = {one.stem for folder in (root / "agreements").iterdir() for one in folder.glob("*.json")}
        return sorted(({one.name for one in root.iterdir()} - {part, "agreements"}) | (inner | agreements) - names)

    def sockets_tried(self, source: str) -> int:
        """How often connections were opened from an address to the honest members."""
        return sum(path.stat().st_size for path in (self.folder / "hostile").glob(f"*/tried-*-{source}*"))

    def log(self, number: int) -> str:
        return self._log(number).read_text()

    def log_of(self, number: int, turn: range) -> str:
        """What one of them said from the end of the round before until the end of these rounds, and later of them."""
        said: list[str] = []
        finished = 0
        for line in self.log(number).splitlines():
            if finished + 1 in turn or f"round {turn[-1]} " in line:
                said.append(line)
            done = re.search(rf" round (\d+)/{self.rounds} ", line)
            finished = int(done[1]) if done else finished
        return "\n".join(said)

    def turns_taken(self) -> set[int]:
        """The rounds in which the one that acts in turns has done something."""
        return {int(path.name.removeprefix("turn-")) for path in (self.folder / "hostile").glob("*/turn-*")}

    def records(self, number: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.clinics.state(number) / "rounds.jsonl").read_text().splitlines()]

    def outcome(self, number: int) -> dict[str, Any]:
        outcome: dict[str, Any] = json.loads((self.clinics.state(number) / "participant.json").read_text())
        return outcome

    def _watch(self, processes: dict[int, Forked], *, until: float) -> None:
        while any(process.poll() is None for process in processes.values()):
            assert time.monotonic() < until, f"it hangs: {[self.log(number) for number in HONEST]}"
            for number, process in processes.items():
                self.used[number].look(process.pid)
            time.sleep(LOOK_S)

    def _log(self, number: int) -> Path:
        return self.folder / f"honest-{number}.log"

    def _name_networks(self) -> None:
        """Into the agreement, as the hostile ones had them put there."""
        table = self.clinics.agreement.model_dump(mode="json", exclude_none=True)
        for number, name in self.hostile.items():
            if name in HOSTILE:
                table["members"][number]["architecture"] = HOSTILE[name].network
        self.clinics.agreement = make_agreement(table)
        (self.folder / "federation.toml").write_text(agreement_to_toml(self.clinics.agreement))

    def _outside(self) -> set[tuple[Path, str]]:
        """Everything in this folder that no honest member may write to, with what it holds."""
        found = set()
        ours = {self.folder / f"clinic-{number}" / "state" for number in range(len(self.clinics.agreement.members))}
        for place, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if not self._is_ours(Path(place) / name, ours)]
            for name in files:
                if not name.endswith(".log"):
                    path = Path(place) / name
                    found.add((path, hashlib.sha256(path.read_bytes()).hexdigest()))
            found |= {(Path(place) / name, "folder") for name in folders}
        return found

    def _is_ours(self, path: Path, ours: set[Path]) -> bool:
        return path in ours or path in (self.folder / "bucket", self.folder / "hostile")


def write_plenty(clinics: Clinics, *, shifted: int) -> None:
    """More images of all classes for everybody who learns; this one counts its labels from one."""
    context = build_run_context(experiment(shifted + 1, train_limit=None, alpha=100.0))
    for number in range(shifted + 1):
        dataset, shard = context.data.dataset, context.data.shards[number]
        if number == shifted:
            dataset = replace(dataset, train_labels=(dataset.train_labels + 1) % context.data.num_classes)
        write_shard(dataset, shard, clinics.site(number).parent / "own.npz")
