"""Tables of an experiment with a baseline: every row beside it, with paired differences and their intervals.

One table per metric, a section per column, so that a line stays within eighty letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crad.analysis.chart_rows import Row
from crad.analysis.comparison import Figure
from crad.analysis.intervals import Paired, paired
from crad.paper.experiments import Metric, PaperExperiment, PlannedCell
from crad.paper.paper_tables import (
    ABSENT,
    Finished,
    Found,
    TableFigure,
    circumstances,
    datasets_of,
    find_best,
    find_outcomes,
    number,
    our_text,
    row_label,
    tidy_value,
)
from crad.report.tables import Cell, Table

VERDICTS = {1: "better", 0: "", -1: "worse"}


@dataclass(frozen=True)
class Compared:
    """One figure of a study and its difference to the baseline's, None for the baseline and without a common seed."""

    outcome: TableFigure
    difference: Paired | None
    unpaired: tuple[int, ...] = ()  # seeds of either that the other was not run with

    @property
    def verdict(self) -> str:
        """Return `better` or `worse` where the interval leaves out zero and one end is the good one."""
        if self.difference is None or self.outcome.metric.best is None:
            return ""
        return VERDICTS[self.difference.sign * (-1 if self.outcome.metric.best == "lowest" else 1)]


def find_compared(paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished) -> list[Compared]:
    """Return every figure of the planned cells beside the baseline's of the same column, metric by metric."""
    outcomes = find_outcomes(paper, cells, finished)
    baseline = {(one.column.name, one.metric.name): _by_seed(one) for one in outcomes if one.row.name == paper.baseline}
    return [
        _compared(one, baseline.get((one.column.name, one.metric.name), {}), is_baseline=one.row.name == paper.baseline)
        for metric in paper.metrics
        for one in outcomes
        if one.metric == metric
    ]


def find_damage(paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished) -> list[Compared]:
    """Return every figure beside that of its row in the control column, metric by metric; none without a control."""
    outcomes = [] if paper.control is None else find_outcomes(paper, cells, finished)
    control = {(one.row.name, one.metric.name): _by_seed(one) for one in outcomes if one.column.name == paper.control}
    return [
        _compared(one, control.get((one.row.name, one.metric.name), {}), is_baseline=False)
        for metric in paper.metrics
        for one in outcomes
        if one.metric == metric and one.column.name != paper.control
    ]


def make_study_tables(paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished) -> list[Table]:
    """Return a table per metric; the first one's caption says what holds for all."""
    every = find_compared(paper, cells, finished)
    found = {(one.outcome.column.name, one.outcome.row.name, one.outcome.metric.name): one.outcome for one in every}
    first = paper.metrics[0]
    tables = []
    for metric in paper.metrics:
        own = [one for one in every if one.outcome.metric == metric]
        about = (
            [paper.caption, _marks(paper, own), *circumstances(paper, cells, finished)]
            if metric == first
            else [f"What is shown, and of which runs, stands at the table of {first.label}."]
        )
        caption = " ".join([*about, *_unpaired_sentence(paper, own)])
        tables.append(_table(paper, metric, own, found, caption))
    return [*tables, *_damage_tables(paper, find_damage(paper, cells, finished), found)]


def _damage_tables(paper: PaperExperiment, damage: Sequence[Compared], found: Found) -> list[Table]:
    """Return the same figures against the control column, a table per metric."""
    if not damage:
        return []
    label = _control_label(paper)
    caption = (
        f"The same runs, each row minus itself in the column {label!r} with the same seed, in points; intervals and "
        "verdicts as above."
    )
    of_metric = {metric: [one for one in damage if one.outcome.metric == metric] for metric in paper.metrics}
    return [_table(paper, metric, own, found, caption, against=label) for metric, own in of_metric.items() if own]


def study_rows(paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished) -> list[dict[str, str]]:
    """Return one dictionary per figure, for programs; an absent one is an empty text."""
    compared = [(one, paper.baseline or "") for one in find_compared(paper, cells, finished)]
    compared += [(one, f"column {paper.control}") for one in find_damage(paper, cells, finished)]
    return [_tidy_row(paper, one, cells, against=against) for one, against in compared]


def difference_rows(paper: PaperExperiment, compared: Sequence[Compared], metric: Metric) -> list[Row]:
    """Return the differences of one metric as rows for a chart, a panel per column; no interval with one seed."""
    rows = []
    for one in compared:
        if one.difference is None or one.outcome.metric != metric:
            continue
        low, high = one.difference.interval or (None, None)
        rows.append(
            {
                "method": paper.label_of(one.outcome.row),
                "panel": one.outcome.column.label,
                "baseline": _baseline_label(paper),
                "difference": one.difference.figure.mean,
                "low": low,
                "high": high,
                "verdict": one.verdict,
                "seeds": len(one.difference.seeds),
            }
        )
    return rows


