"""Figures for notebooks: the charts of the page, as Altair's own objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crad.analysis.groups import by_method
from crad.errors import ConfigError, RunError, install_hint
from crad.runs.run_records import RunRecords


def accuracy_curves(runs: Sequence[RunRecords]) -> Any:  # noqa: ANN401  # an Altair chart, whose package is an extra
    """Return global and local accuracy over rounds, a line per method with a band over its seeds."""
    try:
        import altair
    except ImportError as error:
        raise ConfigError(f"curves need Altair: {install_hint('notebook')}") from error
    from crad.report.charts.lines import accuracy_chart

    chart = accuracy_chart(by_method(runs))
    if chart is None:
        raise RunError("no round was tested, so there are no curves")
    return altair.Chart.from_dict(chart.spec)
