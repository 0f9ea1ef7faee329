"""How everything here is timed: variants in turn in one process on one thread, medians, ratios of paired runs.

A shared machine is slower from one minute to the next. What runs in turn suffers alike, so the ratios hold where the
seconds do not.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

GEMM_SIDE = 1024  # large enough for the peak, small enough (30 ms) to be run between the variants

Work = Callable[[], object]
Size = Literal["full", "quick", "toy"]  # toy: it runs, and its numbers mean nothing; for the tests


@dataclass(frozen=True)
class Ratio:
    """How many times faster: the median of the paired ratios, and the quartiles around it."""

    median: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.lower:.2f}-{self.upper:.2f})"


@dataclass(frozen=True)
class Section:
    """One benchmark's result: cells as they are shown, the numbers behind them, and pictures by file name."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    numbers: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """What a benchmark is told."""

    size: Size
    output: Path
    say: Callable[[str], None]

    def choose(self, full: Any, quick: Any, toy: Any) -> Any:  # noqa: ANN401  # one of three of a kind
        """What belongs to the size of the measurement."""
        return {"full": full, "quick": quick, "toy": toy}[self.size]


def interleave(variants: Mapping[str, Work], *, repeats: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of every variant, A B A B ..., after everyone has run `warmup` times unmeasured."""
    torch.set_num_threads(1)
    for _ in range(warmup):
        for work in variants.values():
            work()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, work in variants.items():
            seconds[name].append(stopwatch(work))
    return seconds


def stopwatch(work: Work) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def speedup(slow: Sequence[float], fast: Sequence[float]) -> Ratio:
    """The ratio of runs that stood side by side."""
    ratios = [one / other for one, other in zip(slow, fast, strict=True)]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, lower, upper)


def gemm_work() -> Work:
    """One float32 matrix product of a good shape; put it among the variants to know the peak at that moment."""
    left, right = torch.rand(GEMM_SIDE, GEMM_SIDE), torch.rand(GEMM_SIDE, GEMM_SIDE)
    result = torch.empty(GEMM_SIDE, GEMM_SIDE)
    return lambda: torch.mm(left, right, out=result)


def gemm_gflops(seconds: Sequence[float]) -> float:
    """GFLOP/s of `gemm_work`."""
    return 2 * GEMM_SIDE**3 / statistics.median(seconds) / 1e9


def count_flops(work: Work) -> int:
    """Floating-point operations of convolutions and matrix products, counted as if done directly."""
    counter = FlopCounterMode(display=False)
    with counter:
        work()
    return int(counter.get_total_flops())


def share_of_peak(flops: float, seconds: float, peak_gflops: float) -> str:
    """Effective: an algorithm that needs fewer operations than the direct one may exceed 100 %."""
    return f"{100 * flops / seconds / 1e9 / peak_gflops:.0f} %"


def ask_child(*arguments: str) -> dict[str, Any]:
    """Run `python -m benchmarks.child` and read the one line of JSON it prints."""
    command = [sys.executable, "-m", "benchmarks.child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own module
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments[:1])} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


class TalkingChild:
    """A `python -m benchmarks.child` that answers every line with a line of JSON, until it is left."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.child", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603

    def ask(self, line: str) -> dict[str, Any]:
        """Its answer to one line."""
        self.tell(line)
        return self.hear()

    def tell(self, line: str) -> None:
        """Say one line and do not wait."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def hear(self) -> dict[str, Any]:
        """Its next answer."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the child process ended with code {self._process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def __enter__(self) -> TalkingChild:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()


def show(section: Section) -> None:
    """The section as an aligned table on standard output."""
    table = Table(title=section.title, title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(section.columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in section.rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 140, soft_wrap=False)
    console.print(table)
    for note in section.notes:
        console.print(note, highlight=False)
    console.print()


def write_json(path: Path, *, hardware: str, command: str, sections: Sequence[Section]) -> None:
    """Everything measured, for `python -m benchmarks.page`."""
    content = {"hardware": hardware, "command": command, "sections": [asdict(section) for section in sections]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


class Progress:
    """What is under way and how long it will still take, on standard error."""

    def __init__(self, expected_s: Mapping[str, float]) -> None:
        self._left = dict(expected_s)
        self._started = self._begun = time.perf_counter()
        self._done_s = 0.0
        self._name = ""

    def begin(self, name: str) -> None:
        """A benchmark starts."""
        self._name, self._begun = name, time.perf_counter()
        self.say("starts")

    def end(self) -> None:
        """It has ended."""
        self._done_s += self._left.pop(self._name)

    def say(self, what: str) -> None:
        """One line: which benchmark, what it does now, the time left."""
        now = time.perf_counter()
        # The plan was made on one machine; what is done already says how much slower this one is.
        pace = (self._begun - self._started) / self._done_s if self._done_s else 1.0
        this_one = max(0.0, self._left[self._name] * pace - (now - self._begun))
        others = sum(seconds for name, seconds in self._left.items() if name != self._name) * pace
        passed, left = now - self._started, this_one + others
        print(f"[{passed:4.0f} s, about {left:.0f} s left] {self._name}: {what}", file=sys.stderr, flush=True)
