"""Figures from the records of runs: one Vega-Lite specification each, for the page and for a paper.

Altair and vl-convert are the extra `crad[report]`; they are imported when the first chart is made.
"""

from __future__ import annotations

from collections.abc import Sequence

from crad.errors import ConfigError
from crad.results.charts.chart import Chart, labelled
from crad.results.charts.export import INSTALL, charts_available, javascript, save_chart
from crad.results.charts.style import theme
from crad.results.grouping import by_method, worlds
from crad.results.paper import PaperExperiment, PlannedCell
from crad.results.paper_tables import Finished
from crad.results.runs import RunRecords

__all__ = [
    "INSTALL",
    "Chart",
    "charts_available",
    "javascript",
    "make_charts",
    "make_study_charts",
    "save_chart",
    "theme",
]


def make_charts(runs: Sequence[RunRecords]) -> list[Chart]:
    """Every chart for which there is data; runs on other data, or divided otherwise, get charts of their own."""
    if not charts_available():
        raise ConfigError(f"charts need Altair and vl-convert: {INSTALL}")
    from altair.utils.schemapi import debug_mode

    # Altair would hold every piece against the grammar, a third of the work; the tests do that for every chart.
    with debug_mode(False):
        return [chart for label, own in worlds(runs).items() for chart in _charts_of(own, label)]


def make_study_charts(paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished) -> list[Chart]:
    """The charts of an experiment with a baseline; none without the extra that draws them."""
    if not charts_available():
        return []
    from crad.results.charts.differences import study_charts

    return study_charts(paper, cells, finished)


def _charts_of(runs: Sequence[RunRecords], label: str) -> list[Chart]:
    from crad.results.charts import bars, heat, lines

    methods = by_method(runs)
    if not methods:
        return []
    makers = (
        lines.accuracy_chart,
        bars.gains_chart,
        lines.classes_chart,
        lines.support_chart,
        heat.context_chart,
        heat.partition_chart,
        heat.trust_chart,
        bars.cost_chart,
        lines.bytes_chart,
    )
    found = [chart for maker in makers for chart in [maker(methods)] if chart is not None]
    return [labelled(chart, label) for chart in found] if label else found
