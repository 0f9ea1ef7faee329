"""`report.html`: one page that opens from disk, for one run or for several methods and seeds.

What was run, whether joining helped, the tables, the figures, the cost, an inspector of single targets, and how to
repeat it. Here is what it shows; `templates/report.html` is how. The page needs nothing beside its own file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.analysis.comparable import comparable_runs
from crad.analysis.comparison import ComparisonRow, compare
from crad.analysis.confusions import simulated_confusions
from crad.analysis.gains import ALONE
from crad.analysis.metric_rows import metric_rows
from crad.report import charts
from crad.report.charts import ReportChart
from crad.report.commands import alone_commands, repeating_commands
from crad.report.frame import framed_page
from crad.report.sections.detail_tables import attack_sentence, class_table, client_table, gain_table, honest_table
from crad.report.sections.headline import make_headline, sentence, status, title
from crad.report.sections.inspector_tab import inspector_data, inspector_section
from crad.report.sections.method_tiles import method_tiles
from crad.report.sections.page_table import PageTable
from crad.report.sections.privacy_table import privacy_tables
from crad.report.sections.svg import partition_heat_map
from crad.report.tables import (
    COMPARISON_HEADER,
    COST_CAPTION,
    COST_HEADER,
    METRIC_HEADER,
    comparison_caption,
    comparison_cells,
    cost_cells,
    metric_caption,
    metric_cells,
    mib,
)
from crad.runs.run_records import RunRecords

CLIENT_CHARTS, ROUND_CHARTS = ("gains", "clients"), ("accuracy", "committee")
COST_CHARTS = ("cost", "bytes", "privacy")


def report_page(runs: Sequence[RunRecords], *, is_live: bool = False) -> str:
    """Return the whole page, of one run or of several on the same data; `is_live`: a run still goes on."""
    shown, left_out = comparable_runs(runs)
    rows = compare([run.summary for run in shown])
    made = charts.make_charts(shown) if charts.charts_available() else None
    inspections = inspector_data(shown)
    return framed_page(
        "report.html",
        title=title(shown),
        sentence=sentence(shown),
        versions=page_versions(shown[0].summary),
        data={"charts": {chart.name: chart.spec for chart in made or ()}, "inspections": inspections},
        library=charts.javascript() if made else "",
        status=status(shown) if is_live else None,
        headline=make_headline(shown, rows, left_out),
        outcome=_outcome(shown, rows, made),
        tables=[
            _comparison_table(rows),
            *_metric_tables(shown),
            class_table(shown),
            client_table(shown, "local_accuracy"),
        ],
        figures=_figures(shown, made),
        cost=_cost(shown, rows, made),
        inspector=inspector_section(shown, inspections, is_live=is_live),
        repeat={"commands": repeating_commands(shown), "facts": _facts(shown[0].summary)},
    )


def _outcome(
    runs: Sequence[RunRecords], rows: Sequence[ComparisonRow], made: Sequence[ReportChart] | None
) -> Mapping[str, Any]:
    """Return what says whether joining helped: pictures of clients and rounds, the methods' figures, every client."""
    attacked = [run for run in runs if run.experiment.attack]
    is_alone_missing = not attacked and ALONE not in {run.summary["method"] for run in runs}
    return {
        "clients_charts": _charts_named(made, CLIENT_CHARTS),
        "methods": method_tiles(runs, rows),
        "round_charts": _charts_named(made, ROUND_CHARTS),
        "gains": gain_table(runs),
        "attack": attack_sentence(attacked[0].experiment) if attacked else "",
        "honest": honest_table(runs) if attacked else None,
        "alone_commands": alone_commands(runs[0]) if is_alone_missing else [],
        "clients": client_table(runs, "global_accuracy"),
        "confusions": [line for run in runs for line in simulated_confusions(run.rounds, run.partition["class_names"])],
    }


def _comparison_table(rows: Sequence[ComparisonRow]) -> PageTable:
    title = "All methods" if len(rows) > 1 else "The run"
    return PageTable(COMPARISON_HEADER, comparison_cells(rows), comparison_caption(rows), title=title)


def _metric_tables(runs: Sequence[RunRecords]) -> list[PageTable]:
    """Return the table of metrics beyond accuracy; none of runs of earlier versions, or of a run that still goes on."""
    rows = metric_rows([run.summary for run in runs])
    cells = metric_cells(rows)
    title = "Beyond accuracy"
    return [PageTable(METRIC_HEADER, cells, metric_caption(rows), num_heads=2, title=title)] if rows else []


def _figures(runs: Sequence[RunRecords], made: Sequence[ReportChart] | None) -> Mapping[str, Any]:
    """Return the charts, or where they cannot be made the picture of the partition that needs no library."""
    if made is None:
        return {"charts": [], "partition": partition_heat_map(runs[0].partition)}
    elsewhere = (*CLIENT_CHARTS, *ROUND_CHARTS, *COST_CHARTS)
    return {"charts": [chart for chart in made if chart.name not in elsewhere], "partition": None}


def _cost(
    runs: Sequence[RunRecords], rows: Sequence[ComparisonRow], made: Sequence[ReportChart] | None
) -> Mapping[str, Any]:
    """Return what it took: bytes, time, memory, and privacy where training was private."""
    return {
        "tables": [PageTable(COST_HEADER, cost_cells(rows), COST_CAPTION, title="Costs"), *privacy_tables(runs)],
        "charts": _charts_named(made, COST_CHARTS),
    }


def _charts_named(made: Sequence[ReportChart] | None, names: Sequence[str]) -> list[ReportChart]:
    return [chart for chart in made or () if chart.name in names]


def _facts(summary: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what a run was computed on and with."""
    hardware: Mapping[str, Any] = summary["hardware"]
    memory = hardware.get("memory_bytes")
    machine = ", ".join(
        [
            str(hardware["processor"]),
            f"device {hardware['device']}",
            *dict.fromkeys(hardware.get("gpus", ())),
            *([f"{hardware['cores']} cores"] if "cores" in hardware else []),
            *([f"{mib(memory)} MiB of memory"] if memory else []),
            *([f"{hardware['workers']} worker processes"] if "workers" in hardware else []),
            *([str(hardware["system"])] if "system" in hardware else []),
        ]
    )
    return {"Machine": machine, "Versions": page_versions(summary)}


def page_versions(summary: Mapping[str, Any]) -> str:
    """Return the names and versions of what a run was computed with."""
    return ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
