"""A folder of runs: where each one lies, and the comparison that is written beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crad.analysis.comparable import comparable_runs
from crad.analysis.comparison import ComparisonRow, compare, to_json
from crad.analysis.metric_rows import metric_rows
from crad.analysis.metric_rows import to_json as metrics_json
from crad.analysis.verdict import JoiningVerdict, joining_verdict
from crad.analysis.verdict import to_json as verdict_json
from crad.config import Experiment
from crad.files import write_atomically
from crad.report.page import report_page
from crad.report.tables import (
    COMPARISON_HEADER,
    COST_CAPTION,
    COST_HEADER,
    METRIC_HEADER,
    comparison_caption,
    comparison_cells,
    cost_cells,
    markdown,
    metric_caption,
    metric_cells,
)
from crad.runs.directory import REPORT_FILE, RunDirectory
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


def write_comparison(folder: Path, results: Sequence[Result]) -> tuple[list[ComparisonRow], JoiningVerdict | None]:
    """Write `comparison.json`, `comparison.md` and `report.html` into the folder of the runs."""
    summaries = [result.summary for result in results]
    records = _records(results)
    rows, verdict = compare(summaries), joining_verdict(comparable_runs(records)[0])
    table = f"{markdown(COMPARISON_HEADER, comparison_cells(rows))}\n{comparison_caption(rows)}\n"
    table += f"\n{markdown(COST_HEADER, cost_cells(rows))}\n{COST_CAPTION}\n"
    measured = metric_rows(summaries)
    if measured:
        table += f"\n{markdown(METRIC_HEADER, metric_cells(measured))}\n{metric_caption(measured)}\n"
    if verdict is not None:
        table += "".join(f"\n{line}\n" for line in (verdict.sentence, *verdict.lines))
    content = {"schema": 1, "rows": to_json(rows), "verdict": verdict_json(verdict)}
    content |= {"metrics": metrics_json(measured)} if measured else {}
    _write(folder / "comparison.json", json.dumps(content, indent=1) + "\n")
    _write(folder / "comparison.md", table)
    _write(folder / REPORT_FILE, report_page(records))
    return rows, verdict


def _records(results: Sequence[Result]) -> list[RunRecords]:
    """Read the records back from the runs' directories, where their partitions and inspections lie."""
    return [load_run(result.directory) for result in results if result.directory is not None]


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
