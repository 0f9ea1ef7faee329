"""Members that are killed again and again: `python -m tests.soak --peers 6 --rounds 20 --seed 1`.

Real processes on loopback. Whenever somebody has finished another round, one member drawn at random is killed with
SIGKILL and started again a moment later. In the end everybody must have come to the last round, every file must be
whole, and nobody may have missed more than the rounds it was killed in. Ends with 1 and the faults otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from crad.randomness import stream
from crad.runs.checkpoint import latest_round
from crad.runs.directory import RunDirectory
from tests.clinics import SETTINGS, Clinics, Process, found_clinics

LOOK_S = 0.1
AWAY_S = 0.5  # between a kill and the new start
DEADLINE_S = 120.0  # of a round: longer than a member takes to come back on a busy machine


@dataclass(frozen=True)
class Kill:
    """Who was killed, when, and the last round that it had saved: a line in rounds.jsonl alone is no finished round."""

    member: int
    saved: int
    second: float


@dataclass
class Soak:
    """What happened, and what was wrong."""

    rounds: int
    seconds: float = 0.0
    kills: list[Kill] = field(default_factory=list)
    skipped: dict[int, list[int]] = field(default_factory=dict)  # rounds that a member did not take part in
    missed: int = 0  # snapshots that did not come in time, over all members and rounds
    snapshots: int = 0  # that were wanted
    files: int = 0  # looked into
    faults: list[str] = field(default_factory=list)


def soak(
    folder: Path, *, peers: int, rounds: int, kills: int, seed: int, patience_s: float, is_lean: bool = False
) -> Soak:
    """Found a federation, let it run under kills, and look at what is left."""
    clinics = found_clinics(
        folder, clients=peers, deadline_s=DEADLINE_S, quorum=1, settings={**SETTINGS, "rounds": rounds}
    )
    outcome, began = Soak(rounds), time.monotonic()
    try:
        _run(clinics, outcome, kills=kills, seed=seed, until=began + patience_s, is_lean=is_lean)
    finally:
        clinics.end()
    outcome.seconds = time.monotonic() - began
    for number in range(peers):
        _look(clinics, number, outcome)
    return outcome


def _run(clinics: Clinics, outcome: Soak, *, kills: int, seed: int, until: float, is_lean: bool) -> None:
    rng, began = stream(seed, "soak"), time.monotonic()
    numbers = range(len(clinics.agreement.members))
    running = {number: _start(clinics, number, is_lean=is_lean) for number in numbers}
    reached = 0  # the round after whose end the last kill was
    while any(process.poll() is None for process in running.values()):
        if time.monotonic() > until:
            hung = [number for number, process in running.items() if process.poll() is None]
            outcome.faults.append(f"members {hung} hang")
            for number in hung:
                running[number].kill()
                running[number].wait()
            return
        time.sleep(LOOK_S)
        latest = max(_finished(clinics, number) for number in numbers)
        if latest <= reached or latest >= outcome.rounds or len(outcome.kills) >= kills:
            continue
        ready = [number for number, process in running.items() if _is_at_work(clinics, number, process)]
        if not ready:
            continue
        reached, victim = latest, int(rng.choice(ready))
        running[victim].kill()
        running[victim].wait()
        saved = latest_round(RunDirectory(clinics.state(victim)).checkpoint_folder) or 0
        outcome.kills.append(Kill(victim, saved, time.monotonic() - began))
        print(f"{outcome.kills[-1].second:6.1f} s: round {latest} done; killed {victim}", flush=True)
        time.sleep(AWAY_S)
        running[victim] = _start(clinics, victim, is_lean=is_lean)
    outcome.faults += [f"member {n} ended with {p.poll()}" for n, p in running.items() if p.poll()]


def _start(clinics: Clinics, number: int, *, is_lean: bool) -> Process:
    path = clinics.folder / f"clinic-{number}" / "log.txt"
    if is_lean:
        return clinics.join_forked(number, log=path)
    with path.open("a") as log:
        return clinics.join(number, log=log)


def _is_at_work(clinics: Clinics, number: int, process: Process) -> bool:
    """Past its start and before its end: whoever has just been killed is let come back first."""
    try:
        status = json.loads((clinics.state(number) / "status.json").read_text())
    except FileNotFoundError:
        return False
    is_busy = status["state"] not in ("starting", "trained", "finished")
    return process.poll() is None and status["process"] == process.pid and is_busy


def _finished(clinics: Clinics, number: int) -> int:
    """The last round whose line is written in full; its state may still be on its way to the disk."""
    try:
        lines = (clinics.state(number) / "rounds.jsonl").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return 0
    return int(json.loads(lines[-1])["round"]) if lines else 0


def _look(clinics: Clinics, number: int, outcome: Soak) -> None:
    """Read everything that one member has left."""
    state = clinics.state(number)
    for path in sorted(state.rglob("*.safetensors")):
        outcome.files += 1
        try:
            with safe_open(path, "pt") as file:
                for name in sorted(file.keys()):
                    file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            outcome.faults.append(f"{path.relative_to(clinics.folder)}: {error}")
    for path in sorted(state.rglob("*.jsonl")):
        outcome.files += 1
        try:
            list(_lines(path))
        except ValueError as error:
            outcome.faults.append(f"{path.relative_to(clinics.folder)}: {error}")
    outcome.files += _read_json(state, outcome)
    _count_rounds(number, list(_lines(state / "rounds.jsonl")), outcome)


def _read_json(state: Path, outcome: Soak) -> int:
    paths = sorted(state.rglob("*.json"))
    for path in paths:
        try:
            json.loads(path.read_text())
        except ValueError as error:
            outcome.faults.append(f"{path.name}: {error}")
    return len(paths)


def _count_rounds(number: int, records: list[dict[str, Any]], outcome: Soak) -> None:
    done = [record["round"] for record in records]
    if done != sorted(set(done)) or done[-1:] != [outcome.rounds]:
        outcome.faults.append(f"member {number} has the rounds {done}")
    absent = [record["missing"].get(str(number), []) for record in records]
    outcome.missed += sum(map(len, absent))
    outcome.snapshots += sum(len(record["active"]) - 1 for record in records)
    skipped = sorted({*range(1, outcome.rounds + 1)} - {*done})
    if skipped:
        outcome.skipped[number] = skipped
    killed_in = {kill.saved + 1 for kill in outcome.kills if kill.member == number}
    unexplained = [index for index in skipped if index not in killed_in]
    if unexplained:
        outcome.faults.append(f"member {number} was killed in rounds {sorted(killed_in)} and also missed {unexplained}")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text()
    if text and not text.endswith("\n"):
        raise ValueError("the last line is cut")
    for line in text.splitlines():
        yield json.loads(line)


def main() -> int:
    """Run it, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kills", type=int, help="at most one after each round but the last, which is the default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=3600.0, metavar="SECONDS", help="then they count as hanging")
    parser.add_argument("--lean", action="store_true", help="fork members from one that has imported all; no ONNX")
    parser.add_argument("--folder", type=Path, help="an empty one to keep everything in")
    words = parser.parse_args()
    kills = words.rounds if words.kills is None else words.kills
    with tempfile.TemporaryDirectory() as temporary:
        folder = words.folder or Path(temporary)
        settings = {"peers": words.peers, "rounds": words.rounds, "kills": kills, "seed": words.seed}
        outcome = soak(folder, **settings, patience_s=words.patience, is_lean=words.lean)
    print(
        f"{words.peers} members, {words.rounds} rounds, {len(outcome.kills)} kills in {outcome.seconds:.0f} s; "
        f"rounds skipped by those who were killed: {outcome.skipped or 'none'}; "
        f"snapshots missing: {outcome.missed} of {outcome.snapshots}; files read: {outcome.files}"
    )
    for fault in outcome.faults:
        print(f"FAULT {fault}")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
