"""`crad report RUN...`: one page about one or several runs, and its figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run directories, or folders of runs that crad compare wrote.")
]
Page = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Default: report.html in the one run's directory, or here."),
]
Figures = Annotated[
    Path | None, typer.Option("--figures", metavar="DIR", help="Write every figure as PDF, SVG and PNG as well.")
]
Force = Annotated[bool, typer.Option("--force", metavar="", help="Replace a page that is not one of the runs' own.")]


def report_command(runs: Runs, output: Page = None, figures: Figures = None, force: Force = False) -> None:
    """Write one page about runs on the same data: tables, figures, cost, and an inspector of single targets.

    Differences are against training alone (method local) where that is among the runs, else against the first.

    Example: crad report runs/first runs/alone --output both.html --figures figures/
    """
    from crad.analysis.comparable import comparable_runs
    from crad.analysis.verdict import joining_verdict
    from crad.errors import ConfigError, RunError
    from crad.files import write_atomically
    from crad.report.charts import INSTALL, charts_available, make_charts, save_chart
    from crad.report.inputs import alone_first, find_runs, load_for_report
    from crad.report.page import report_page
    from crad.runs.directory import REPORT_FILE

    if figures is not None and not charts_available():
        raise ConfigError(f"--figures needs another package: {INSTALL}")
    if output is not None and output.is_dir():
        raise ConfigError(f"--output {output} is a folder: name the file to write, such as {output / REPORT_FILE}")
    paths = find_runs(runs)
    path = output or (paths[0] if len(paths) == 1 else Path()) / REPORT_FILE
    is_there = path.exists()
    if is_there and not force and path.resolve() not in {(run / REPORT_FILE).resolve() for run in paths}:
        raise ConfigError(f"{path} is there already: choose another --output, or add --force to replace it")
    for folder in (path.parent, *([] if figures is None else [figures])):
        _make(folder)
    loaded = [load_for_report(path, notice=lambda text: typer.echo(f"crad: {text}", err=True)) for path in paths]
    records = alone_first(loaded)
    page = report_page(records)
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; choose another --output") from error
    if is_there:
        typer.echo(f"crad: {path} was there and is written again", err=True)
    if figures is not None:
        for chart in make_charts(comparable_runs(records)[0]):
            for file in save_chart(chart, figures):
                typer.echo(str(file))
    if (verdict := joining_verdict(comparable_runs(records)[0])) is not None:
        for line in (verdict.sentence, *verdict.lines):
            typer.echo(line, err=True)  # standard output is what was written
    typer.echo(str(path))


def _make(folder: Path) -> None:
    """Before anything is computed: a folder that cannot be had loses no time."""
    from crad.errors import RunError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}; choose another") from error
