"""`report.html`: one page that opens from disk, for one run or for several methods and seeds.

What was run, whether joining helped, the tables, the figures, the cost, an inspector of single targets, and how to
repeat it. The page's frame, style and scripts lie in `page/`; everything it shows is in the file itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.analysis.comparable import comparable_runs
from crad.analysis.comparison import ComparisonRow, compare
from crad.analysis.confusions import simulated_confusions
from crad.analysis.gains import ALONE
from crad.report import charts
from crad.report.charts import Chart
from crad.report.commands import alone_commands, repeating_commands
from crad.report.detail_tables import attack_sentence, class_table, client_table, gain_table, honest_table
from crad.report.frame import Section, framed_page
from crad.report.headline import headline_box, sentence, status, title
from crad.report.inspector_tab import inspector_data, inspector_section
from crad.report.markup import commands, paragraph, table
from crad.report.svg import escape_html, partition_picture
from crad.report.tables import (
    COMPARISON_HEADER,
    COST_CAPTION,
    COST_HEADER,
    comparison_caption,
    comparison_cells,
    cost_cells,
    mib,
)
from crad.runs.run_records import RunRecords

COST_CHARTS = ("cost", "bytes")
NO_CHARTS = (
    "The figures need two more packages: pip install 'crad[report]', then crad report RUN writes this page anew."
)


def report_page(runs: Sequence[RunRecords], *, is_live: bool = False) -> str:
    """The whole page, of one run or of several on the same data; `is_live`: a run still goes on."""
    shown, left_out = comparable_runs(runs)
    rows = compare([run.summary for run in shown])
    made = charts.make_charts(shown) if charts.charts_available() else None
    inspections = inspector_data(shown)
    sections: list[Section] = [
        ("outcome", "Outcome", _outcome(shown)),
        ("tables", "Tables", _tables(shown, rows)),
        ("figures", "Figures", _figures(shown, made)),
        ("cost", "Cost", _cost(rows, made)),
        ("inspector", "Inspector", inspector_section(shown, inspections, is_live=is_live)),
        ("repeat", "Repeat", _repeat(shown)),
    ]
    data = {"charts": {chart.name: chart.spec for chart in made or ()}, "inspections": inspections}
    return framed_page(
        title=title(shown),
        sentence=sentence(shown),
        headline=headline_box(shown, rows, left_out),
        sections=sections,
        versions=page_versions(shown[0].summary),
        data=data,
        library=charts.javascript() if made else "",
        status=status(shown) if is_live else None,
    )


def _outcome(runs: Sequence[RunRecords]) -> str:
    """Client by client: did joining help?"""
    methods = {run.summary["method"] for run in runs}
    parts = [gain_table(runs)]
    if runs[0].experiment.attack:
        parts += [paragraph(attack_sentence(runs[0].experiment)), honest_table(runs)]
    elif ALONE not in methods:
        parts.append(paragraph("To see whether joining helped, train the same clients alone and report both:"))
        parts.append(commands(alone_commands(runs[0])))
    parts.append(client_table(runs, "global_accuracy"))
    for run in runs:
        parts += [paragraph(line) for line in simulated_confusions(run.rounds, run.partition["class_names"])]
    return "".join(parts)


def _tables(runs: Sequence[RunRecords], rows: Sequence[ComparisonRow]) -> str:
    main = table(COMPARISON_HEADER, comparison_cells(rows), caption=comparison_caption(rows))
    return main + class_table(runs) + client_table(runs, "local_accuracy")


def _figures(runs: Sequence[RunRecords], made: Sequence[Chart] | None) -> str:
    if made is None:
        return paragraph(NO_CHARTS, "note") + f"<figure>{partition_picture(runs[0].partition)}</figure>"
    return chart_figures([chart for chart in made if chart.name not in COST_CHARTS])


def _cost(rows: Sequence[ComparisonRow], made: Sequence[Chart] | None) -> str:
    figures = chart_figures([chart for chart in made or () if chart.name in COST_CHARTS])
    return table(COST_HEADER, cost_cells(rows), caption=COST_CAPTION) + figures


def chart_figures(made: Sequence[Chart]) -> str:
    """Charts with their words, for the page's script to draw."""
    return f'<div class="charts">{"".join(_chart(chart) for chart in made)}</div>'


def _chart(chart: Chart) -> str:
    return (
        f'<figure class="chart"><h3>{escape_html(chart.title)}</h3>'
        f'<div class="plot" data-chart="{escape_html(chart.name)}" role="group" '
        f'aria-label="{escape_html(chart.alt)}"></div>'
        f'<noscript><p class="note">Drawn by a script; crad report --figures DIR writes it as PDF.</p></noscript>'
        f"<figcaption>{escape_html(chart.alt)} <span>{escape_html(chart.caption)}</span></figcaption></figure>"
    )


def _repeat(runs: Sequence[RunRecords]) -> str:
    hardware: Mapping[str, Any] = runs[0].summary["hardware"]
    memory = hardware.get("memory_bytes")
    machine = ", ".join(
        [
            str(hardware["processor"]),
            f"device {hardware['device']}",
            *([f"{hardware['cores']} cores"] if "cores" in hardware else []),
            *([f"{mib(memory)} MiB of memory"] if memory else []),
            *([f"{hardware['workers']} worker processes"] if "workers" in hardware else []),
            *([str(hardware["system"])] if "system" in hardware else []),
        ]
    )
    facts = {"Machine": machine, "Versions": page_versions(runs[0].summary)}
    listed = "".join(f"<dt>{name}</dt><dd>{escape_html(fact)}</dd>" for name, fact in facts.items())
    return (
        commands(repeating_commands(runs))
        + paragraph("On the same kind of machine this gives the same numbers. Every setting is in experiment.toml.")
        + f'<dl class="facts">{listed}</dl>'
    )


def page_versions(summary: Mapping[str, Any]) -> str:
    """What a run was computed with."""
    return ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
