"""A callback that logs every round once, also over interruptions and while a server is away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from crad.config import Experiment
from crad.runs.callbacks import Callback
from crad.runs.directory import RunDirectory
from crad.runs.records import Record

if TYPE_CHECKING:  # a result can make pages, which stand above
    from crad.results.result import Result


class LogError(Exception):
    """A log that cannot be written now. The run goes on: what is missing is logged later."""


class Log(Protocol):
    """Where the scalars of one run after the other go. Each method may raise `LogError`."""

    name: str

    def open(self, directory: RunDirectory) -> set[int]:
        """Begin or continue the log of this run; the rounds that it has already."""
        ...

    def log_round(self, record: Record) -> None:
        """Log one round, whole or not at all."""
        ...

    def end(self, directory: RunDirectory, summary: Record) -> None:
        """Log the outcome, unless that is there, and let go of this run."""
        ...

    def close(self) -> None:
        """Let go of everything, also in the middle of a run."""
        ...


class Tracker(Callback):
    """Brings every round of the runs it follows into a log, exactly once."""

    def __init__(self, log: Log, *, notice: Callable[[str], None]) -> None:
        """`notice` hears of a log that cannot be written and of one that can again."""
        self._log = log
        self._notice = notice
        self._directory: RunDirectory | None = None
        self._logged: set[int] | None = None  # none: the log is not open yet
        self._waiting: list[Record] = []
        self._is_failing = False

    def on_run_begin(self, experiment: Experiment, directory: Path | None) -> None:
        """Log the run that begins or goes on in this directory; nothing is written before its first round is."""
        assert directory is not None, "a tracked run has a directory"
        self._directory, self._logged, self._waiting = RunDirectory(directory), None, []

    def on_round(self, record: Record) -> None:
        """Log a round, and those that could not be logged before."""
        if self._logged is None and not self._waiting:  # a resumed run may have rounds that no log has seen
            self._waiting = self._tracked.rounds()
        else:
            self._waiting.append(record)
        self._try(self._waiting)

    def on_run_end(self, result: Result) -> None:
        """Log what is still missing, and the outcome."""
        self._try(result.rounds, summary=result.summary)

    def close(self) -> None:
        """Write out what is under way."""
        self._log.close()

    @property
    def _tracked(self) -> RunDirectory:
        assert self._directory is not None, "a run has begun"
        return self._directory

    def _try(self, rounds: list[Record], *, summary: Record | None = None) -> None:
        try:
            if self._logged is None:
                self._logged = self._log.open(self._tracked)
            for record in rounds:
                if record["round"] not in self._logged:
                    self._log.log_round(record)
                    self._logged.add(record["round"])
            if summary is not None:
                self._log.end(self._tracked, summary)
        except LogError as error:
            self._logged = None  # opened again next time, to see what has arrived
            self._say_failing(error, is_last=summary is not None)
            return
        self._waiting = []
        if self._is_failing:
            self._notice(f"{self._log.name}: logging again, nothing is missing")
            self._is_failing = False

    def _say_failing(self, error: LogError, *, is_last: bool) -> None:
        if is_last:
            cure = f"crad run --resume {self._tracked.path} --{self._log.name} logs it"
            self._notice(f"{self._log.name}: the log is not complete ({error}); {cure}")
        elif not self._is_failing:
            self._notice(f"{self._log.name}: a round could not be logged ({error}); the run goes on and tries again")
        self._is_failing = not is_last
