"""The charts of an experiment with a baseline, where the extra that draws them is installed."""

from __future__ import annotations

from collections.abc import Sequence

from crad.paper.experiments import PaperExperiment, PlannedCell
from crad.paper.paper_tables import Finished
from crad.report import charts


def make_study_charts(
    paper: PaperExperiment, cells: Sequence[PlannedCell], finished: Finished
) -> list[charts.ReportChart]:
    """Return differences and curves of an experiment; none without the extra that draws them."""
    if not charts.charts_available():
        return []
    from crad.paper.difference_charts import study_charts

    return study_charts(paper, cells, finished)
