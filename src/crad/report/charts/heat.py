"""Charts with shaded cells, clients x classes: who holds what, who knows what, who trusted whom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from crad.analysis.chart_rows import Row, context_rows, context_run, partition_rows, shift_rows, trust_rows
from crad.analysis.groups import Methods
from crad.report.charts import vega_lite as alt
from crad.report.charts.chart import ReportChart, on_page
from crad.report.charts.parts import ROWS, finished, slanted
from crad.report.charts.style import PLOT_WIDTH
from crad.runs.names import title_of
from crad.runs.run_records import RunRecords

MANY_CLASSES = 12
MANY_CLIENTS = 30


@dataclass(frozen=True)
class Shade:
    """A quantity that the cells' colour stands for."""

    field: str
    title: str
    scheme: str
    is_count: bool = False  # square-root shades: the eye sees small counts too
    most: float = 0  # the darkest; 0: the highest value there is
    who: str = "client"  # in the rows


SUPPORT = Shade("support", "support (validation samples)", "blues", is_count=True)
ACCURACY = Shade("accuracy", "global accuracy (%)", "oranges", most=100)
SAMPLES = Shade("samples", "private samples", "blues", is_count=True)
SAY = Shade("weight", "share of the say for a class (of 1)", "purples", who="teacher")


@on_page(50)
def context_chart(methods: Methods) -> ReportChart | None:
    """Show support beside accuracy, clients x classes."""
    run = context_run(methods)
    rows = context_rows(run)
    if not rows:
        return None
    width = PLOT_WIDTH / 2 - 15
    support = _cells(SUPPORT, rows, run, width=width)
    reached = _cells(ACCURACY, rows, run, width=width)
    unheld = [row["accuracy"] for row in rows if row["support"] == 0]
    held = [row["accuracy"] for row in rows if row["support"] > 0]
    return finished(
        alt.hconcat(support, reached, spacing=12).resolve_scale(color="independent"),
        rows=rows,
        name="context",
        title="What clients hold and what they know",
        caption=f"{title_of(run.experiment)}, selected round {run.summary['best_round']}. "
        "Blue: validation samples of a client per class, its support (square-root shades). Orange: share of the global "
        "test samples of the class that its model gets right, in percent.",
        alt_text=_context_words(held, unheld),
    )


@on_page(60)
def partition_chart(methods: Methods) -> ReportChart | None:
    """Show private samples, clients x classes."""
    run = next(iter(methods.values()))[0]
    rows = partition_rows(run)
    figure = _cells(SAMPLES, rows, run, width=PLOT_WIDTH, has_numbers=True)
    most = max(rows, key=lambda row: row["samples"])
    empty = sum(row["samples"] == 0 for row in rows)
    return finished(
        figure,
        rows=rows,
        name="partition",
        title="Who holds what",
        caption=f"Private samples per client and class, seed {run.experiment.seed}; every method has the same "
        "division. Square-root shades.",
        alt_text=f"The most is {most['samples']} samples of {most['class']} at client {most['client']}; "
        f"{empty} of {len(rows)} cells are empty.",
    )


@on_page(62)
def shift_chart(methods: Methods) -> ReportChart | None:
    """Show how clients' inputs differ, clients x features, where every client is a site."""
    run = next(iter(methods.values()))[0]
    rows = shift_rows(run)
    if not rows:
        return None
    names, clients = list(dict.fromkeys(row["feature"] for row in rows)), len(run.partition["counts"])
    most = max(rows, key=lambda row: abs(row["difference"]))
    reach = max(1.0, abs(most["difference"]))
    scale = alt.Scale(scheme="blueorange", domain=[-reach, reach])
    legend = alt.Legend(orient="top", title="deviations from the others", gradientLength=PLOT_WIDTH, tickCount=5)
    axis = alt.Axis(**slanted(PLOT_WIDTH / len(names), longest=max(map(len, names))), labelLimit=140)
    base = alt.Chart(ROWS).encode(
        x=alt.X("feature:N", title="feature", scale=alt.Scale(domain=names), axis=axis),
        y=_client_axis(clients, "client"),
    )
    colour = alt.Color("difference:Q", scale=scale, legend=legend)
    hints = [alt.Tooltip(f"{name}:{kind}", title=name) for name, kind in (("client", "O"), ("feature", "N"))]
    cells = base.mark_rect().encode(color=colour, tooltip=[*hints, alt.Tooltip("difference:Q", title="deviations")])
    is_dark = f"abs(datum.difference) > {0.7 * reach}"
    ink = alt.when(is_dark).then(alt.value("white")).otherwise(alt.value("#222222"))
    numbers = base.mark_text().encode(text="shown:N", color=ink)
    height = max(clients * _row_height(clients), 60)
    return finished(
        alt.layer(cells, *([numbers] if clients <= MANY_CLIENTS else [])).properties(width=PLOT_WIDTH, height=height),
        rows=rows,
        name="input-shift",
        title="How inputs differ",
        caption=f"Mean of a client's samples minus that of all other clients', in deviations of all samples. "
        f"Clients are the sites {', '.join(run.partition['sites'])}.",
        alt_text=f"Furthest from the others is client {most['client']} in {most['feature']}: {most['difference']:+.1f} "
        "deviations.",
    )


