"""The paper's tables with our figures beside the published ones, from the records of finished runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crad.analysis.comparison import Figure, over_seeds
from crad.config import setting_text
from crad.methods import resolve_method
from crad.paper.experiments import PAPER_PRESET, Metric, PaperColumn, PaperExperiment, PaperRow, PlannedCell
from crad.paper.measures import MEASURES, Value
from crad.report.tables import DIFFERENCE, RECONSTRUCTION, Cell, Table, three_figures
from crad.runs.run_records import RunRecords

# By row and column, in the order of the seeds; a cell without a finished run is not there.
Finished = Mapping[tuple[str, str], Sequence[RunRecords]]

ABSENT = "-"
# Training images of the whole data sets: a file may hold a part of one.
WHOLE = {"cifar10": 50_000, "cifar100": 50_000, "pathmnist": 89_996}


@dataclass(frozen=True)
class TableFigure:
    """One figure of a table: the paper's and ours, each None where there is none."""

    row: PaperRow
    column: PaperColumn
    metric: Metric
    paper: float | str | None
    ours: Figure | str | None
    seeds: tuple[int, ...]

    @property
    def deviation(self) -> float | None:
        """Return the standard deviation of our numbers, where there are several seeds."""
        return self.ours.deviation if isinstance(self.ours, Figure) and len(self.seeds) > 1 else None

    @property
    def difference(self) -> float | None:
        """Return ours minus the paper's, for numbers."""
        if isinstance(self.ours, Figure) and isinstance(self.paper, float):
            return self.ours.mean - self.paper
        return None


def find_outcomes(paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished) -> list[TableFigure]:
    """Return every figure of an experiment's planned cells, column by column and row by row."""
    planned = {(cell.row.name, cell.column.name) for cell in cells}
    return [
        _outcome(row, column, metric, finished.get((row.name, column.name), ()))
        for column in paper.columns
        for row in paper.rows
        if (row.name, column.name) in planned
        for metric in paper.metrics
        if not metric.columns or column.name in metric.columns
    ]


def _outcome(row: PaperRow, column: PaperColumn, metric: Metric, runs: Sequence[RunRecords]) -> TableFigure:
    measured = [(run.experiment.seed, MEASURES[metric.name](run, row.name)) for run in runs]
    there = [(seed, value) for seed, value in measured if value is not None]
    return TableFigure(
        row,
        column,
        metric,
        paper=row.published.get(column.name, {}).get(metric.name),
        ours=_together([value for _, value in there]),
        seeds=tuple(seed for seed, _ in there),
    )


def _together(values: Sequence[Value]) -> Figure | str | None:
    numbers = [value for value in values if isinstance(value, float)]
    if not values:
        return None
    return over_seeds(numbers) if len(numbers) == len(values) else "/".join(dict.fromkeys(map(str, values)))


def make_paper_table(paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished) -> Table:
    """Return the experiment as a table for people, with all that one must know to read it in the caption."""
    found = {(one.column.name, one.row.name, one.metric.name): one for one in find_outcomes(paper, cells, finished)}
    layout = _metrics_down if paper.orientation == "metrics" else _rows_down
    headings, rows, sections = layout(paper, found)
    caption = " ".join([paper.caption, *_marks(paper, found), *circumstances(paper, cells, finished)])
    return Table(paper.name, f"{paper.title} ({paper.source})", headings, rows, caption, sections)


Found = Mapping[tuple[str, str, str], TableFigure]
_Headings = tuple[tuple[str, tuple[str, ...]], ...]
_Layout = tuple[_Headings, tuple[tuple[Cell, ...], ...], dict[int, str]]


def _rows_down(paper: PaperExperiment, found: Found) -> _Layout:
    """Return a line per row of the experiment, a section per column where there are several."""
    headings = [("", ("method",)), *((metric.title, _whose(metric, found)) for metric in paper.metrics)]
    lines: list[tuple[Cell, ...]] = []
    sections = {}
    for column in paper.columns:
        rows = [row for row in paper.rows if (column.name, row.name, paper.metrics[0].name) in found]
        if rows and len(paper.columns) > 1:
            sections[len(lines)] = column.label
        for row in rows:
            line = [Cell(row_label(paper, row, column))]
            for metric in paper.metrics:
                line += _three_cells(paper, found[column.name, row.name, metric.name], found)
            lines.append(tuple(line))
    return tuple(headings), tuple(lines), sections


def _whose(metric: Metric, found: Found) -> tuple[str, ...]:
    paper = ("paper",) if _is_published(metric, found) else ()
    return (*paper, "ours", *((DIFFERENCE,) if _has_difference(metric, found) else ()))


