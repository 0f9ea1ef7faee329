"""`python -m benchmarks [NAME ...] [--quick] [--output DIR]`: measure, show, and write what `benchmarks.page` reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import aggregation, memory, private, round, rows, scale, startup, teacher, workers
from benchmarks.hardware import hardware_line
from benchmarks.harness import Progress, Section, Settings, Size, show, write_json

TOY_S = 5.0


@dataclass(frozen=True)
class Benchmark:
    """What to run, and how long it takes on two cores: the first guess of the time left."""

    run: Callable[[Settings], Section]
    full_s: float
    quick_s: float

    def seconds(self, size: Size) -> float:
        """The first guess."""
        return {"full": self.full_s, "quick": self.quick_s, "toy": TOY_S}[size]


BENCHMARKS = {
    "teacher": Benchmark(teacher.run, 60, 15),
    "round": Benchmark(round.run, 900, 50),
    "aggregation": Benchmark(aggregation.run, 40, 10),
    "workers": Benchmark(workers.run, 240, 40),
    "scale": Benchmark(scale.run, 240, 30),
    "memory": Benchmark(memory.run, 300, 40),
    "rows": Benchmark(rows.run, 600, 120),
    "private": Benchmark(private.run, 120, 30),
    "startup": Benchmark(startup.run, 240, 100),
}


def main(words: Sequence[str]) -> None:
    """Run the benchmarks that are named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)} [default: all]")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller and fewer: two or three minutes in all")
    size.add_argument("--toy", action="store_true", help="only to see that they run: the numbers mean nothing")
    parser.add_argument("--output", type=Path, default=Path("runs/bench"), help="where results go [runs/bench]")
    options = parser.parse_args(words)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; known: {', '.join(BENCHMARKS)}")
    names = [name for name in BENCHMARKS if not options.names or name in options.names]
    chosen: Size = "quick" if options.quick else "toy" if options.toy else "full"
    progress = Progress({name: BENCHMARKS[name].seconds(chosen) for name in names})
    settings = Settings(size=chosen, output=options.output, say=progress.say)
    hardware = hardware_line()
    print(f"{hardware}\n")
    path = options.output / f"{datetime.now(UTC):%Y-%m-%d-%H%M%S}.json"
    sections = []
    for name in names:
        progress.begin(name)
        sections.append(BENCHMARKS[name].run(settings))
        progress.end()
        show(sections[-1])
        # After every benchmark: what is measured stays when a later one is interrupted.
        command = " ".join(["python -m benchmarks", *options.names, *([] if chosen == "full" else [f"--{chosen}"])])
        write_json(path, hardware=hardware, command=command, sections=sections)
    print(f"written to {path}; as markdown: python -m benchmarks.page {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
