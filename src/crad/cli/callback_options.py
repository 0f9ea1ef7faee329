"""The flags of those who hear of a run: `--watch`, `--tensorboard`, `--mlflow`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_type_hints

import typer

from crad.errors import ConfigError

if TYPE_CHECKING:
    from crad.runs.callbacks import Callback


PANEL = "Watching and logging"
WatchFlag = Annotated[
    bool,
    typer.Option(
        "--watch", metavar="", help="Show the growing report on a page of this machine.", rich_help_panel=PANEL
    ),
]
PortFlag = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="PORT",
        min=1,
        max=65535,
        help="Port of the page that --watch shows (a free one).",
        rich_help_panel=PANEL,
    ),
]
TensorBoardFlag = Annotated[
    bool,
    typer.Option(
        "--tensorboard",
        metavar="",
        help="Log every round for TensorBoard, in the run directory.",
        rich_help_panel=PANEL,
    ),
]
MLflowFlag = Annotated[
    bool,
    typer.Option(
        "--mlflow",
        metavar="",
        help="Log every round to MLFLOW_TRACKING_URI, or to mlruns/ in the output.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class CallbackOptions:
    """Who is to hear of a run."""

    watch: WatchFlag = False
    port: PortFlag = None
    tensorboard: TensorBoardFlag = False
    mlflow: MLflowFlag = False

    @contextmanager
    def callbacks(self, store: Path) -> Iterator[list[Callback]]:
        """Open those that were asked for; one that cannot be had is refused here, before anything is written.

        `store` is the folder of everything that this command writes.
        """
        if self.port is not None and not self.watch:
            raise ConfigError("--port is the port of the page that --watch shows: add --watch")
        opened: list[Callback] = []
        with ExitStack() as stack:
            for callback in self._wanted(store):
                stack.callback(callback.close)
                opened.append(callback)
            yield opened

    def _wanted(self, store: Path) -> Iterator[Callback]:
        if self.tensorboard:
            from crad.runs.tracking import Tracker
            from crad.runs.tracking.tensorboard import TensorBoardLog

            yield Tracker(TensorBoardLog(), notice=_say)
        if self.mlflow:
            from crad.runs.tracking import Tracker
            from crad.runs.tracking.mlflow import MLflowLog

            yield Tracker(MLflowLog(store), notice=_say)
        if self.watch:
            from crad.report.live import Watch

            yield Watch(self.port or 0, announce=lambda address: _say(f"Watch it at {address}"))


def callback_flags() -> list[inspect.Parameter]:
    """Return one parameter of a command for each field."""
    kinds = get_type_hints(CallbackOptions, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
        )
        for field in fields(CallbackOptions)
    ]


def _say(text: str) -> None:
    """Also with --quiet: who asked for a page wants its address, and a log with holes is not to be hidden."""
    typer.echo(text, err=True)
