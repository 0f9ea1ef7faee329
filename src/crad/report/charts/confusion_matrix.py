"""The confusion matrix: which class is taken for which, at the selected round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from crad.analysis.chart_rows import Row, context_run
from crad.analysis.groups import Methods
from crad.report.charts import vega_lite as alt
from crad.report.charts.chart import ReportChart, on_page
from crad.report.charts.parts import ROWS, finished, slanted
from crad.report.charts.style import PLOT_WIDTH
from crad.runs.names import title_of

ALL = "all clients"
MANY_CLASSES = 12  # more have no room for numbers in the cells
TOO_MANY_CLASSES = 30  # of more, the clients' own matrices would be most of the page
TITLE = "said of a true class's samples (%)"


@on_page(55)
def confusion_chart(methods: Methods) -> ReportChart | None:
    """Show what the models say of the common test samples, by true class; runs of earlier versions have no matrix."""
    run = context_run(methods)
    names = run.partition["class_names"]
    rows = [] if run.metrics is None else confusion_rows(run.metrics, names)
    if not rows:
        return None
    assert run.metrics is not None, "it has rows"
    who = list(dict.fromkeys(row["who"] for row in rows))
    has_choice = len(who) > 1
    choice = {"bind": alt.binding_select(options=who, name="models of ")} if has_choice else {}
    figure = _matrix(names).add_params(alt.param(name="whose", value=ALL, **choice))
    return finished(
        figure,
        rows=rows,
        name="confusion",
        title="Which class is taken for which",
        caption=f"{title_of(run.experiment)}, round {run.metrics['round']}: of the common "
        "test samples of a class (row), how many percent the models call what (column); every row adds up to 100."
        + (" In the page, one client's model can be chosen." if has_choice else ""),
        alt_text=_words(rows, names),
    )


def confusion_rows(metrics: Mapping[str, Any], names: Sequence[str]) -> list[Row]:
    """Return the shares of every true class in percent, of all clients together and of each; absent ones have none."""
    found = {str(one["client"]): one["global"]["confusion"] for one in metrics["clients"] if one["global"] is not None}
    if not found:
        return []
    total = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*found.values(), strict=True)]
    shown = {ALL: total} | (found if len(found) > 1 and len(names) <= TOO_MANY_CLASSES else {})
    return [
        {"who": who, "true": name, "samples": sum(row), "shares": [round(100 * count / sum(row), 2) for count in row]}
        for who, matrix in shown.items()
        for name, row in zip(names, matrix, strict=True)
        if sum(row)
    ]


def _matrix(names: Sequence[str]) -> alt.Chart | alt.LayerChart:
    base = (
        alt.Chart(ROWS)
        .transform_filter("datum.who == whose")
        .transform_calculate(names=json.dumps(list(names)))
        .transform_flatten(["shares", "names"], as_=["share", "said"])
        .encode(x=_said_axis(names), y=_true_axis(names))
    )
    legend = alt.Legend(
        orient="top", title=TITLE, gradientLength=PLOT_WIDTH, gradientThickness=10, offset=8, format=".3~r", tickCount=4
    )
    colour = alt.Color("share:Q", scale=alt.Scale(scheme="blues", domain=[0, 100]), legend=legend)
    hints = [
        alt.Tooltip("true:N", title="true class"),
        alt.Tooltip("said:N", title="said"),
        alt.Tooltip("share:Q", title="%", format=".1f"),
        alt.Tooltip("samples:Q", title="samples of the true class"),
    ]
    height = len(names) * (24 if len(names) <= MANY_CLASSES else max(4.5, 400 / len(names)))
    cells = base.mark_rect().encode(color=colour, tooltip=hints).properties(width=PLOT_WIDTH, height=max(height, 60))
    if len(names) > MANY_CLASSES:
        return cells
    ink = alt.when(alt.datum["share"] > 50).then(alt.value("white")).otherwise(alt.value("#222222"))
    numbers = base.transform_filter("datum.share >= 0.5").mark_text().encode(text=_whole("share:Q"), color=ink)
    return alt.layer(cells, numbers).properties(width=PLOT_WIDTH)


def _whole(field: str) -> alt.Channel:
    return alt.Channel(field, format=".0f")


def _said_axis(names: Sequence[str]) -> alt.X:
    axis = alt.Axis(**slanted(PLOT_WIDTH / len(names), longest=max(map(len, names))), labelLimit=100)
    return alt.X("said:N", title="what the models say", scale=alt.Scale(domain=list(names)), axis=axis)


def _true_axis(names: Sequence[str]) -> alt.Y:
    axis = alt.Axis(labelOverlap=len(names) > MANY_CLASSES, labelLimit=100)
    return alt.Y("true:N", title="true class", scale=alt.Scale(domain=list(names)), axis=axis)


def _words(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Say which class is most often taken for which other."""
    wrong = [
        (share, row["true"], names[said])
        for row in rows
        if row["who"] == ALL
        for said, share in enumerate(row["shares"])
        if names[said] != row["true"]
    ]
    share, true, said = max(wrong)
    return f"The most common mistake: {share:.0f} % of the samples of {true} are called {said}."
