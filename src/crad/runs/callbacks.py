"""Those who follow a run from outside, beside the display: a page in the browser, a log of scalars.

A follower only listens: with or without one a run ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from crad.config import Experiment
from crad.federation.rounds import Step
from crad.runs.records import Record
from crad.runs.result import Result
from crad.runs.run_records import RunRecords

News = TypeVar("News")


@dataclass(frozen=True)
class Hooks:
    """What a display wants to hear: the data is divided, a client has learned, a round is complete."""

    on_partition: Callable[[Record], None] = lambda partition: None
    on_step: Callable[[Step], None] = lambda step: None
    on_round: Callable[[Record], None] = lambda record: None
    on_notice: Callable[[str], None] = lambda text: None  # something went wrong and was put right
    on_records: Callable[[RunRecords], None] | None = None  # all so far, after every round once one was tested


class Follower(Protocol):
    """Follows one run after the other; all its methods are called in the thread of the run."""

    def follow(self, experiment: Experiment, directory: Path, *, label: str) -> Hooks:
        """A run is about to begin or to be continued in this directory: what the follower wants to hear of it."""
        ...

    def end(self, result: Result) -> None:
        """That run is complete, and everything it writes is written."""
        ...

    def finish(self, report: Path) -> None:
        """No other run will come, and here is the report on all of them."""
        ...

    def close(self) -> None:
        """Let go of everything, also after an interruption; called last and once."""
        ...


def join_hooks(several: Sequence[Hooks]) -> Hooks:
    """One set of hooks that tells all of them, in their order."""
    return Hooks(
        on_partition=_each([hooks.on_partition for hooks in several]),
        on_step=_each([hooks.on_step for hooks in several]),
        on_round=_each([hooks.on_round for hooks in several]),
        on_notice=_each([hooks.on_notice for hooks in several]),
        on_records=_records(several),
    )


def _each(listeners: Sequence[Callable[[News], None]]) -> Callable[[News], None]:
    def tell(news: News) -> None:
        for listener in listeners:
            listener(news)

    return tell


def _records(several: Sequence[Hooks]) -> Callable[[RunRecords], None] | None:
    # Records cost a summary each round: they are made only where somebody wants them.
    wanted = [hooks.on_records for hooks in several if hooks.on_records is not None]
    return _each(wanted) if wanted else None
