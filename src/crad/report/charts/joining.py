"""What joining brought every client, global and local; where nobody trained alone, what every client reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from crad.analysis.chart_rows import ALONE, METRICS, Row, client_rows, gain_rows, mean_rows
from crad.analysis.groups import Methods
from crad.report.charts import vega_lite as alt
from crad.report.charts.chart import ReportChart, on_page
from crad.report.charts.parts import (
    PANELS,
    ROWS,
    finished,
    listing,
    method_axis,
    method_colour,
    method_legend,
    method_shape,
    methods_in,
    panel_title,
)
from crad.report.charts.scales import padded_domain
from crad.report.charts.style import PLOT_WIDTH

ALL = "all clients"
WIDTH = PLOT_WIDTH - 30  # names stand beside it
MOST_CLIENTS, MOST_METHODS = 12, 4  # with more, a row is a method and a tick is a client
FARTHEST = (
    0.5  # how far an interval may widen the axis, in reaches of the clients: that of two seeds would be all of it
)
MEANS, ZERO = alt.NamedData(name="means"), alt.NamedData(name="zero")


@dataclass(frozen=True)
class Measured:
    """What stands on the axis: a field of the rows, its title, and the least reach of the axis."""

    field: str
    title: str
    format: str
    least: float
    bounds: tuple[float, float] | None = None


GAIN = Measured("gain", "gain over training alone (points)", "+.2f", least=4)
ACCURACY = Measured("accuracy", "accuracy (%)", ".2f", least=20, bounds=(0, 100))


@on_page(5)
def gains_chart(methods: Methods) -> ReportChart | None:
    """Show what joining brought every client over training alone."""
    rows = gain_rows(methods)
    if not rows:
        return None
    found = [
        f"{name} {_mean(rows, name, 'global_accuracy'):+.1f} points globally ({_helped(rows, name, 'global_accuracy')})"
        f" and {_mean(rows, name, 'local_accuracy'):+.1f} locally ({_helped(rows, name, 'local_accuracy')})"
        for name in methods_in(rows)
    ]
    return _chart(
        rows,
        GAIN,
        attackers=_attackers(methods),
        name="gains",
        title="What joining brought every client",
        caption=f"Accuracy of every client minus its accuracy when it trains alone (method {ALONE!r}, same seed), in "
        "percentage points, each at its selected round; right of the dashed line a client is better off."
        + (" The honest clients alone, at the round that these select." if _is_attacked(methods) else ""),
        alt_text=f"Mean difference to training alone: {listing(found)}.",
    )


@on_page(6)
def clients_chart(methods: Methods) -> ReportChart | None:
    """Show what every client reached, where no run of training alone says what it would have reached without."""
    rows = client_rows(methods)
    if not rows or gain_rows(methods):
        return None
    found = [
        f"{name} {_mean(rows, name, 'global_accuracy', of='accuracy'):.1f} % globally and "
        f"{_mean(rows, name, 'local_accuracy', of='accuracy'):.1f} % locally"
        for name in methods_in(rows)
    ]
    return _chart(
        rows,
        ACCURACY,
        attackers=_attackers(methods),
        name="clients",
        title="What every client reached",
        caption="Accuracy of every client in percent, each at its run's selected round.",
        alt_text=f"Mean over the clients: {listing(found)}.",
    )


def _chart(
    rows: list[Row],
    measured: Measured,
    *,
    attackers: Sequence[int],
    name: str,
    title: str,
    caption: str,
    alt_text: str,
) -> ReportChart:
    clients, methods = 1 + max(row["client"] for row in rows), methods_in(rows)
    means = mean_rows(rows, measured.field)
    is_named = clients <= MOST_CLIENTS and len(methods) <= MOST_METHODS
    shown = _over_seeds(rows, measured.field, attackers) if is_named else rows
    x = _axis(rows, means, measured)
    panels = [(_by_client if is_named else _by_method)(shown, x, metric, measured) for metric in PANELS]
    more = {"means": [{**one, "who": ALL} for one in means]}
    return finished(
        alt.vconcat(*panels, spacing=16),
        rows=shown,
        more={**more, "zero": [{measured.field: 0}]} if measured is GAIN else more,
        name=name,
        title=title,
        caption=f"{caption} {_marks_note(means, is_named=is_named)}",
        alt_text=alt_text,
        is_beside=True,
    )


def _over_seeds(rows: Sequence[Row], field: str, attackers: Sequence[int]) -> list[Row]:
    """Return every client's mean over the seeds, and its lowest and highest."""
    found = []
    keys = dict.fromkeys((row["method"], row["metric"], row["client"]) for row in rows)
    for method, metric, client in sorted(keys, key=lambda key: key[2]):  # every seed draws other attackers
        own = [row for row in rows if (row["method"], row["metric"], row["client"]) == (method, metric, client)]
        values = [row[field] for row in own]
        about = {"method": method, "metric": metric, "who": _who(client, attackers)}
        about |= {key: statistics.fmean(row[key] for row in own) for key in ("accuracy", "alone") if key in own[0]}
        reach = {field: statistics.fmean(values), "low": min(values), "high": max(values), "seeds": len(values)}
        found.append({**about, **reach})
    return found


