"""Figures from the records of runs: one Vega-Lite specification each, for the page and for a paper.

Making one is cheap (`vega_lite.py`). Drawing it is left to the page, or to vl-convert (the extra `crad[report]`), which
is imported for files for a paper and once for the script that pages draw with.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module

from crad.analysis.gains import attackers_of
from crad.analysis.groups import by_method, worlds
from crad.analysis.honest import of_honest_clients
from crad.errors import ConfigError
from crad.report.charts.chart import CHARTS, ReportChart, labelled, with_note
from crad.report.charts.chart_files import INSTALL, charts_available, javascript, save_chart
from crad.report.charts.style import theme
from crad.runs.run_records import RunRecords

__all__ = [
    "INSTALL",
    "ReportChart",
    "charts_available",
    "javascript",
    "make_charts",
    "save_chart",
    "theme",
]

OF_HONEST = "Under the attack, means over clients are of the honest ones."


def make_charts(runs: Sequence[RunRecords]) -> list[ReportChart]:
    """Return every chart for which there is data; runs on other data, or divided otherwise, get charts of their own."""
    if not charts_available():
        raise ConfigError(f"charts need vl-convert: {INSTALL}")
    return [chart for label, own in worlds(runs).items() for chart in _charts_of(own, label)]


def _charts_of(runs: Sequence[RunRecords], label: str) -> list[ReportChart]:
    methods = of_honest_clients(by_method(runs))
    if not methods:
        return []
    for module in pkgutil.iter_modules(__path__):  # each registers its charts
        import_module(f"{__name__}.{module.name}")
    found = [chart for place in sorted(CHARTS) for chart in [CHARTS[place](methods)] if chart is not None]
    if any(attackers_of(run) for own in methods.values() for run in own):
        found = [with_note(chart, OF_HONEST) for chart in found]
    return [labelled(chart, label) for chart in found] if label else found
