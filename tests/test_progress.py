"""What a person sees on a terminal while runs go on."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from crad.cli.terminal.progress import Display
from crad.federation.rounds import Step

LABEL = "cifar10 uncertainty, 10 of 100 clients, seed 1024"


def shown(width: int, *steps: Step, left_after: float | None = 7200.0) -> list[str]:
    """The line as it stood after each step, the first before any."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, legacy_windows=False)
    display = Display(console, is_quiet=False, num_runs=41)
    assert isinstance(console.file, io.StringIO)
    lines = []
    with display.running(LABEL, left_after=left_after) as shown:
        for step in (None, *steps):
            if step is not None:
                shown.on_step(step)
            console.file.truncate(0)
            assert display._progress is not None
            display._progress.refresh()
            lines.append(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\0]", "", console.file.getvalue()))
    return lines


def learning(round_index: int, position: int) -> Step:
    return Step("learning", round_index, 300, position, 10, client=7, loss=1.2345, validation_accuracy=43.21)


@pytest.mark.parametrize("width", [100, 120, 200])
def test_the_times_are_whole_however_narrow_the_terminal(width):
    begun, *_, line = shown(width, learning(1, 1), learning(1, 2))
    assert begun.startswith(f"[1/41] {LABEL}")
    assert "preparing" in begun
    assert "left" not in begun
    assert line.startswith(f"[1/41] {LABEL}")
    assert re.search(r"0:00:0\d left (-:--:--|\d+:\d\d:\d\d) all runs 2 h \d+ min", line), line
    assert len(line.strip().splitlines()) == 1
    assert ("validation 43.2 %" in line) == (width == 200)


def test_a_single_run_speaks_of_no_others():
    assert "all runs" not in shown(200, learning(1, 1), left_after=None)[-1]


def test_a_resumed_run_begins_where_it_was_stopped():
    _, line = shown(200, learning(150, 1))
    assert "round 150/300" in line
    done, _, todo = line.partition("╸")
    assert done.count("━") == 9, "149 of 300 rounds are nearly half of a bar of 20"
    assert todo.count("━") == 10
    assert "all runs" in line
