"""The page of an experiment with a baseline: its tables and charts over all data sets at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.config import to_flags
from crad.paper.experiments import Metric, PaperExperiment, PlannedCell, plan_cells
from crad.paper.paper_tables import Finished
from crad.paper.study_charts import make_study_charts
from crad.paper.study_tables import Compared, find_compared, make_study_tables
from crad.report import charts
from crad.report.frame import framed_page
from crad.report.page import page_versions
from crad.report.sections.page_table import PageTable
from crad.report.tables import Table


def study_page(
    paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished, *, details: Sequence[str] = ()
) -> str:
    """Return the whole page. `details`: pages beside it, on the single worlds."""
    made = make_study_charts(paper, cells, finished)
    first = next(iter(finished.values()))[0]
    return framed_page(
        "study.html",
        title=paper.title,
        sentence=paper.caption,
        versions=page_versions(first.summary),
        data={"charts": {chart.name: chart.spec for chart in made}, "inspections": []},
        library=charts.javascript() if made else "",
        headline=_headline(paper, find_compared(paper, cells, finished)),
        tables=[_page_table(one, paper) for one in make_study_tables(paper, cells, finished)],
        charts=made,
        details=details,
        command=_command(paper, cells),
    )


def _page_table(shown: Table, paper: PaperExperiment) -> PageTable:
    """Return a table with its sections as a first column, the best marked in words."""
    section, rows = "", []
    for number, row in enumerate(shown.rows):
        section = shown.sections.get(number, section)
        rows.append([row[0].text, section, *(f"{cell.text} (best)" if cell.is_best else cell.text for cell in row[1:])])
    caption = shown.caption.removeprefix(f"{paper.caption} ")  # the page opens with it
    return PageTable([shown.header[0], "on", *shown.header[1:]], rows, caption, num_heads=2, title=shown.title)


def _command(paper: PaperExperiment, cells: Sequence[PlannedCell]) -> str:
    """Return the command that repeats the whole: preset, seeds, which part of it was run, and what else was changed."""
    preset, seeds = cells[0].experiment.preset, list(dict.fromkeys(cell.experiment.seed for cell in cells))
    as_said = {
        (cell.row.name, cell.column.name, cell.experiment.seed): cell.experiment.model_dump()
        for cell in plan_cells(paper, flags={"preset": preset}, seeds=seeds)
    }
    changed = {
        key: value
        for cell in cells
        for key, value in cell.experiment.model_dump().items()
        if key != "method_settings" and value != as_said[cell.row.name, cell.column.name, cell.experiment.seed][key]
    }
    columns = dict.fromkeys(cell.column.name for cell in cells)
    asked = [name for column in paper.columns if column.name in columns for name in column.asked]
    rows = dict.fromkeys(cell.row.name for cell in cells)
    chosen = [
        *([f"--rows {','.join(rows)}"] if len(rows) < len(paper.rows) else []),
        *([f"--columns {','.join(asked)}"] if len(columns) < len(paper.columns) else []),
    ]
    numbers = ",".join(map(str, seeds))
    parts = [f"crad reproduce {paper.name} --preset {preset} --seeds {numbers}", *chosen]
    return " ".join([*parts, f"--baseline {paper.baseline}", to_flags(changed)]).strip()


def _headline(paper: PaperExperiment, compared: Sequence[Compared]) -> Mapping[str, Any]:
    """Say what the row that the study is about does in every column, and where nothing is shown."""
    row = paper.headline_row()
    baseline = next(one for one in paper.rows if one.name == paper.baseline)
    about = [one for one in compared if one.outcome.row == row and one.difference is not None]
    of_metric = {
        metric: [one for one in about if one.outcome.metric == metric] for metric in paper.metrics if metric.best
    }
    lines = [_line(metric, own) for metric, own in of_metric.items() if own]
    if not lines:
        return {
            "verdict": f"{paper.label_of(row)} has not been run beside {paper.label_of(baseline)} yet.",
            "lines": [],
        }
    return {"verdict": f"{paper.label_of(row)} against {paper.label_of(baseline)}", "lines": lines}


def _line(metric: Metric, own: Sequence[Compared]) -> str:
    shown = {word: sum(one.verdict == word for one in own) for word in ("better", "worse")}
    open_ones = len(own) - sum(shown.values())
    counts = f"better on {shown['better']}, worse on {shown['worse']}, not shown on {open_ones} of {len(own)}"
    said = f"{metric.label}: {counts} ({'; '.join(map(_said, own))})."
    return said[0].upper() + said[1:]


def _said(one: Compared) -> str:
    assert one.difference is not None, "only what was compared is said"
    interval = one.difference.interval
    reach = ", one seed" if interval is None else f", {interval[0]:+.2f} to {interval[1]:+.2f}"
    return f"{one.outcome.column.label} {one.difference.figure.mean:+.2f}{reach}"
