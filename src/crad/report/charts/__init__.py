"""Figures from the records of runs: one Vega-Lite specification each, for the page and for a paper.

Altair and vl-convert are the extra `crad[report]`; they are imported when the first chart is made.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module

from crad.analysis.groups import by_method, worlds
from crad.errors import ConfigError
from crad.report.charts.chart import CHARTS, Chart, labelled
from crad.report.charts.chart_files import INSTALL, charts_available, javascript, save_chart
from crad.report.charts.style import theme
from crad.runs.run_records import RunRecords

__all__ = [
    "INSTALL",
    "Chart",
    "charts_available",
    "javascript",
    "make_charts",
    "save_chart",
    "theme",
]


def make_charts(runs: Sequence[RunRecords]) -> list[Chart]:
    """Return every chart for which there is data; runs on other data, or divided otherwise, get charts of their own."""
    if not charts_available():
        raise ConfigError(f"charts need Altair and vl-convert: {INSTALL}")
    from altair.utils.schemapi import debug_mode

    # Altair would hold every piece against the grammar, a third of the work; the tests do that for every chart.
    with debug_mode(False):
        return [chart for label, own in worlds(runs).items() for chart in _charts_of(own, label)]


def _charts_of(runs: Sequence[RunRecords], label: str) -> list[Chart]:
    methods = by_method(runs)
    if not methods:
        return []
    for module in pkgutil.iter_modules(__path__):  # each registers its charts
        import_module(f"{__name__}.{module.name}")
    found = [chart for place in sorted(CHARTS) for chart in [CHARTS[place](methods)] if chart is not None]
    return [labelled(chart, label) for chart in found] if label else found
