"""What a round of every method costs: a bar each."""

from __future__ import annotations

from crad.analysis.chart_rows import Row, cost_rows
from crad.analysis.groups import Methods
from crad.report.charts import vega_lite as alt
from crad.report.charts.chart import ReportChart, on_page
from crad.report.charts.parts import ROWS, finished, listing, method_axis, method_colour, methods_in
from crad.report.charts.style import PLOT_WIDTH
from crad.report.tables import mib

WIDTH = PLOT_WIDTH - 50  # names of methods stand beside it


@on_page(80)
def cost_chart(methods: Methods) -> ReportChart | None:
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
    counted = f" Of {', '.join(both)} received bytes count too: outputs on common samples." if both else ""
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
