"""A folder of runs: where each one lies, and the comparison that is written beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from crad.api import Result, settle
from crad.config import Experiment
from crad.federation.files import write_atomically
from crad.results.comparison import Row, compare, to_json
from crad.results.report import comparison_report
from crad.results.run_directory import RunDirectory
from crad.results.tables import (
    COMPARISON_HEADER,
    COST_CAPTION,
    COST_HEADER,
    comparison_caption,
    comparison_cells,
    cost_cells,
    markdown,
)


def run_folder(folder: Path, experiment: Experiment) -> tuple[Path, bool]:
    """Where a run of the comparison lies, and whether it has been begun; another experiment there is refused."""
    path = folder / f"{experiment.method.replace(':', '.').replace('/', '.')}-seed{experiment.seed}"
    directory = RunDirectory(path)
    if not directory.experiment_file.exists():
        directory.check_free(experiment)
        return path, False
    directory.check_same(settle(experiment))
    return path, True


def write_comparison(folder: Path, results: Sequence[Result]) -> list[Row]:
    """Write `comparison.json`, `comparison.md` and `report.html` into the folder of the runs."""
    summaries = [result.summary for result in results]
    rows = compare(summaries)
    table = f"{markdown(COMPARISON_HEADER, comparison_cells(rows))}\n{comparison_caption(rows)}\n"
    table += f"\n{markdown(COST_HEADER, cost_cells(rows))}\n{COST_CAPTION}\n"
    first_seed = summaries[0]["seed"]
    curves = {
        result.summary["method"]: [
            (float(record["round"]), float(record["global_accuracy"]))
            for record in result.rounds
            if record["global_accuracy"] is not None
        ]
        for result in results
        if result.summary["seed"] == first_seed
    }
    assert results[0].directory is not None, "compared runs have a directory"
    partition = RunDirectory(results[0].directory).read_json("partition.json")
    _write(folder / "comparison.json", json.dumps({"schema": 1, "rows": to_json(rows)}, indent=1) + "\n")
    _write(folder / "comparison.md", table)
    settings = {
        f"{result.experiment.method}.{name}": value
        for result in results
        for name, value in result.experiment.method_settings.items()
    }
    page = comparison_report(results[0].experiment, rows, summaries, curves, partition, settings)
    _write(folder / "report.html", page)
    return rows


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
