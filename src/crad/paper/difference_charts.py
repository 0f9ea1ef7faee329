"""Charts of an experiment with a baseline: differences to it with their intervals, and accuracy over rounds."""

from __future__ import annotations

from collections.abc import Sequence

from crad.analysis.chart_rows import Row
from crad.analysis.groups import by_method
from crad.paper.experiments import Metric, PaperExperiment, PlannedCell
from crad.paper.paper_tables import Finished
from crad.paper.study_tables import difference_rows, find_compared
from crad.paper.tradeoff_chart import tradeoff_chart
from crad.report.charts import vega_lite as alt
from crad.report.charts.chart import ReportChart, labelled
from crad.report.charts.lines import accuracy_chart
from crad.report.charts.parts import ROWS, finished, listing, method_axis, method_colour, method_shape, methods_in
from crad.report.charts.style import PLOT_WIDTH

WIDTH = PLOT_WIDTH - 70  # names of variants stand beside it
ROW_HEIGHT = 22


def study_charts(paper: PaperExperiment, cells: Sequence[PlannedCell], finished_runs: Finished) -> list[ReportChart]:
    """Return charts of differences per metric, of accuracy against what is sent, and over rounds per column."""
    compared = find_compared(paper, cells, finished_runs)
    made = [differences_chart(paper, metric, difference_rows(paper, compared, metric)) for metric in paper.metrics]
    made.append(tradeoff_chart(paper, compared))
    for column in paper.columns:
        runs = [run for row in paper.rows for run in finished_runs.get((row.name, column.name), ())]
        chart = accuracy_chart(by_method(runs)) if runs else None
        made.append(chart and labelled(chart, column.label))
    return [chart for chart in made if chart is not None]


def differences_chart(paper: PaperExperiment, metric: Metric, rows: list[Row]) -> ReportChart | None:
    """Show every row minus the baseline: points with interval bars, a panel per column."""
    if not rows:
        return None
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    names = methods_in(rows)
    baseline = rows[0]["baseline"]
    what = metric.label if metric.best == "lowest" else f"{metric.label} accuracy"
    title = f"{what} minus that of {baseline} (points)"
    drawn = [_panel(rows, panel, names, title if panel == panels[-1] else None) for panel in panels]
    sure = [f"{row['method']} {row['difference']:+.1f} on {row['panel']}" for row in rows if row["verdict"]]
    bars = (
        " Bars: 95 % intervals, Student's t over the seeds' differences; a filled mark has one that leaves out zero."
        if any(row["low"] is not None for row in rows)
        else " One seed each: no intervals."
    )
    return finished(
        alt.vconcat(*drawn, spacing=14),
        rows=rows,
        more={"zero": [{"difference": 0}]},
        name=f"differences-{metric.label}",
        title=f"{paper.title}: {what} against {baseline}",
        caption=f"Difference to {baseline} with the same seed, mean over the seeds, in percentage points; the dashed "
        f"line is {baseline}.{bars}",
        alt_text=f"Differences that are shown: {listing(sure)}." if sure else "No difference is shown by its interval.",
    )


def _panel(rows: Sequence[Row], panel: str, names: Sequence[str], title: str | None) -> alt.LayerChart:
    own = methods_in([row for row in rows if row["panel"] == panel])
    ends = [row[key] for row in rows for key in ("low", "high", "difference") if row[key] is not None]
    reach = max(map(abs, ends)) or 1.0
    low, high = min(0.0, *ends) - reach / 20, max(0.0, *ends) + reach / 20  # the same in every panel
    x = alt.X(
        "difference:Q",
        title=title,
        scale=alt.Scale(domain=[low, high], nice=False, zero=False),
        axis=alt.Axis(tickCount=6, labels=title is not None, ticks=title is not None),
    )
    y, colour, shape = method_axis(own, title=None), method_colour(names, None), method_shape(names, None)
    hints = [
        alt.Tooltip("method:N", title="method"),
        alt.Tooltip("panel:N", title="on"),
        alt.Tooltip("difference:Q", title="difference (points)", format="+.2f"),
        alt.Tooltip("low:Q", title="from", format="+.2f"),
        alt.Tooltip("high:Q", title="to", format="+.2f"),
        alt.Tooltip("seeds:Q", title="seeds"),
    ]
    base = alt.Chart(ROWS).transform_filter(alt.FieldEqualPredicate(field="panel", equal=panel))
    bars = (
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=2)
        .encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour)
    )
    points = base.encode(x=x, y=y, color=colour, shape=shape, tooltip=hints)
    hollow = points.transform_filter("datum.verdict == ''").mark_point(
        size=70, strokeWidth=2, fill="transparent", opacity=1
    )
    filled = points.transform_filter("datum.verdict != ''").mark_point(size=70, strokeWidth=2, filled=True, opacity=1)
    zero = alt.Chart(alt.NamedData(name="zero")).mark_rule(strokeDash=[3, 3]).encode(x=x)
    heading = alt.TitleParams(text=panel, frame="group")
    return (zero + bars + hollow + filled).properties(width=WIDTH, height=ROW_HEIGHT * len(own), title=heading)
