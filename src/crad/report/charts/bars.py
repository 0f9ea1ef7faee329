"""Charts with a row per method: what joining brought every client, and what it cost."""

from __future__ import annotations

import statistics

import altair as alt

from crad.analysis.groups import Methods
from crad.analysis.series import ALONE, Row, cost_rows, gain_rows
from crad.report.charts.chart import Chart, on_page
from crad.report.charts.parts import ROWS, finished, listing, method_axis, method_colour, methods_in
from crad.report.charts.style import PLOT_WIDTH
from crad.report.tables import mib

ROW_HEIGHT = 30
WIDTH = PLOT_WIDTH - 50  # names of methods stand beside it


@on_page(20)
def gains_chart(methods: Methods) -> Chart | None:
    """Show what joining brought every client over training alone."""
    rows = gain_rows(methods)
    if not rows:
        return None
    names = methods_in(rows)
    y, colour = method_axis(names), method_colour(names, None)
    x = alt.X("gain:Q", title="global accuracy over training alone (points)", axis=alt.Axis(tickCount=6))
    hints = [
        alt.Tooltip("method:N", title="method"),
        alt.Tooltip("client:Q", title="client"),
        alt.Tooltip("seed:Q", title="seed"),
        alt.Tooltip("accuracy:Q", title="joined (%)", format=".2f"),
        alt.Tooltip("alone:Q", title="alone (%)", format=".2f"),
        alt.Tooltip("gain:Q", title="difference (points)", format="+.2f"),
    ]
    clients = (
        alt.Chart(ROWS).mark_tick(thickness=2, size=18, opacity=0.65).encode(x=x, y=y, color=colour, tooltip=hints)
    )
    means: list[Row] = [
        {"method": name, "gain": statistics.fmean(row["gain"] for row in rows if row["method"] == name)}
        for name in names
    ]
    middle = (
        alt.Chart(alt.NamedData(name="means"))
        .mark_point(shape="diamond", size=90, filled=True, opacity=1)
        .encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("method:N", title="method"),
                alt.Tooltip("gain:Q", title="mean (points)", format="+.2f"),
            ],
        )
    )
    zero = alt.Chart(alt.NamedData(name="zero")).mark_rule(strokeDash=[3, 3]).encode(x=x)
    found = [f"{one['method']} {one['gain']:+.1f} points ({_helped(rows, one['method'])})" for one in means]
    return finished(
        (zero + clients + middle).properties(width=WIDTH, height=max(50, ROW_HEIGHT * len(names))),
        rows=rows,
        more={"means": means, "zero": [{"gain": 0}]},
        name="gains",
        title="What joining brought every client",
        caption=f"Global accuracy of every client minus its accuracy when it trains alone (method {ALONE!r}, same "
        "seed), in percentage points, each at its selected round. A tick is a client, the diamond the mean; right of "
        "the dashed line a client is better off.",
        alt_text=f"Mean difference to training alone: {listing(found)}.",
    )


@on_page(80)
def cost_chart(methods: Methods) -> Chart | None:
    """Show payload and time of a round."""
    rows = [
        {
            **row,
            "payload_mib": row["payload_bytes"] / 2**20,
            "payload_label": mib(row["payload_bytes"]),
            "seconds_label": _seconds(row["round_seconds"]),
        }
        for row in cost_rows(methods)
    ]
    if not rows:
        return None
    payload = _bars(rows, "payload_mib", "payload_label", "payload (MiB per client and round)")
    seconds = _bars(rows, "round_seconds", "seconds_label", "time (seconds per round)")
    both = [row["method"] for row in rows if row["payload_counts"] != "sent"]
    counted = f" Of {', '.join(both)} received bytes count too: outputs on common images." if both else ""
    found = [f"{row['method']} {row['payload_label']} MiB and {row['seconds_label']} s" for row in rows]
    return finished(
        alt.vconcat(payload, seconds, spacing=18),
        rows=rows,
        name="cost",
        title="Cost of a round",
        caption=f"Above: payload in MiB per client and round, as really exchanged.{counted} Below: median seconds of a "
        "round of all clients on the machine that ran it. Means over seeds; linear scales from zero.",
        alt_text=f"Per round: {listing(found)}.",
    )


def _bars(rows: list[Row], field: str, label: str, title: str) -> alt.LayerChart:
    names = methods_in(rows)
    room = max(row[field] for row in rows) * 1.2 or 1.0  # the number stands behind the bar
    x = alt.X(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, room], nice=False), axis=alt.Axis(tickCount=5))
    hints = [
        alt.Tooltip("method:N", title="method"),
        alt.Tooltip(f"{field}:Q", title=title, format=".4~g"),
        alt.Tooltip("payload_counts:N", title="payload counts"),
        alt.Tooltip("seeds:Q", title="seeds"),
    ]
    base = alt.Chart(ROWS).encode(x=x, y=method_axis(names))
    bars = base.mark_bar(height=16).encode(color=method_colour(names, None), tooltip=hints)
    numbers = base.mark_text(align="left", dx=4).encode(text=f"{label}:N")
    return (bars + numbers).properties(width=WIDTH, height=max(50, 24 * len(names)))


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _helped(rows: list[Row], method: str) -> str:
    gains = [row["gain"] for row in rows if row["method"] == method]
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)} clients better"