@on_page(70)
def trust_chart(methods: Methods) -> ReportChart | None:
    """Show who trusted whom: teacher x class, for one student and round at a time."""
    run = context_run(methods)
    rows = trust_rows(run)
    if not rows:
        return None
    students, rounds = sorted({row["student"] for row in rows}), sorted({row["round"] for row in rows})
    student = alt.param(name="student", value=students[0], bind=alt.binding_select(options=students, name="student "))
    chosen = [student, _round_slider(rounds)]
    names = run.partition["class_names"]
    unfolded = (
        alt.Chart(ROWS)
        .transform_filter("datum.student == student && datum.round == shown_round")
        .transform_calculate(names=json.dumps(names))
        .transform_flatten(["weights", "names"], as_=["weight", "class"])
    )
    most = max(max(row["weights"]) for row in rows) or 1
    cells = _shaded(unfolded, replace(SAY, most=most), run, width=PLOT_WIDTH)
    words = alt.expr("'student ' + student + ' after round ' + shown_round")
    figure = cells.add_params(*chosen).properties(title=alt.TitleParams(text=words, frame="group"))
    return finished(
        figure,
        rows=rows,
        name="trust",
        title="Who trusted whom",
        caption=f"{title_of(run.experiment)}: the share of the say (0 to 1) that a student "
        "gave each teacher per class, averaged over its samples. The student's own row is empty. In the page, student "
        "and round can be chosen.",
        alt_text=_trust_words(rows, students[0], rounds[-1], names),
    )


def _round_slider(rounds: Sequence[int]) -> alt.Parameter:
    step = rounds[1] - rounds[0] if len(rounds) > 1 else 1
    bind = alt.binding_range(min=rounds[0], max=rounds[-1], step=step, name="round ")
    return alt.param(name="shown_round", value=rounds[-1], bind=bind)


def _cells(
    shade: Shade, rows: Sequence[Row], run: RunRecords, *, width: float, has_numbers: bool = False
) -> alt.Chart | alt.LayerChart:
    """Draw shaded cells from rows with a client, a class and a number; numbers in them where there is room."""
    most = max(row[shade.field] for row in rows)
    shaded = _shaded(alt.Chart(ROWS), replace(shade, most=shade.most or most or 1), run, width=width)
    names, clients = run.partition["class_names"], len(run.partition["counts"])
    if not has_numbers or len(names) > MANY_CLASSES or clients > MANY_CLIENTS:
        return shaded
    is_dark = alt.datum[shade.field] > most / 4  # with square-root shades, half of the darkest
    ink = alt.when(is_dark).then(alt.value("white")).otherwise(alt.value("#222222"))
    base = alt.Chart(ROWS).encode(x=_class_axis(names, width), y=_client_axis(clients, shade.who))
    return alt.layer(shaded, base.mark_text().encode(text=f"{shade.field}:Q", color=ink)).properties(width=width)


def _shaded(base: alt.Chart, shade: Shade, run: RunRecords, *, width: float) -> alt.Chart:
    names, clients = run.partition["class_names"], len(run.partition["counts"])
    kind = "sqrt" if shade.is_count else "linear"
    scale = alt.Scale(scheme=shade.scheme, type=kind, domain=[0, shade.most])
    # Left alone, a legend of few samples counts in halves.
    few = shade.is_count and shade.most <= 5
    ticks = {"values": list(range(int(shade.most) + 1))} if few else {"tickCount": 4}
    legend = alt.Legend(
        orient="top", title=shade.title, gradientLength=width, gradientThickness=10, offset=8, format=".3~r", **ticks
    )
    hints = [
        alt.Tooltip(f"{shade.who}:O", title=shade.who),
        alt.Tooltip("class:N", title="class"),
        alt.Tooltip(f"{shade.field}:Q", title=shade.title, format=",.6~r"),
    ]
    colour = alt.Color(f"{shade.field}:Q", scale=scale, legend=legend)
    return (
        base.mark_rect()
        .encode(x=_class_axis(names, width), y=_client_axis(clients, shade.who), color=colour, tooltip=hints)
        .properties(width=width, height=max(clients * _row_height(clients), 60))
    )


def _class_axis(names: Sequence[str], width: float) -> alt.X:
    axis = alt.Axis(**slanted(width / len(names), longest=max(map(len, names))), labelLimit=100)
    return alt.X("class:N", title="class", scale=alt.Scale(domain=list(names)), axis=axis)


def _client_axis(clients: int, who: str) -> alt.Y:
    scale = alt.Scale(domain=list(range(clients)))
    return alt.Y(f"{who}:O", title=who, scale=scale, axis=alt.Axis(labelOverlap=True))


def _row_height(clients: int) -> float:
    return 22 if clients <= 12 else max(4.5, 300 / clients)


def _context_words(held: Sequence[float], unheld: Sequence[float]) -> str:
    if not held or not unheld:
        return "Every client's accuracy per class beside its support."
    return (
        f"Clients get {sum(held) / len(held):.1f} % right of the classes they hold validation samples of, and "
        f"{sum(unheld) / len(unheld):.1f} % of those they hold none of."
    )


def _trust_words(rows: Sequence[Row], student: int, round_index: int, names: Sequence[str]) -> str:
    shown = [row for row in rows if row["student"] == student and row["round"] == round_index]
    weight, teacher, label = max((max(row["weights"]), row["teacher"], row["weights"]) for row in shown)
    most = names[label.index(weight)]
    return (
        f"After round {round_index}, student {student} gave most say to teacher {teacher}, "
        f"for class {most}: {weight:.2f} of 1."
    )
