"""The records of a run, read back: all that a table, a chart or a page is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crad.config import Experiment
from crad.errors import RunError
from crad.runs.directory import INSPECTION_FILE, PARTITION_FILE, RunDirectory
from crad.runs.metrics_record import METRICS_FILE
from crad.runs.records import Record


@dataclass(frozen=True)
class RunRecords:
    """One run as it was written down; while it goes on, the summary is of the rounds so far."""

    experiment: Experiment
    partition: Record
    rounds: list[Record]
    summary: Record
    inspection: Record | None = None  # traces of single test images, for methods that combine teachers by a rule
    path: Path | None = None
    metrics: Record | None = None  # `metrics.json`; runs of earlier versions have none

    @property
    def is_complete(self) -> bool:
        """Return whether all rounds are there."""
        return len(self.rounds) == self.experiment.rounds


def load_run(path: Path) -> RunRecords:
    """Read the records of a complete run."""
    directory = RunDirectory(path)
    experiment, rounds = directory.experiment(), directory.full_rounds()
    if not rounds:
        raise RunError(f"{path} has no complete round yet: continue it with crad run --resume {path}")
    summary, partition = directory.summary(), directory.read_json(PARTITION_FILE)
    found = directory.read_json(INSPECTION_FILE) if (path / INSPECTION_FILE).is_file() else None
    metrics = directory.read_json(METRICS_FILE) if (path / METRICS_FILE).is_file() else None
    return RunRecords(experiment, partition, rounds, summary, found, path, metrics)