def _metrics_down(paper: PaperExperiment, found: Found) -> _Layout:
    """Return a line per metric, paper and ours side by side for every row of the experiment."""
    parts = list(dict.fromkeys((column, row) for column, row, _ in found))
    labels = {row.name: paper.label_of(row) for row in paper.rows}
    is_published = any(one.paper is not None for one in found.values())
    whose = ("paper", "ours") if is_published else ("ours",)
    headings = (("", ("",)), *((labels[row], whose) for _, row in parts))
    lines = []
    for metric in paper.metrics:
        line = [Cell(f"{metric.label}, {metric.unit}" if metric.unit else metric.label)]
        for column, row in parts:
            outcome = found[column, row, metric.name]
            line += [Cell(_paper_text(outcome))] if is_published else []
            line.append(Cell(our_text(outcome)))
        lines.append(tuple(line))
    return headings, tuple(lines), {}


def _three_cells(paper: PaperExperiment, outcome: TableFigure, found: Found) -> list[Cell]:
    """Return the paper's figure, ours and the difference, as far as the metric has them."""
    best_paper, best_ours = find_best(paper, outcome, found)
    cells = [Cell(_paper_text(outcome), best_paper)] if _is_published(outcome.metric, found) else []
    cells.append(Cell(our_text(outcome), best_ours))
    if _has_difference(outcome.metric, found):
        digits = outcome.metric.digits if outcome.metric.digits != "three" else 2
        difference = outcome.difference
        cells.append(Cell(ABSENT if difference is None else f"{difference:+.{digits}f}"))
    return cells


def find_best(paper: PaperExperiment, outcome: TableFigure, found: Found) -> tuple[bool, bool]:
    """Tell whether the paper's figure and ours are the best of those compared; training alone does not compete.

    The paper's is the best of all its rows, also where only some of them are planned.
    """
    metric, column = outcome.metric, outcome.column.name
    if metric.best is None or outcome.row.is_reference:
        return False, False
    rivals = [row for row in paper.rows if not row.is_reference]
    published = [row.published.get(column, {}).get(metric.name) for row in rivals]
    theirs = [found[column, row.name, metric.name].ours for row in rivals if (column, row.name, metric.name) in found]
    own = outcome.ours.mean if isinstance(outcome.ours, Figure) else None
    return (
        _wins(outcome.paper, [value for value in published if isinstance(value, float)], metric),
        _wins(own, [ours.mean for ours in theirs if isinstance(ours, Figure)], metric),
    )


def _wins(value: float | str | None, rivals: Sequence[float], metric: Metric) -> bool:
    return len(set(rivals)) > 1 and value == (max if metric.best == "highest" else min)(rivals)


def _is_published(metric: Metric, found: Found) -> bool:
    return any(one.paper is not None for one in found.values() if one.metric == metric)


def _has_difference(metric: Metric, found: Found) -> bool:
    return any(isinstance(one.paper, float) for one in found.values() if one.metric == metric)


def row_label(paper: PaperExperiment, row: PaperRow, column: PaperColumn) -> str:
    """Return how a row is headed, with a mark where the method's code is not public."""
    method = resolve_method(paper.settings_of(row, column)["method"])
    label = paper.label_of(row)
    return f"{label} {RECONSTRUCTION}" if method.is_reconstruction else label


def _paper_text(outcome: TableFigure) -> str:
    if outcome.paper is None or isinstance(outcome.paper, str):
        return outcome.paper or ABSENT
    if outcome.metric.is_approximate:
        return f"≈ {outcome.paper:g}"
    return f"{outcome.paper:g}" if outcome.metric.digits == "three" else number(outcome.paper, outcome.metric)


def our_text(outcome: TableFigure) -> str:
    """Return our mean, and the deviation where there are several seeds."""
    if not isinstance(outcome.ours, Figure):
        return outcome.ours or ABSENT
    mean = number(outcome.ours.mean, outcome.metric)
    places = len(mean.partition(".")[2])  # a deviation is told as finely as its mean
    return mean if len(outcome.seeds) < 2 else f"{mean} ± {outcome.ours.deviation:.{places}f}"


def number(value: float, metric: Metric) -> str:
    """Return a figure with as many digits as its metric wants."""
    return three_figures(value) if metric.digits == "three" else f"{value:.{metric.digits}f}"


