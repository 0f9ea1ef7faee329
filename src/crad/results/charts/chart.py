"""What a chart is, apart from how it was made: a specification, its data, and words for those who cannot see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crad.results.series import Row


@dataclass(frozen=True)
class Chart:
    """One figure: interactive in a page, still in a paper, from the same Vega-Lite specification."""

    name: str  # of its file and its place in the page
    title: str
    caption: str  # what is shown, in which units, from where
    alt: str  # the main finding, in a sentence
    spec: dict[str, Any]
    rows: list[Row]