def _who(client: int, attackers: Sequence[int]) -> str:
    return f"client {client}, lies" if client in attackers else f"client {client}"


def _is_attacked(methods: Methods) -> bool:
    return any(run.experiment.attack for runs in methods.values() for run in runs)


def _attackers(methods: Methods) -> Sequence[int]:
    """Return the clients that lie, where they are the same in all runs: the seed draws them."""
    found = {tuple(run.summary.get("attackers", ())) for runs in methods.values() for run in runs}
    return found.pop() if len(found) == 1 else ()


def _axis(rows: Sequence[Row], means: Sequence[Row], measured: Measured) -> alt.X:
    """Return one axis for both panels: two pictures with scales of their own could not be compared."""
    values = [row[measured.field] for row in rows] + [0.0] * (measured is GAIN)
    reach = max(values) - min(values) or measured.least
    low, high = min(values) - FARTHEST * reach, max(values) + FARTHEST * reach
    ends = [end for row in means for end in (row["low"], row["high"]) if end is not None]
    within = [*values, *(min(max(end, low), high) for end in ends)]
    domain = padded_domain(within, least=measured.least, bounds=measured.bounds)
    scale = alt.Scale(domain=domain, nice=False, zero=False)
    return alt.X(f"{measured.field}:Q", title=measured.title, scale=scale, axis=alt.Axis(tickCount=6))


def _by_client(rows: Sequence[Row], x: alt.X, metric: str, measured: Measured) -> alt.LayerChart:
    """Draw a row per client, above them their mean, and in every row the methods below each other."""
    methods = methods_in(rows)
    names = [ALL, *dict.fromkeys(row["who"] for row in rows)]
    legend = method_legend(methods) if len(methods) > 1 else None
    y = alt.Y("who:N", title="client", scale=alt.Scale(domain=names, paddingInner=0.15), axis=alt.Axis(labelLimit=130))
    looks = {
        "y": y,
        "yOffset": alt.YOffset("method:N", scale=alt.Scale(domain=methods, paddingOuter=0.35)),
        "color": method_colour(methods, legend),
    }
    in_panel = alt.FieldEqualPredicate(field="metric", equal=metric)
    clients = alt.Chart(ROWS).transform_filter(in_panel).encode(**looks)
    means = alt.Chart(MEANS).transform_filter(in_panel).encode(**looks)
    shape = method_shape(methods, legend)
    ground = alt.Chart(MEANS).transform_filter(in_panel).mark_bar(opacity=0.05)
    layers: list[alt.Chart] = [
        ground.encode(y=y, x=alt.value(0), x2=alt.value("width"), color=alt.value("gray")),
        *_zero(x, measured),
        _bars(means, x, thickness=3),
        means.mark_point(filled=True, size=130, opacity=1).encode(x=x, shape=shape, tooltip=_mean_hints(measured)),
        clients.mark_point(filled=True, size=65, opacity=1).encode(x=x, shape=shape, tooltip=_hints(rows, measured)),
    ]
    if any(row["seeds"] > 1 for row in rows):
        layers.insert(2, _bars(clients, x, thickness=1.5))
    height = len(names) * max(22, 10 * len(methods) + 6)
    return alt.layer(*layers).properties(width=WIDTH, height=height, title=panel_title(metric))