def _marks(paper: PaperExperiment, found: Found) -> list[str]:
    said = []
    if paper.orientation == "rows":
        has_best = any(metric.best for metric in paper.metrics)
        said += (
            [f"{DIFFERENCE}: ours minus the paper's."]
            if any(_has_difference(metric, found) for metric in paper.metrics)
            else []
        )
        alone = ", training alone not counted" if any(row.is_reference for row in paper.rows) else ""
        said += [f"Bold: best of a column{alone}."] if has_best else []
        if any(row_label(paper, one.row, one.column).endswith(RECONSTRUCTION) for one in found.values()):
            said.append(f"{RECONSTRUCTION}: our reconstruction, no public code.")
    said += [f"The paper says: {' '.join(paper.claims)}"] if paper.claims else []
    return said


def circumstances(paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished) -> list[str]:
    """Return sentences on what ours was measured with, and in what it is not the paper's experiment."""
    runs = list({id(run): run for of_cell in finished.values() for run in of_cell}.values())
    first = cells[0].experiment
    seeds = _listed(cell.experiment.seed for cell in cells)
    whose = "Measured with" if paper.baseline else "Ours:"
    sentences = [f"{whose} preset {first.preset}, {'seeds' if ',' in seeds else 'seed'} {seeds}"]
    if any(len(of_cell) > 1 for of_cell in finished.values()):
        sentences[0] += " (mean ± standard deviation)"
    sentences[0] += f", {_listed(cell.experiment.rounds for cell in cells)} rounds"
    if runs:
        summaries = [run.summary for run in runs]
        sentences[0] += (
            f", {_listed(one['train_images'] for one in summaries)} training and "
            f"{_listed(one['test_images'] for one in summaries)} test "
            f"{', '.join(dict.fromkeys(run.partition.get('samples', 'images') for run in runs))}, on "
            f"{_listed(_hardware(run) for run in runs)}"
        )
    sentences[0] += "."
    wanted = {cell.experiment for cell in cells}
    if len(runs) < len(wanted):
        absent = "not run" if paper.baseline else "not run, or not in the paper"
        sentences.append(f"{len(runs)} of {len(wanted)} runs are there; {ABSENT}: {absent}.")
    return [*sentences, *_departure_sentence(paper, cells, runs)]


def _departure_sentence(paper: PaperExperiment, cells: Sequence[PlannedCell], runs: Sequence[RunRecords]) -> list[str]:
    pairs: dict[str, list[tuple[object, object]]] = {}
    for cell in cells:
        for key, pair in cell.departures.items():
            pairs.setdefault(key, []).append(pair)
    said = [
        f"{key} {_listed(ours for ours, _ in both)} (paper: {_listed(theirs for _, theirs in both)})"
        for key, both in pairs.items()
    ]
    if "train_limit" not in pairs:
        parts = {
            f"{run.summary['train_images']} of the {WHOLE[run.experiment.dataset]} training images of "
            f"{run.experiment.dataset}"
            for run in runs
            if run.summary["train_images"] < WHOLE.get(run.experiment.dataset, 0)
        }
        said += sorted(parts)
    if not said and paper.baseline:
        return []  # of our own, and as its file says
    if not said:
        return ["No setting departs from the paper's protocol."]
    if paper.baseline:
        return [f"The scale is not the paper's: {'; '.join(said)}."]
    return [f"This is no reproduction of the paper's figures, the scale is another: {'; '.join(said)}."]


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(setting_text, values)))


def _hardware(run: RunRecords) -> str:
    found = run.summary["hardware"]
    processor = found.get("processor", "an unknown processor")
    device = " ".join([str(found.get("device")), *dict.fromkeys(found.get("gpus", ()))])
    return f"{processor} ({device}, {found.get('cores')} cores)"


def tidy_rows(paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished) -> list[dict[str, str]]:
    """Return one dictionary per figure, for programs; an absent one is an empty text."""
    preset = cells[0].experiment.preset if cells else PAPER_PRESET
    datasets = datasets_of(cells)
    return [
        {
            "table": paper.name,
            "row": one.row.name,
            "column": one.column.name,
            "dataset": datasets[one.row.name, one.column.name],
            "metric": one.metric.name,
            "paper": tidy_value(one.paper),
            "ours_mean": tidy_value(one.ours.mean if isinstance(one.ours, Figure) else one.ours),
            "ours_deviation": tidy_value(one.deviation),
            "difference": tidy_value(one.difference),
            "seeds": " ".join(map(str, one.seeds)),
            "preset": preset,
        }
        for one in find_outcomes(paper, cells, finished)
    ]


def datasets_of(cells: Sequence[PlannedCell]) -> dict[tuple[str, str], str]:
    """Return the data set that the runs of every row and column are really on."""
    return {(cell.row.name, cell.column.name): cell.experiment.dataset for cell in cells}


def tidy_csv(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def tidy_value(value: float | str | None) -> str:
    """Return a value as a program reads it."""
    return "" if value is None else value if isinstance(value, str) else f"{round(value, 6):g}"
