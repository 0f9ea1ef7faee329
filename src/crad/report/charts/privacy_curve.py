"""The chart of what private training has spent, round by round."""

from __future__ import annotations

from crad.analysis.groups import Methods
from crad.analysis.privacy_spent import privacy_rows
from crad.report.charts import vega_lite as alt
from crad.report.charts.chart import ReportChart, on_page
from crad.report.charts.curves import round_axis
from crad.report.charts.parts import (
    ROWS,
    finished,
    listing,
    method_colour,
    method_dash,
    method_legend,
    methods_in,
    seeds_note,
)
from crad.report.charts.style import PLOT_HEIGHT, PLOT_WIDTH


@on_page(85)
def privacy_chart(methods: Methods) -> ReportChart | None:
    """Show the epsilon of the client that has spent most, over rounds."""
    rows = privacy_rows(methods)
    if len({row["round"] for row in rows}) < 2:
        return None
    private = [run.experiment for runs in methods.values() for run in runs if run.experiment.private_training]
    targets = [{"epsilon": target} for target in sorted({one.private_training or 0.0 for one in private})]
    names, last = methods_in(rows), max(row["round"] for row in rows)
    top = 1.08 * max([row["high"] for row in rows] + [one["epsilon"] for one in targets])
    x = round_axis(last, planned=max(one.rounds for one in private))
    y = alt.Y("epsilon:Q", title="epsilon spent", scale=alt.Scale(domain=[0, top], nice=False))
    shown = [
        alt.Tooltip("method:N", title="method"),
        alt.Tooltip("round:Q", title="round"),
        alt.Tooltip("epsilon:Q", title="epsilon spent", format=".3f"),
    ]
    line = alt.Chart(ROWS).mark_line(strokeWidth=2, point=True)
    spent = line.encode(
        x=x, y=y, color=method_colour(names, method_legend(names)), strokeDash=method_dash(names), tooltip=shown
    )
    aim = (
        alt.Chart(alt.NamedData(name="targets"))
        .mark_rule(strokeWidth=1, strokeDash=[2, 3], color="grey")
        .encode(y=y, tooltip=[alt.Tooltip("epsilon:Q", title="target", format=".3g")])
    )
    ends = {row["method"]: row for row in rows}
    found = [f"{method} has spent {row['epsilon']:.3g}" for method, row in ends.items()]
    deltas = ", ".join(f"{delta:g}" for delta in sorted({one.delta for one in private}))
    return finished(
        alt.layer(spent, aim).properties(width=PLOT_WIDTH, height=PLOT_HEIGHT),
        rows=rows,
        more={"targets": targets},
        name="privacy",
        title="Privacy spent over rounds",
        caption="Epsilon for one record, added or removed, of the client that has spent most, by training and released "
        f"class statistics together (delta {deltas}). Dotted: what the noise was set for, over all planned rounds. A "
        f"simulation's noise follows its seed: it shows the cost and protects nobody.{seeds_note(rows)}",
        alt_text=f"Epsilon spent up to round {last}: {listing(found)}.",
    )
