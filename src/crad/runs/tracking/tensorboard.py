"""The log for TensorBoard: event files in `tensorboard/` of the run directory, one event for each round."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crad.errors import ConfigError, install_hint
from crad.runs.directory import RunDirectory
from crad.runs.records import Record
from crad.runs.tracking.scalars import SUMMARY_PREFIX, hyperparameters, round_scalars, summary_scalars
from crad.runs.tracking.tracker import LogError

FOLDER = "tensorboard"


class TensorBoardLog:
    """Written with tensorboard's own writer: one record a round, so that a round is there whole or not at all."""

    name = "tensorboard"

    def __init__(self) -> None:
        """Refused where the package is missing."""
        try:
            import tensorboard.summary.writer.event_file_writer  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"--tensorboard needs a package that is not there ({error}): {install_hint('tracking')}"
            ) from error
        self._writer: Any = None
        self._has_outcome = False

    def open(self, directory: RunDirectory) -> set[int]:
        """Continue behind what the run's event files hold."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.close()
        folder = directory.path / FOLDER
        try:
            rounds, tags = _logged(folder)
            self._has_outcome = any(tag.startswith(SUMMARY_PREFIX) for tag in tags)
            self._writer = EventFileWriter(str(folder))
            if not tags:
                self._write(hparams_pb(hyperparameters(directory.experiment())), step=0)
        except OSError as error:
            raise LogError(error.strerror or str(error)) from error
        return rounds

    def log_round(self, record: Record) -> None:
        """All scalars of the round in one event."""
        self._write(_scalars(round_scalars(record)), step=record["round"])

    def end(self, directory: RunDirectory, summary: Record) -> None:
        """Log the numbers of the summary, at the round that it reports."""
        if not self._has_outcome:
            self._write(_scalars(summary_scalars(summary)), step=summary["best_round"])
        self.close()

    def close(self) -> None:
        """Write out and close the file, if one is open."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write(self, summary: Any, *, step: int) -> None:  # noqa: ANN401  # protocol buffers have no types
        from tensorboard.compat.proto.event_pb2 import Event

        try:
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
            self._writer.flush()
        except OSError as error:
            raise LogError(error.strerror or str(error)) from error


def _scalars(values: Mapping[str, float]) -> Any:  # noqa: ANN401  # protocol buffers have no types
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])


def _logged(folder: Path) -> tuple[set[int], set[str]]:
    """Return the rounds that event files hold, and all their tags."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    rounds, tags = set(), set()
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            own = {value.tag for value in event.summary.value}
            tags |= own
            if "payload_bytes" in own:  # every round has it
                rounds.add(event.step)
    return rounds, tags
