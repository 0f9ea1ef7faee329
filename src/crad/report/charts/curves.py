"""Lines of methods, each in its colour, dashes and marks, with bands over seeds and names on demand."""

from __future__ import annotations

import json
from collections.abc import Sequence

from crad.analysis.chart_rows import Row
from crad.report.charts import vega_lite as alt
from crad.report.charts.parts import (
    ROWS,
    method_colour,
    method_dash,
    method_legend,
    method_shape,
    methods_in,
    slanted,
)
from crad.report.charts.scales import padded_domain, round_domain, round_ticks
from crad.report.charts.style import PLOT_HEIGHT, PLOT_WIDTH

MARKS_PER_LINE = 8
MANY_CLASSES = 20
LEAST_PERCENT = 10  # on an axis of accuracies
ABOVE = ("crad", "crad-plus")
HINTS = {
    "round": ("Q", "round"),
    "class": ("N", "class"),
    "place": ("Q", "place"),
    "mib": ("Q", "payload so far (MiB)"),
    "private_samples": ("Q", "private samples"),
}


def round_axis(last: int, *, planned: int) -> alt.X:
    """Return an axis of rounds, up to the last one that was tested or a little beyond, in whole ones."""
    domain = round_domain(last, planned)
    axis = alt.Axis(format="d", grid=False, values=round_ticks(domain))
    return alt.X("round:Q", title="round", scale=alt.Scale(domain=domain, nice=False), axis=axis)


def accuracy_axis(rows: Sequence[Row], *, what: str = "global accuracy (%)") -> alt.Y:
    """Return an axis of percent around the rows; never so narrow that noise looks like a result."""
    values = [row[key] for row in rows for key in ("low", "high")]
    scale = alt.Scale(domain=padded_domain(values, least=LEAST_PERCENT, bounds=(0, 100)), nice=False, zero=False)
    return alt.Y("accuracy:Q", title=what, scale=scale, axis=alt.Axis(tickCount=5, format=".4~r"))


def lines(
    rows: list[Row],
    x: alt.X,
    y: alt.Y,
    *,
    marked: Sequence[int],
    field: str,
    methods: Sequence[str] | None = None,
    is_first: bool = True,
) -> alt.LayerChart:
    """Draw a line with marks per method, a band where there are several seeds, a name on demand.

    `is_first`: the panel that holds the legend's choice, which all panels of a figure follow.
    """
    names = list(methods or methods_in(rows))
    legend = method_legend(names)
    colour, dash, shape = method_colour(names, legend), method_dash(names), method_shape(names, legend)
    picked = alt.selection_point(name="picked", fields=["method"], bind="legend")
    opacity = alt.when(picked).then(alt.value(1)).otherwise(alt.value(0.12))
    base = alt.Chart(ROWS).encode(x=x, color=colour)
    line = base.mark_line(strokeWidth=2, clip=True).encode(y=y, strokeDash=dash, opacity=opacity)
    in_marks = alt.FieldOneOfPredicate(field=field, oneOf=list(marked))
    marks = base.mark_point(filled=True, size=50).encode(y=y, shape=shape, opacity=opacity).transform_filter(in_marks)
    # What the pointer finds: larger than what the eye sees, at every round.
    hover = base.mark_point(filled=True, size=160, opacity=0).encode(y=y, tooltip=hints(rows))
    parts = [line.add_params(picked) if is_first else line, marks, hover]
    if any(row["seeds"] > 1 for row in rows):
        faint = alt.when(picked).then(alt.value(0.2)).otherwise(alt.value(0.03))
        parts.insert(0, base.mark_area().encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), opacity=faint))
    return alt.layer(*parts)


def levels(rows: list[Row], y: alt.Y, methods: Sequence[str]) -> alt.Chart:
    """Draw level lines of the methods in the data set `levels`."""
    legend = method_legend(methods)
    return (
        alt.Chart(alt.NamedData(name="levels"))
        .mark_rule(strokeWidth=2)
        .encode(
            y=y,
            color=method_colour(methods, legend),
            strokeDash=method_dash(methods),
            tooltip=hints(rows),
        )
    )


def by_place(rows: list[Row], names: dict[int, str], *, title: str) -> alt.LayerChart:
    """Draw lines over places in an order, whose names stand below."""
    places = sorted(names)
    labels = json.dumps([names[place] for place in places])
    axis = alt.Axis(
        labelExpr=f"{labels}[datum.value - 1]",
        values=places,
        **slanted(PLOT_WIDTH / len(places)),
        grid=False,
    )
    scale = alt.Scale(domain=[0.7, len(places) + 0.3], nice=False)
    x = alt.X("place:Q", title=title, axis=axis, scale=scale)
    marked = places if len(places) <= MANY_CLASSES else spread(places)
    layers = lines(rows, x, accuracy_axis(rows), marked=marked, field="place")
    return layers.properties(width=PLOT_WIDTH, height=PLOT_HEIGHT)


def hints(rows: Sequence[Row]) -> list[alt.Tooltip]:
    """Return what the pointer is told of a row: its method, its place, its accuracy and that of the seeds."""
    hints = [alt.Tooltip("method:N", title="method")]
    hints += [alt.Tooltip(f"{key}:{kind}", title=title) for key, (kind, title) in HINTS.items() if key in rows[0]]
    hints.append(alt.Tooltip("accuracy:Q", title="accuracy (%)", format=".2f"))
    if any(row["seeds"] > 1 for row in rows):
        hints += [alt.Tooltip(f"{key}:Q", title=f"{key}est of the seeds (%)", format=".2f") for key in ("low", "high")]
    return hints


def drawn(rows: Sequence[Row]) -> list[Row]:
    """Return the rows in the order in which they are drawn: CRAD last, above the others, crad-plus above it."""
    return sorted(rows, key=lambda row: ABOVE.index(row["method"]) if row["method"] in ABOVE else -1)


def spread(values: Sequence[int]) -> list[int]:
    """Return some values at even distances, the last among them: marks on every one would be a thick line."""
    ordered = sorted(set(values))
    step = -(-len(ordered) // MARKS_PER_LINE)
    return ordered[::-step][::-1]


def split(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of every method."""
    return {method: [row for row in rows if row["method"] == method] for method in methods_in(rows)}
