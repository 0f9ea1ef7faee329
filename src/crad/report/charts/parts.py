"""What several charts share: the look of methods, names that fit, words for the findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.analysis.chart_rows import METRICS, Row
from crad.report.charts import vega_lite as alt
from crad.report.charts.chart import ReportChart
from crad.report.charts.style import PLOT_WIDTH, SIZES, SOLID, label_expression, method_styles, short_names

ROWS = alt.NamedData(name="rows")
LONG = 99  # letters of a name that surely does not fit
PANELS = {
    METRICS["global_accuracy"]: "Global: on the common test samples",
    METRICS["local_accuracy"]: "Local: on each client's own held-out samples",
}


def finished(
    figure: alt.TopLevelMixin,
    *,
    rows: list[Row],
    more: Mapping[str, list[Row]] | None = None,
    name: str,
    title: str,
    caption: str,
    alt_text: str,
    is_beside: bool = False,
) -> ReportChart:
    """Return the chart with its words; its specification holds all data and no colour of text or background.

    `more`: data beside the rows, by the name that the figure knows it by. `is_beside`: a page that is wide enough puts
    its panels beside each other.
    """
    spec: dict[str, Any] = figure.properties(background="transparent").configure(**SIZES).to_dict()
    # Vega puts the description on the drawing, where a screen reader finds it.
    spec |= {"description": alt_text, "datasets": {"rows": rows, **(more or {})}}
    if is_beside:
        spec["usermeta"] = {"beside": True}
    return ReportChart(name, title, caption, alt_text, spec, rows)


def panel_title(metric: str) -> alt.TitleParams:
    """Return what stands above the panel of a metric."""
    return alt.TitleParams(text=PANELS[metric], frame="group")


def methods_in(rows: Sequence[Row]) -> list[str]:
    """Return the methods in their order of appearance."""
    return list(dict.fromkeys(row["method"] for row in rows))


def method_legend(methods: Sequence[str]) -> alt.Legend:
    """Return a legend below the chart, with names that fit."""
    longest = max(len(name) for name in short_names(methods).values())
    columns = max(1, min(4, PLOT_WIDTH // (8 * longest + 15)))
    return alt.Legend(
        orient="bottom",
        columns=columns,
        title=None,
        labelExpr=label_expression(methods),
        symbolSize=90,
        symbolOpacity=1,
        symbolDash=[1, 0],
    )


def method_colour(methods: Sequence[str], legend: alt.Legend | None) -> alt.Color:
    """Give every method its colour."""
    colours = [style.colour for style in method_styles(methods)]
    return alt.Color("method:N", scale=alt.Scale(domain=methods, range=colours), legend=legend)


def method_dash(methods: Sequence[str]) -> alt.StrokeDash:
    """Give every method its dashes; the legend has its mark, whose outline dashes would only fray."""
    dashes = [list(style.dash) for style in method_styles(methods)]
    # Vega-Lite merges legends over equal domains, even one that is not wanted: a name that nobody has keeps it apart.
    scale = alt.Scale(domain=[*methods, ""], range=[*dashes, list(SOLID)])
    return alt.StrokeDash("method:N", scale=scale, legend=None)


def method_shape(methods: Sequence[str], legend: alt.Legend | None) -> alt.Shape:
    """Give every method its mark."""
    marks = [style.mark for style in method_styles(methods)]
    return alt.Shape("method:N", scale=alt.Scale(domain=methods, range=marks), legend=legend)


def method_axis(methods: Sequence[str], *, title: str | None = "method") -> alt.Y:
    """Return an axis with a row for every method, in their order."""
    return alt.Y(
        "method:N",
        title=title,
        scale=alt.Scale(domain=methods),
        axis=alt.Axis(labelExpr=label_expression(methods), titlePadding=8, labelLimit=220),
    )


def slanted(spacing: float, *, longest: int = LONG) -> dict[str, Any]:
    """Return how names stand below an axis with so many pixels for each; only where they cannot are some left out.

    Names of so few letters that they fit stay level, also on a page of half the width.
    """
    if 8 * longest + 2 <= 0.6 * spacing:
        return {"labelAngle": 0, "labelOverlap": False}
    return {"labelAngle": -45 if spacing >= 19 else -90, "labelOverlap": spacing < 15}


def seeds_note(rows: Sequence[Row], *, spans: str = "band") -> str:
    """Say what dots or lines and bars or bands are where there are several seeds, and of how many."""
    seeds = {row["method"]: row["seeds"] for row in rows}
    if max(seeds.values()) == 1:
        return ""
    if len(set(seeds.values())) == 1:
        words = f"{max(seeds.values())} seeds"
    else:
        words = "seeds (" + ", ".join(f"{method} {number}" for method, number in seeds.items()) + ")"
    return f" Mean over {words}; the {spans} spans the lowest to the highest."


def listing(parts: Sequence[str], *, most: int = 10) -> str:
    """Join findings to one sentence; of many only the first ones."""
    left = len(parts) - most
    return ", ".join(parts[:most]) + (f" and {left} more" if left > 0 else "")
