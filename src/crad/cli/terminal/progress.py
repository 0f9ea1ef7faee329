"""What a person sees while a run goes on: a live line on a terminal, a plain line per round elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from crad.analysis.durations import duration
from crad.analysis.privacy_spent import highest_epsilon
from crad.cli.terminal.terminal_tables import partition_table

if TYPE_CHECKING:
    from crad.federation.rounds import Step
    from crad.runs.callbacks import Callback
    from crad.runs.records import Record

SLOW_STAGE_SECONDS = 5.0
SHOWN_CLIENTS = 30  # a larger partition is only saved as a picture


class Display:
    """Progress over one or several runs, on standard error so that standard output stays clean."""

    def __init__(self, console: Console, *, is_quiet: bool, num_runs: int = 1) -> None:
        self._console = console
        self._is_quiet = is_quiet
        self._num_runs = num_runs
        self._begun_runs = 0
        self._label = ""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = 0.0
        self._first_round: int | None = None
        self._rounds = 0
        self._left_after: float | None = None
        self._stage_began = self._stage_said = 0.0

    @contextmanager
    def running(
        self, label: str, *, is_partition_shown: bool = True, left_after: float | None = None
    ) -> Iterator[Callback]:
        """Show one run while it goes on; with the seconds of the runs after it, also when all will be done."""
        from crad.runs.callbacks import Callback, LambdaCallback

        self._begun_runs += 1
        self._label = label if self._num_runs == 1 else f"[{self._begun_runs}/{self._num_runs}] {label}"
        self._started, self._first_round, self._task = time.monotonic(), None, None
        self._left_after = left_after
        partition = self._partition if is_partition_shown else None
        if self._is_quiet:
            yield Callback()
        elif self._console.is_terminal:
            with _live(self._console) as self._progress:
                # Data and worker processes come before the first step; how many rounds there are is known with it.
                self._task = self._progress.add_task(self._label, total=None, status="preparing", left="", all_left="")
                yield LambdaCallback(on_partition=partition, on_step=self._live_step, on_notice=self.say)
        else:
            yield LambdaCallback(
                on_partition=partition, on_step=self._note_step, on_round=self._plain_round, on_notice=self.say
            )

    def say(self, text: str) -> None:
        """One line for people."""
        if not self._is_quiet:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _partition(self, partition: Record) -> None:
        if len(partition["counts"]) <= SHOWN_CLIENTS:
            self._console.print(partition_table(partition, width=self._console.width))

    def _live_step(self, step: Step) -> None:
        assert self._progress is not None
        assert self._task is not None
        self._note_first_round(step)
        if self._progress.tasks[0].total is None:
            done = max(0, step.round_index - 1)
            self._progress.reset(self._task, total=step.rounds, completed=done, status="", left="left", all_left="")
        if step.stage == "learning":
            status = (
                f"round {step.round_index}/{step.rounds}  client {step.client}  loss {step.loss:.3f}  "
                f"validation {step.validation_accuracy:.1f} %"
            )
            reached = step.round_index - 1 + step.position / step.total
            self._progress.update(self._task, completed=reached, status=status, all_left=self._all_left(reached))
        else:
            self._progress.update(self._task, status=f"{step.stage} clients {step.position}/{step.total}")

    def _note_step(self, step: Step) -> None:
        self._note_first_round(step)
        self._say_slow_stage(step)

    def _note_first_round(self, step: Step) -> None:
        self._rounds = step.rounds
        if step.stage == "learning" and self._first_round is None:
            self._first_round = step.round_index

    def _left(self, reached: float) -> float:
        """Seconds until this run is done, when so many rounds are there."""
        assert self._first_round is not None, "a round has steps"
        done = reached - self._first_round + 1
        return (time.monotonic() - self._started) / done * (self._rounds - reached)

    def _all_left(self, reached: float) -> str:
        return "" if self._left_after is None else f"all runs {duration(self._left(reached) + self._left_after)}"

    def _say_slow_stage(self, step: Step) -> None:
        """Many clients take long to measure: a line now and then, with the time left."""
        now = time.monotonic()
        if step.position == 1:
            self._stage_began = self._stage_said = now
        if step.stage != "learning" and now - self._stage_said > SLOW_STAGE_SECONDS and step.position < step.total:
            self._stage_said = now
            left = (now - self._stage_began) / max(1, step.position - 1) * (step.total - step.position)
            self.say(f"{self._label}  {step.stage} clients {step.position}/{step.total}  left {duration(left)}")

    def _plain_round(self, record: Record) -> None:
        all_left = self._all_left(record["round"])
        losses = [client["losses"]["total"] for client in record["clients"] if "total" in client["losses"]]
        tested = ""
        if record["global_accuracy"] is not None:
            tested = f"  global {record['global_accuracy']:5.2f} %  local {record['local_accuracy']:5.2f} %"
        spent = highest_epsilon(record)
        if spent is not None:
            tested += f"  epsilon {spent:.3f}"
        self.say(
            f"{self._label}  round {record['round']}/{self._rounds}  loss {sum(losses) / max(1, len(losses)):.3f}  "
            f"validation {record['validation_accuracy']:5.2f} %{tested}  "
            f"left {duration(self._left(record['round']))}{f'  {all_left}' if all_left else ''}"
        )


class _Status(TextColumn):
    """What happens now. On a narrow terminal it is cut, and the times beside it are not."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


@contextmanager
def _live(console: Console) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20 if console.width > 100 else 8),
        _Status("{task.fields[status]}", markup=False, table_column=Column()),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[left]}"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[all_left]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress
