"""What a chart is, apart from how it was made: a specification, its data, and words for those who cannot see it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from crad.analysis.series import Row


@dataclass(frozen=True)
class Chart:
    """One figure: interactive in a page, still in a paper, from the same Vega-Lite specification."""

    name: str  # of its file and its place in the page
    title: str
    caption: str  # what is shown, in which units, from where
    alt: str  # the main finding, in a sentence
    spec: dict[str, Any]
    rows: list[Row]


def labelled(chart: Chart, label: str) -> Chart:
    """The chart of one world among several, with what sets it apart in its name and title."""
    slug = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.")
    return replace(chart, name=f"{chart.name}-{slug}", title=f"{chart.title}: {label}")
