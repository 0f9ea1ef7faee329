"""What a chart is, apart from how it was made: a specification, its data, and words for those who cannot see it.

A new chart is a function under `@on_page(place)` in any module of this folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from crad.analysis.chart_rows import Row
from crad.analysis.groups import Methods


@dataclass(frozen=True)
class ReportChart:
    """One figure: interactive in a page, still in a paper, from the same Vega-Lite specification."""

    name: str  # of its file and its place in the page
    title: str
    caption: str  # what is shown, in which units, from where
    alt: str  # the main finding, in a sentence
    spec: dict[str, Any]
    rows: list[Row]


ChartMaker = Callable[[Methods], ReportChart | None]  # None: there is no data for it
CHARTS: dict[int, ChartMaker] = {}  # by their place on the page


def on_page(place: int) -> Callable[[ChartMaker], ChartMaker]:
    """Put a chart on the page of every run and comparison, in the order of the places."""

    def register(maker: ChartMaker) -> ChartMaker:
        assert place not in CHARTS, f"{CHARTS[place].__name__} has place {place} already"
        CHARTS[place] = maker
        return maker

    return register


def with_note(chart: ReportChart, note: str) -> ReportChart:
    """Return the chart with one more sentence in its caption."""
    return replace(chart, caption=f"{chart.caption} {note}")


def labelled(chart: ReportChart, label: str) -> ReportChart:
    """Return the chart of one world among several, with what sets it apart in its name and title."""
    slug = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.")
    return replace(chart, name=f"{chart.name}-{slug}", title=f"{chart.title}: {label}")
