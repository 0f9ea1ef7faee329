"""What a first run costs beside its computing: whole processes, processor time of each and of what it started."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Section, Settings, speedup

TORCH, PUBLIC, TINY, DEMO = "import torch", "import crad; crad.run", "a tiny run", "a small run"
RUN = ["-m", "crad", "run", "--preset", "demo", "--clients", "3", "--rounds", "1", "--quiet", "--output", "{run}"]
SMALL = ["--width", "0.125", "--train-limit", "100", "--test-limit", "50"]
PROGRAMS: dict[str, Sequence[str]] = {
    TORCH: ["-c", "import torch"],
    PUBLIC: ["-c", "import crad; crad.run"],
    TINY: [*RUN, *SMALL, "--workers", "1"],
    DEMO: [*RUN, "--workers", "1"],
    f"{DEMO}, workers as it chooses": RUN,
}
BEFORE = "CRAD_BEFORE"  # the environment variable that names another src/ to measure in turn


def run(settings: Settings) -> Section:
    """Measure every program in turn, with another version of the package between where one is named."""
    sources = {"now": Path(__file__).parents[1] / "src"}
    if other := os.environ.get(BEFORE):
        sources = {"before": Path(other), **sources}
    rounds = settings.choose(7, 3, 1)
    programs = settings.choose(PROGRAMS, PROGRAMS, {PUBLIC: PROGRAMS[PUBLIC]})
    first = settings.choose(0, 0, 1)
    seconds: dict[tuple[str, str], list[float]] = {(name, when): [] for name in programs for when in sources}
    for number in range(first, rounds + 1):  # turn 0 fills the caches of disk and bytecode, and is not counted
        settings.say(f"turn {number} of {rounds}")
        for name, when in seconds:
            taken = processor_seconds(programs[name], sources[when])
            if number > 0:
                seconds[name, when].append(taken)
    rows = [[name, *(_shown(seconds[name, when]) for when in sources), _ratio(seconds, name)] for name in programs]
    return Section(
        "startup",
        "Processor seconds of a whole process, and of those it starts",
        ("what", *sources, "times less"),
        rows,
        notes=[f"`{name}`: `python {' '.join(words)}`." for name, words in programs.items()]
        + [f"`before` is the package in the folder that the environment variable {BEFORE} names, if it is set."],
        numbers=[{"what": name, "when": when, "seconds": taken} for (name, when), taken in seconds.items()],
    )


def processor_seconds(words: Sequence[str], source: Path) -> float:
    """Run Python on one thread with the package from there; return the processor time of it and its children."""
    with tempfile.TemporaryDirectory() as folder:
        started = os.times()
        subprocess.run(  # noqa: S603  # our own command lines
            [sys.executable, *(word.format(run=Path(folder) / "run") for word in words)],
            env=_environment(source),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        ended = os.times()
    return ended.children_user + ended.children_system - started.children_user - started.children_system


def _environment(source: Path) -> Mapping[str, str]:
    """Let the package come from there, with its bytecode kept, as an installed one has it."""
    kept = Path(tempfile.gettempdir()) / "crad-benchmark-bytecode"
    own = {"PYTHONPATH": str(source), "PYTHONPYCACHEPREFIX": str(kept), "OMP_NUM_THREADS": "1"}
    return {**{name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}, **own}


def _shown(taken: Sequence[float]) -> str:
    return f"{statistics.median(taken):.2f} ({min(taken):.2f}-{max(taken):.2f})"


def _ratio(seconds: Mapping[tuple[str, str], Sequence[float]], name: str) -> str:
    """Return how many times less it takes now, from pairs; nothing where there is no other version."""
    if (name, "before") not in seconds:
        return ""
    return str(speedup(seconds[name, "before"], seconds[name, "now"]))
