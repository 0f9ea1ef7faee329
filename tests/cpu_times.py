"""`pytest --cpu-times FILE`: the processor time of every test beside its wall time, one JSON line each.

Wall time on a shared machine says as much about the neighbours as about the test. Processor time, of this process and
of the children it waited for, hardly depends on them. `python -m tests.cpu_times FILE...` ranks what was written, and
with `--list` it writes the list of the tests that `make quick` leaves out (slow.txt).
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SLOW = Path(__file__).with_name("slow.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--cpu-times", metavar="FILE", type=Path, help="append every test's processor and wall time here")


def pytest_configure(config: pytest.Config) -> None:
    """Measure if the option is given."""
    path = config.getoption("--cpu-times")
    if path is not None:
        config.pluginmanager.register(CpuTimes(path.absolute()))


class CpuTimes:
    """The plugin: set-up, call and tear-down of each test, so that a fixture shared by a file is seen as such."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spent: dict[str, dict[str, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        with self._measured("setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        with self._measured("call"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None]:
        with self._measured("teardown"):
            return (yield)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if not self._spent:  # the process that only hands tests to others
            return
        line = {"test": nodeid, **self._spent}
        with self._path.open("a", encoding="utf-8") as file:  # several processes append whole lines
            file.write(json.dumps(line) + "\n")
        self._spent = {}

    @contextmanager
    def _measured(self, phase: str) -> Iterator[None]:
        cpu, wall = _cpu_s(), time.perf_counter()
        try:
            yield
        finally:
            self._spent[phase] = {"cpu_s": round(_cpu_s() - cpu, 3), "wall_s": round(time.perf_counter() - wall, 3)}


def _cpu_s() -> float:
    """Seconds that this process and the children it has waited for have computed."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


@dataclass(frozen=True)
class Cost:
    """What a test takes: processor seconds, and seconds on the clock."""

    cpu_s: float = 0.0
    wall_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wall_s + other.wall_s)


def main() -> None:
    """Rank files and tests by processor time, or list the slow ones again."""
    parser = argparse.ArgumentParser(prog="python -m tests.cpu_times", description=main.__doc__)
    parser.add_argument("paths", type=Path, nargs="+", metavar="FILE", help="what --cpu-times wrote")
    parser.add_argument("--tests", type=int, default=50, help="how many of the longest tests to show [50]")
    parser.add_argument("--list", action="store_true", help=f"write {SLOW.name}: all from --at-least seconds on")
    parser.add_argument("--at-least", type=float, default=0.7, help="of a test with all its parameters [0.7]")
    parser.add_argument("--crowd", type=float, default=1.0, help="how many times the clock was slowed by others [1]")
    options = parser.parse_args()
    costs = _read(options.paths)
    functions = _grouped(costs, lambda test: test.partition("[")[0])
    if options.list:
        # Waiting costs the hand as much as computing.
        seconds = {name: max(cost.cpu_s, cost.wall_s / options.crowd) for name, cost in functions.items()}
        slow = {name: found for name, found in seconds.items() if found >= options.at_least}
        write_slow_tests(slow)
        rest = sum(seconds.values()) - sum(slow.values())
        print(f"{len(slow)} of {len(seconds)} tests are slow; the others take {rest:.0f} s")
        return
    files = _grouped(costs, lambda test: test.partition("::")[0])
    _show("all", {"everything": sum(costs.values(), Cost())}, 1)
    _show("files", files, len(files))
    _show("tests with all their parameters", functions, options.tests)


def read_slow_tests() -> dict[str, float]:
    """Which tests are slow (`tests/test_x.py::test_y`), and the seconds that each was measured to take."""
    lines = SLOW.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return {name: float(seconds) for seconds, name in pairs}


def write_slow_tests(seconds: Mapping[str, float]) -> None:
    """List them by name, so that a change shows as one line."""
    head = [line for line in SLOW.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    rows = [f"{found:6.1f} {name}" for name, found in sorted(seconds.items())]
    SLOW.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")


def _read(paths: Sequence[Path]) -> dict[str, Cost]:
    lines = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    # Of a test that was run again the last time counts.
    return {line.pop("test"): sum((Cost(**phase) for phase in line.values()), Cost()) for line in lines}


def _grouped(costs: Mapping[str, Cost], key: Callable[[str], str]) -> dict[str, Cost]:
    groups: defaultdict[str, Cost] = defaultdict(Cost)
    for test, cost in costs.items():
        groups[key(test)] += cost
    return dict(groups)


def _show(title: str, costs: Mapping[str, Cost], most: int) -> None:
    print(f"{title}: processor seconds, wall seconds")
    for name, cost in sorted(costs.items(), key=lambda entry: -entry[1].cpu_s)[:most]:
        print(f"{cost.cpu_s:8.1f} {cost.wall_s:8.1f}  {name}")


if __name__ == "__main__":
    main()
