"""The page and the figures of finished runs: which ones are meant, and what is still to be made for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from crad.analysis.gains import ALONE
from crad.errors import CradError, RunError
from crad.inspection import RunInspector, is_inspectable, write_inspection
from crad.methods import resolve_method
from crad.runs.directory import RunDirectory, runs_in
from crad.runs.run_records import RunRecords, load_run


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run directories that are meant; a folder of runs, as `crad compare` makes it, stands for all in it."""
    found: list[Path] = []
    for path in paths:
        if RunDirectory(path).experiment_file.is_file():
            found.append(path)
            continue
        inside = runs_in(path)
        if not inside:
            what = "is no run directory and holds none" if path.is_dir() else "does not exist"
            raise RunError(f"{path} {what}: name directories that crad run or crad compare wrote")
        found += inside
    return list(dict.fromkeys(found))


def alone_first(runs: Sequence[RunRecords]) -> list[RunRecords]:
    """Return the runs with training alone before the others: the first of a table is what differences are against."""
    return sorted(runs, key=lambda run: run.experiment.method != ALONE)


def load_for_report(path: Path, *, notice: Callable[[str], None]) -> RunRecords:
    """Return a run's records; make its inspection where that was never made and the checkpoint is still there."""
    run = load_run(path)
    experiment = run.experiment
    if run.inspection is not None or experiment.clients == 1:
        return run
    directory = RunDirectory(path)
    try:
        method = resolve_method(experiment.method, experiment.method_settings)
        if not is_inspectable(method, experiment.clients):
            return run
        with directory.locked():
            return replace(run, inspection=write_inspection(directory, RunInspector(path)))
    except (CradError, OSError) as error:
        notice(f"{path}: no inspector on the page, for its targets cannot be traced any more: {error}")
        return run