def _by_method(rows: Sequence[Row], x: alt.X, metric: str, measured: Measured) -> alt.LayerChart:
    """Draw a row per method, in which every client is a tick."""
    methods = methods_in(rows)
    looks = {"y": method_axis(methods), "color": method_colour(methods, None)}
    in_panel = alt.FieldEqualPredicate(field="metric", equal=metric)
    clients = alt.Chart(ROWS).transform_filter(in_panel).encode(**looks)
    means = alt.Chart(MEANS).transform_filter(in_panel).encode(**looks)
    diamonds = means.mark_point(shape="diamond", size=100, filled=True, opacity=1)
    layers = [
        *_zero(x, measured),
        clients.mark_tick(thickness=2, size=18, opacity=0.5).encode(x=x, tooltip=_hints(rows, measured)),
        _bars(means, x, thickness=3),
        diamonds.encode(x=x, tooltip=_mean_hints(measured)),
    ]
    height = max(50, 30 * len(methods))
    return alt.layer(*layers).properties(width=WIDTH - 20, height=height, title=panel_title(metric))


def _bars(base: alt.Chart, x: alt.X, *, thickness: float) -> alt.Chart:
    low = alt.X("low:Q", title=x["title"], scale=x["scale"])
    found = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=thickness, clip=True)
    return found.encode(x=low, x2="high:Q")


def _zero(x: alt.X, measured: Measured) -> list[alt.Chart]:
    return [alt.Chart(ZERO).mark_rule(strokeDash=[3, 3]).encode(x=x)] if measured is GAIN else []


def _hints(rows: Sequence[Row], measured: Measured) -> list[alt.Tooltip]:
    titles = {
        "method": ("N", "method"),
        "who": ("N", "client"),
        "client": ("Q", "client"),
        "seed": ("Q", "seed"),
        "accuracy": ("Q", "joined (%)" if measured is GAIN else "accuracy (%)"),
        "alone": ("Q", "alone (%)"),
        "gain": ("Q", "difference (points)"),
    }
    formats = {"accuracy": ".2f", "alone": ".2f", "gain": "+.2f"}
    hints = [
        alt.Tooltip(f"{key}:{kind}", title=title, **({"format": formats[key]} if key in formats else {}))
        for key, (kind, title) in titles.items()
        if key in rows[0]
    ]
    if any(row.get("seeds", 1) > 1 for row in rows):
        hints += [alt.Tooltip(f"{key}:Q", title=f"{key}est of the seeds", format=measured.format) for key in _ENDS]
    return hints


_ENDS = ("low", "high")


def _mean_hints(measured: Measured) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("method:N", title="method"),
        alt.Tooltip(f"{measured.field}:Q", title="mean over clients", format=measured.format),
        alt.Tooltip("low:Q", title="95 % from", format=measured.format),
        alt.Tooltip("high:Q", title="95 % to", format=measured.format),
        alt.Tooltip("seeds:Q", title="seeds"),
    ]


def _marks_note(means: Sequence[Row], *, is_named: bool) -> str:
    """Say what marks and bars are."""
    seeds = max(row["seeds"] for row in means)
    has_bars = any(row["low"] is not None for row in means)
    if is_named:
        who = "The first row is the mean over clients"
        each = f" A client's bar spans the lowest to the highest of {seeds} seeds." if seeds > 1 else ""
    else:
        who, each = "A tick is a client, the diamond the mean", ""
    if not has_bars:
        return f"{who}."
    over = (
        f"over the {seeds} seeds (Student's t, as wide as that over all seeds and clients at least)"
        if seeds > 1
        else "over this run's clients (Student's t), which says nothing of other seeds"
    )
    cut = " A bar that leaves the picture goes on." if seeds > 1 else ""
    return f"{who}, its bar the 95 % interval {over}.{each}{cut}"


def _mean(rows: Sequence[Row], method: str, metric: str, *, of: str = "gain") -> float:
    return statistics.fmean(_values(rows, method, metric, of))


def _helped(rows: Sequence[Row], method: str, metric: str) -> str:
    gains = _values(rows, method, metric, "gain")
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)} clients better"


def _values(rows: Sequence[Row], method: str, metric: str, of: str) -> list[float]:
    return [row[of] for row in rows if (row["method"], row["metric"]) == (method, METRICS[metric])]
