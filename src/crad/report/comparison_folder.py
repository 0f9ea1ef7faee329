"""A folder of runs: where each one lies, and the comparison that is written beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crad.analysis.comparison import ComparisonRow, compare, to_json
from crad.config import Experiment
from crad.files import write_atomically
from crad.report.page import report_page
from crad.report.tables import (
    COMPARISON_HEADER,
    COST_CAPTION,
    COST_HEADER,
    comparison_caption,
    comparison_cells,
    cost_cells,
    markdown,
)
from crad.runs.directory import RunDirectory
from crad.runs.resolution import resolve_experiment
from crad.runs.run_records import RunRecords, load_run

if TYPE_CHECKING:  # a result can make pages, which stand above
    from crad.results.result import Result


def run_folder(folder: Path, experiment: Experiment) -> tuple[Path, bool]:
    """Return where a run of the comparison lies and whether it has begun; refuse another experiment there."""
    path = folder / f"{experiment.method.replace(':', '.').replace('/', '.')}-seed{experiment.seed}"
    directory = RunDirectory(path)
    if not directory.experiment_file.exists():
        directory.check_free(experiment)
        return path, False
    directory.check_same(resolve_experiment(experiment))
    return path, True


def write_comparison(folder: Path, results: Sequence[Result]) -> list[ComparisonRow]:
    """Write `comparison.json`, `comparison.md` and `report.html` into the folder of the runs."""
    summaries = [result.summary for result in results]
    rows = compare(summaries)
    table = f"{markdown(COMPARISON_HEADER, comparison_cells(rows))}\n{comparison_caption(rows)}\n"
    table += f"\n{markdown(COST_HEADER, cost_cells(rows))}\n{COST_CAPTION}\n"
    _write(folder / "comparison.json", json.dumps({"schema": 1, "rows": to_json(rows)}, indent=1) + "\n")
    _write(folder / "comparison.md", table)
    _write(folder / "report.html", report_page(_records(results)))
    return rows


def _records(results: Sequence[Result]) -> list[RunRecords]:
    """Read the records back from the runs' directories, where their partitions and inspections lie."""
    return [load_run(result.directory) for result in results if result.directory is not None]


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
