"""Dots over classes: a class is a name, not a quantity, so no line joins it with the next."""

from __future__ import annotations

import json
from collections.abc import Sequence

from crad.analysis.chart_rows import Row
from crad.report.charts import vega_lite as alt
from crad.report.charts.curves import hints
from crad.report.charts.parts import ROWS, method_colour, method_legend, method_shape, methods_in
from crad.report.charts.scales import padded_domain
from crad.report.charts.style import PLOT_WIDTH

WIDTH = PLOT_WIDTH - 70  # names of classes stand beside it
MOST_BESIDE = 4  # methods that stand below each other in the row of a class; more share its middle
MANY_HEIGHT = 560  # of a chart of so many classes that not all can be named


def class_dots(rows: list[Row]) -> alt.LayerChart:
    """Draw a row per class with a dot per method, and a bar from the lowest to the highest seed where there are more.

    The classes stand in the order of their places.
    """
    methods, names = methods_in(rows), _names(rows)
    legend = method_legend(methods)
    picked = alt.selection_point(name="picked", fields=["method"], bind="legend")
    opacity = alt.when(picked).then(alt.value(1)).otherwise(alt.value(0.08))
    x = alt.X("accuracy:Q", title="global accuracy (%)", scale=_scale(rows), axis=alt.Axis(tickCount=6))
    row_height, spread = _row_height(len(names), len(methods)), {}
    if len(methods) <= MOST_BESIDE and row_height >= 7 * len(methods):
        spread["yOffset"] = alt.YOffset("method:N", scale=alt.Scale(domain=methods, paddingOuter=0.5))
    base = alt.Chart(ROWS).encode(y=_class_axis(names, row_height), color=method_colour(methods, legend), **spread)
    dots = base.mark_point(filled=True, size=55).encode(
        x=x, shape=method_shape(methods, legend), opacity=opacity, tooltip=hints(rows)
    )
    layers = [dots.add_params(picked)]
    if any(row["seeds"] > 1 for row in rows):
        low = alt.X("low:Q", title="global accuracy (%)", scale=_scale(rows))
        layers.insert(0, base.mark_rule(strokeWidth=1.5).encode(x=low, x2="high:Q", opacity=opacity))
    return alt.layer(*layers).properties(width=WIDTH, height=row_height * len(names))


def _names(rows: Sequence[Row]) -> dict[int, str]:
    """Return the class of every place and how much there is of it, which makes two classes of one name two rows."""
    return {row["place"]: f"{row['class']} ({row['private_samples']:g})" for row in rows}


def _scale(rows: Sequence[Row]) -> alt.Scale:
    values = [row[key] for row in rows for key in ("low", "high")]
    return alt.Scale(domain=padded_domain(values, least=20, bounds=(0, 100)), nice=False, zero=False)


def _class_axis(names: dict[int, str], row_height: float) -> alt.Y:
    places = sorted(names)
    labels = [names[place] for place in places]
    axis = alt.Axis(
        labelExpr=f"{json.dumps(labels)}[datum.value - 1]",
        labelOverlap=row_height < 14,
        labelLimit=150,
        grid=row_height >= 14,
    )
    scale = alt.Scale(type="band", domain=places, paddingInner=0.15)
    return alt.Y("place:O", title="class (private samples)", scale=scale, axis=axis)


def _row_height(classes: int, methods: int) -> float:
    if classes > MANY_HEIGHT / 16:
        return max(4.5, MANY_HEIGHT / classes)
    return max(20, 10 * methods + 8) if methods <= MOST_BESIDE else 22
