"""Those who hear of a run: the display, a page in the browser, a log of scalars, a user's own.

A callback only listens: with or without one a run ends with the same bits. All methods are called in the run's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crad.config import Experiment
from crad.federation.rounds import Step
from crad.runs.records import Record
from crad.runs.run_records import RunRecords

if TYPE_CHECKING:  # a result can make pages, which stand above
    from crad.results.result import Result


class Callback:
    """Hears of one run after the other; override what is of interest.

    Example:
        >>> import crad
        >>> class Stopwatch(crad.Callback):
        ...     def on_round(self, record):
        ...         print(record["round"], record["timing"]["seconds"])
        >>> crad.run(crad.Experiment(preset="demo"), callbacks=[Stopwatch()])  # doctest: +SKIP
    """

    wants_records = False  # they cost a summary each round: made only where somebody wants them

    def on_run_begin(self, experiment: Experiment, directory: Path | None) -> None:
        """Hear that a run is about to begin or to go on in this directory; None: it writes nothing."""

    def on_partition(self, partition: Record) -> None:
        """Hear that the data is divided."""

    def on_step(self, step: Step) -> None:
        """Hear that one client has learned, been measured or been tested."""

    def on_round(self, record: Record) -> None:
        """Hear that a round is complete and on disk."""

    def on_records(self, records: RunRecords) -> None:
        """Hear all that there is so far, after every round once one was tested; only where `wants_records`."""

    def on_notice(self, text: str) -> None:
        """Hear that something went wrong and was put right."""

    def on_run_end(self, result: Result) -> None:
        """Hear that the run is complete, and everything it writes is written."""

    def on_report(self, report: Path) -> None:
        """Hear that no other run will come, and where the report on all of them is."""

    def close(self) -> None:
        """Let go of everything, also after an interruption; called last and once."""


class LambdaCallback(Callback):
    """A callback made of functions, for those who want to hear of one or two things.

    Example:
        >>> import crad
        >>> show = crad.LambdaCallback(on_round=lambda record: print(record["validation_accuracy"]))
        >>> crad.run(crad.Experiment(preset="demo"), callbacks=[show])  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        on_partition: Callable[[Record], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
        on_round: Callable[[Record], None] | None = None,
        on_records: Callable[[RunRecords], None] | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        given = {
            "on_partition": on_partition,
            "on_step": on_step,
            "on_round": on_round,
            "on_records": on_records,
            "on_notice": on_notice,
        }
        for name, function in given.items():
            if function is not None:
                setattr(self, name, function)
        self.wants_records = on_records is not None


class CallbackList(Callback):
    """Several callbacks as one: each is told, in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self.wants_records = any(one.wants_records for one in callbacks)

    def on_run_begin(self, experiment: Experiment, directory: Path | None) -> None:
        """Tell everybody."""
        for one in self._callbacks:
            one.on_run_begin(experiment, directory)

    def on_partition(self, partition: Record) -> None:
        """Tell everybody."""
        for one in self._callbacks:
            one.on_partition(partition)

    def on_step(self, step: Step) -> None:
        """Tell everybody."""
        for one in self._callbacks:
            one.on_step(step)

    def on_round(self, record: Record) -> None:
        """Tell everybody."""
        for one in self._callbacks:
            one.on_round(record)

    def on_records(self, records: RunRecords) -> None:
        """Tell those who want them."""
        for one in self._callbacks:
            if one.wants_records:
                one.on_records(records)

    def on_notice(self, text: str) -> None:
        """Tell everybody."""
        for one in self._callbacks:
            one.on_notice(text)

    def on_run_end(self, result: Result) -> None:
        """Tell everybody."""
        for one in self._callbacks:
            one.on_run_end(result)

    def on_report(self, report: Path) -> None:
        """Tell everybody."""
        for one in self._callbacks:
            one.on_report(report)

    def close(self) -> None:
        """Close everybody."""
        for one in self._callbacks:
            one.close()