def _by_seed(outcome: TableFigure) -> dict[int, float]:
    return dict(zip(outcome.seeds, outcome.ours.values, strict=True)) if isinstance(outcome.ours, Figure) else {}


def _compared(outcome: TableFigure, baseline: dict[int, float], *, is_baseline: bool) -> Compared:
    own = _by_seed(outcome)
    if is_baseline or not own:
        return Compared(outcome, None)
    return Compared(outcome, paired(own, baseline), tuple(sorted(own.keys() ^ baseline.keys())))


def _table(
    paper: PaperExperiment,
    metric: Metric,
    compared: Sequence[Compared],
    found: Found,
    caption: str,
    *,
    against: str | None = None,
) -> Table:
    """Return one metric as a table; `against`: the column that rows are compared to, in place of the baseline."""
    lines: list[tuple[Cell, ...]] = []
    sections: dict[int, str] = {}
    for one in compared:
        if one.outcome.column.label not in sections.values():
            sections[len(lines)] = one.outcome.column.label
        _, is_best = find_best(paper, one.outcome, found)
        texts = [_difference_text(one), _interval_text(one), one.verdict]
        label = row_label(paper, one.outcome.row, one.outcome.column)
        lines.append((Cell(label), Cell(our_text(one.outcome), is_best), *map(Cell, texts)))
    columns = ("method", metric.title, f"Δ {against or _baseline_label(paper)}", "95 % interval", "verdict")
    title = f"{paper.title}: {metric.title}" + (f", against {against}" if against else "")
    name = f"{paper.name}-{metric.label}" + ("-damage" if against else "")
    return Table(name, title, (("", columns),), tuple(lines), caption, sections)


def _baseline_label(paper: PaperExperiment) -> str:
    return next(paper.label_of(row) for row in paper.rows if row.name == paper.baseline)


def _control_label(paper: PaperExperiment) -> str:
    return next(column.label for column in paper.columns if column.name == paper.control)


def _difference_text(one: Compared) -> str:
    return ABSENT if one.difference is None else _signed(one.difference.figure.mean, one.outcome.metric)


def _interval_text(one: Compared) -> str:
    interval = None if one.difference is None else one.difference.interval
    return ABSENT if interval is None else " to ".join(_signed(end, one.outcome.metric) for end in interval)


def _signed(value: float, metric: Metric) -> str:
    return f"{'+' * (value >= 0)}{number(value, metric)}"


def _marks(paper: PaperExperiment, compared: Sequence[Compared]) -> str:
    reference = ", training alone not counted" if any(row.is_reference for row in paper.rows) else ""
    said = f"Δ: minus {_baseline_label(paper)} with the same seed, mean over the seeds, in points"
    if any(one.difference is not None and one.difference.interval for one in compared):
        said += (
            ", with its 95 % interval (Student's t over the seeds' differences). Better, worse: the interval leaves "
            "out zero; every line is judged by itself, and of twenty lines without any effect one is expected to "
            "say so. No verdict: no difference is shown"
        )
    elif any(one.difference is not None for one in compared):
        said += "; one seed gives no interval"
    return f"{said}. Bold or (best): best of a section{reference}."


def _unpaired_sentence(paper: PaperExperiment, compared: Sequence[Compared]) -> list[str]:
    said = [
        f"{paper.label_of(one.outcome.row)} on {one.outcome.column.label} ({', '.join(map(str, one.unpaired))})"
        for one in compared
        if one.unpaired
    ]
    if not said:
        return []
    return [f"Seeds that only the row or only {_baseline_label(paper)} has are not in Δ: {'; '.join(said)}."]


def _tidy_row(paper: PaperExperiment, one: Compared, cells: Sequence[PlannedCell], *, against: str) -> dict[str, str]:
    outcome, ours, difference = one.outcome, one.outcome.ours, one.difference
    low, high = (difference.interval if difference is not None else None) or (None, None)
    return {
        "table": paper.name,
        "row": outcome.row.name,
        "name": paper.label_of(outcome.row),
        "column": outcome.column.name,
        "dataset": datasets_of(cells)[outcome.row.name, outcome.column.name],
        "metric": outcome.metric.name,
        "mean": tidy_value(ours.mean if isinstance(ours, Figure) else ours),
        "deviation": tidy_value(outcome.deviation),
        "seeds": " ".join(map(str, outcome.seeds)),
        "baseline": against,
        "difference": tidy_value(None if difference is None else difference.figure.mean),
        "interval_low": tidy_value(low),
        "interval_high": tidy_value(high),
        "paired_seeds": " ".join(map(str, difference.seeds)) if difference is not None else "",
        "verdict": one.verdict,
        "preset": cells[0].experiment.preset,
    }
