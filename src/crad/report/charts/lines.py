"""Charts of a method's accuracy: over rounds, per class, by support, and against bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from crad.analysis.chart_rows import (
    METRICS,
    Row,
    accuracy_rows,
    class_rows,
    committee_rows,
    support_rows,
    traffic_rows,
)
from crad.analysis.groups import Methods
from crad.report.charts import vega_lite as alt
from crad.report.charts.chart import ReportChart, on_page
from crad.report.charts.curves import (
    MARKS_PER_LINE,
    accuracy_axis,
    by_place,
    drawn,
    levels,
    lines,
    round_axis,
    split,
    spread,
)
from crad.report.charts.dots import class_dots
from crad.report.charts.parts import PANELS, finished, listing, methods_in, panel_title, seeds_note
from crad.report.charts.style import PLOT_HEIGHT, PLOT_WIDTH

LOG_RATIO = 8  # totals further apart than this are unreadable on a linear axis
MIB = 2**20


@on_page(10)
def accuracy_chart(methods: Methods) -> ReportChart | None:
    """Show global and local accuracy over rounds."""
    return _over_rounds(
        methods,
        accuracy_rows(methods),
        name="accuracy",
        title="Accuracy over rounds",
        caption="Mean accuracy of the clients in percent after every tested round, on the data set's own test samples "
        "and on each client's held-out test half.",
        whose="Global accuracy",
    )


@on_page(15)
def committee_chart(methods: Methods) -> ReportChart | None:
    """Show what all models of a run reach together, over rounds."""
    return _over_rounds(
        methods,
        committee_rows(methods),
        name="committee",
        title="All models asked together",
        caption="Accuracy in percent of the committee: the models of all clients combined at prediction time, each "
        "weighed by what is known of it: on the data set's own test samples, and on each client's held-out test half "
        "with its class shares.",
        whose="Global accuracy of the committee",
    )


def _over_rounds(
    methods: Methods, rows: list[Row], *, name: str, title: str, caption: str, whose: str
) -> ReportChart | None:
    if not rows or _is_one_point(methods, rows):
        return None
    last = max(row["round"] for row in rows)
    x = round_axis(last, planned=max(run.experiment.rounds for runs in methods.values() for run in runs))
    marked = spread([row["round"] for row in rows])
    panels: list[alt.LayerChart] = []
    for metric in PANELS:
        in_panel = alt.FieldEqualPredicate(field="metric", equal=metric)
        y = accuracy_axis([row for row in rows if row["metric"] == metric], what="accuracy (%)")
        layers = lines(rows, x, y, marked=marked, field="round", is_first=not panels).transform_filter(in_panel)
        panels.append(layers.properties(width=PLOT_WIDTH, height=200, title=panel_title(metric)))
    ends = {row["method"]: row for row in rows if row["metric"] == METRICS["global_accuracy"]}
    found = [f"{method} ends at {row['accuracy']:.1f} %" for method, row in ends.items()]
    return finished(
        alt.vconcat(*panels, spacing=16),
        rows=rows,
        more={"rows": drawn(rows)},
        name=name,
        title=title,
        caption=f"{caption}{seeds_note(rows)}",
        alt_text=f"{whose} up to round {last}: {listing(found)}.",
        is_beside=True,
    )


def _is_one_point(methods: Methods, rows: list[Row]) -> bool:
    """Return whether finished runs of several rounds were tested once: the tiles say that, and a curve says nothing."""
    runs = [run for own in methods.values() for run in own]
    is_over = all(run.is_complete and run.experiment.rounds > 1 for run in runs)
    return is_over and len({row["round"] for row in rows}) == 1


@on_page(30)
def classes_chart(methods: Methods) -> ReportChart | None:
    """Show global accuracy per class, from most to fewest private samples."""
    rows = class_rows(methods)
    if not rows:
        return None
    samples = {row["place"]: row["private_samples"] for row in rows}
    figure = class_dots(rows)
    rarest = [row for row in rows if row["place"] == max(samples)]
    found = [f"{row['method']} {row['accuracy']:.1f} %" for row in rarest]
    even = " All clients together hold equally many of every class." if len(set(samples.values())) == 1 else ""
    return finished(
        figure,
        rows=rows,
        more={"rows": drawn(rows)},
        name="classes",
        title="Global accuracy per class",
        caption="Mean global accuracy of the clients per class in percent, at the selected round; classes from most to "
        f"fewest private samples of all clients, which stand in brackets.{even}{seeds_note(rows, spans='bar')}",
        alt_text=f"On {rarest[0]['class']}, the last class with {rarest[0]['private_samples']:g} private samples: "
        f"{listing(found)}.",
    )


@on_page(40)
def support_chart(methods: Methods) -> ReportChart | None:
    """Show global accuracy by how much a client itself holds of a class."""
    rows = support_rows(methods)
    if not rows or max(row["place"] for row in rows) < 2:
        return None
    names = {row["place"]: f"{row['place']} ({row['private_samples']:.3g})" for row in reversed(rows)}
    figure = by_place(rows, names, title="place in a client's own order of classes (mean private samples)")
    ends = [(of_method[0], of_method[-1]) for of_method in split(rows).values()]
    found = [f"{first['method']} {first['accuracy']:.1f} to {last['accuracy']:.1f} %" for first, last in ends]
    return finished(
        figure,
        rows=rows,
        more={"rows": drawn(rows)},
        name="support",
        title="Global accuracy by local support",
        caption="Global accuracy in percent at the selected round by a client's own support: place 1 is the class that "
        "it holds most private samples of (mean in brackets), the last place its rarest; mean over clients."
        f"{seeds_note(rows)}",
        alt_text=f"From the class a client holds most of to the one it holds least of: {listing(found)}.",
    )


@on_page(90)
def bytes_chart(methods: Methods) -> ReportChart | None:
    """Show global accuracy against what a client has exchanged so far."""
    rows = [{**row, "mib": row["payload_bytes"] / MIB} for row in traffic_rows(methods)]
    paid = [row for row in rows if row["payload_bytes"] > 0]
    if not paid:
        return None
    totals = [of_method[-1]["mib"] for of_method in split(paid).values()]
    is_log = max(totals) > LOG_RATIO * min(totals)
    scale = alt.Scale(type="log", nice=False) if is_log else alt.Scale(zero=True)
    title = "payload per client so far (MiB, log scale)" if is_log else "payload per client so far (MiB)"
    ticks = {"values": _steps([row["mib"] for row in paid]), "labelOverlap": False} if is_log else {"tickCount": 5}
    axis = alt.Axis(format=",~r", **ticks)
    x = alt.X("mib:Q", title=title, scale=scale, axis=axis)
    marked, names = spread([row["round"] for row in paid]), methods_in(rows)
    layers = lines(paid, x, accuracy_axis(rows), marked=marked, field="round", methods=names)
    free = [of_method[-1] for of_method in split(rows).values() if of_method[-1]["payload_bytes"] == 0]
    if free:
        layers += levels(free, accuracy_axis(rows), names)
    found = [f"{row['method']} {row['accuracy']:.1f} % for {row['mib']:.3g} MiB" for row in _ends(paid)]
    level = f" Level lines: {', '.join(row['method'] for row in free)}, without exchange, at the end." if free else ""
    return finished(
        layers.properties(width=PLOT_WIDTH, height=PLOT_HEIGHT),
        rows=rows,
        more={"rows": drawn(paid), "levels": free},
        name="bytes",
        title="Accuracy against bytes",
        caption="Mean global accuracy in percent against the payload that a client has exchanged up to that round, in "
        f"MiB, as counted in the cost table.{level}{seeds_note(rows)}",
        alt_text=f"At the end: {listing(found)}.",
    )


def _steps(values: Sequence[float]) -> list[float]:
    """Return 1, 2, 5, 10, ... within the values, or the powers of ten where those would be too many."""
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    for factors in ((1, 2, 5), (1,)):
        steps = [factor * 10.0**power for power in powers for factor in factors]
        within = [step for step in steps if min(values) <= step <= max(values)]
        if len(within) <= MARKS_PER_LINE:
            break
    return within


def _ends(rows: Sequence[Row]) -> list[Row]:
    return [of_method[-1] for of_method in split(rows).values()]
