"""What `crad.run` returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crad.config import Experiment
from crad.runs.records import Record


@dataclass(frozen=True)
class Result:
    """What a run came to. `rounds` are the lines of `rounds.jsonl`, `summary` is `summary.json`."""

    experiment: Experiment
    summary: Record
    rounds: list[Record]
    directory: Path | None
