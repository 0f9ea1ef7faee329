"""A chart of an experiment that counts what is sent: accuracy against the bytes of it, a mark per row."""

from __future__ import annotations

from collections.abc import Sequence

from crad.analysis.chart_rows import Row
from crad.analysis.comparison import Figure
from crad.paper.experiments import PaperExperiment
from crad.paper.study_tables import Compared
from crad.report.charts import vega_lite as alt
from crad.report.charts.chart import ReportChart
from crad.report.charts.parts import ROWS, finished, listing, method_colour, method_legend, method_shape, methods_in
from crad.report.charts.scales import padded_domain
from crad.report.charts.style import PLOT_WIDTH

SENT = "sent_mib"
LEAST_ROWS = 3  # two points are told faster than drawn
HEIGHT = 170
NOTHING_SENT_MIB = 0.1  # where who sends nothing stands on an axis of logarithms


def tradeoff_chart(paper: PaperExperiment, compared: Sequence[Compared]) -> ReportChart | None:
    """Show the first metric over what a client sends in all rounds, a panel per column; None where none is counted."""
    rows = _rows(paper, compared)
    if not rows:
        return None
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    names = methods_in(rows)
    label = paper.metrics[0].label
    drawn = [_panel(rows, panel, names, f"{label} accuracy (%)", is_last=panel == panels[-1]) for panel in panels]
    best = [max((row for row in rows if row["panel"] == panel), key=lambda row: row["accuracy"]) for panel in panels]
    said = [f"{row['method']} on {row['panel']} {row['accuracy']:.1f} % for {row['sent']:.1f} MiB" for row in best]
    return finished(
        alt.vconcat(*drawn, spacing=14),
        rows=rows,
        name="accuracy-against-sent",
        title=f"{paper.title}: {label} accuracy against what is sent",
        caption="Means over the seeds of each row. MiB that a client sends to all others in all rounds, as "
        "really exchanged, on an axis of logarithms. Up and to the left is better.",
        alt_text=f"Highest: {listing(said)}.",
    )


def _rows(paper: PaperExperiment, compared: Sequence[Compared]) -> list[Row]:
    first = paper.metrics[0].name
    figures = {
        (one.outcome.column.name, one.outcome.row.name, one.outcome.metric.name): one.outcome.ours
        for one in compared
        if isinstance(one.outcome.ours, Figure)
    }
    rows = []
    for column in paper.columns:
        found = []
        for row in paper.rows:
            accuracy, sent = (figures.get((column.name, row.name, name)) for name in (first, SENT))
            if accuracy is None or sent is None:
                continue
            found.append(
                {
                    "panel": column.label,
                    "method": paper.label_of(row),
                    "accuracy": accuracy.mean,
                    "sent": sent.mean,
                    "drawn": max(sent.mean, NOTHING_SENT_MIB),
                    "seeds": len(accuracy.values),
                }
            )
        rows += found if len(found) >= LEAST_ROWS else []
    return rows


def _panel(rows: Sequence[Row], panel: str, names: Sequence[str], title: str, *, is_last: bool) -> alt.Chart:
    own = [row["accuracy"] for row in rows if row["panel"] == panel]
    sent = [row["drawn"] for row in rows]
    legend = method_legend(names)  # the panels share it
    hints = [
        alt.Tooltip("method:N", title="method"),
        alt.Tooltip("accuracy:Q", title=title, format=".2f"),
        alt.Tooltip("sent:Q", title="sent by a client (MiB)", format=".2f"),
        alt.Tooltip("seeds:Q", title="seeds"),
    ]
    return (
        alt.Chart(ROWS)
        .transform_filter(alt.FieldEqualPredicate(field="panel", equal=panel))
        .mark_point(size=90, strokeWidth=2, opacity=1)
        .encode(
            x=alt.X(
                "drawn:Q",
                title="sent by a client in all rounds (MiB)" if is_last else None,
                scale=alt.Scale(type="log", domain=[min(sent) / 1.5, max(sent) * 1.5], nice=False),
                axis=alt.Axis(labels=is_last, ticks=is_last, tickCount=6, format="~g"),
            ),
            y=alt.Y(
                "accuracy:Q",
                title=title,
                scale=alt.Scale(domain=padded_domain(own, least=10, bounds=(0, 100)), nice=False, zero=False),
                axis=alt.Axis(tickCount=5),
            ),
            color=method_colour(names, legend),
            shape=method_shape(names, legend),
            tooltip=hints,
        )
        .properties(width=PLOT_WIDTH - 70, height=HEIGHT, title=alt.TitleParams(text=panel, frame="group"))
    )
