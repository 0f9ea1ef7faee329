"""How charts look: a fixed colour, dash and mark for every method, sizes for a paper's column, light and dark.

A chart is drawn about 490 pixels wide, which is right on a page; saved for a paper it is scaled to a column of 3.4
inches, where 14 pixels become 7 points. Text colours stand in no specification: `theme(...)` is passed beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PLOT_WIDTH, PLOT_HEIGHT = 415, 230
NAME_LETTERS = 24  # a longer name is cut, the whole one is in the tooltip
SOLID = (1, 0)


@dataclass(frozen=True)
class MethodStyle:
    """The look by which a method is known in every chart: colour is never the only cue."""

    colour: str
    dash: tuple[int, ...]
    mark: str


# After Okabe and Ito; their black and yellow vanish on a dark or a light page and are replaced.
STYLES = {
    "crad": MethodStyle("#D55E00", SOLID, "circle"),
    "crad-plus": MethodStyle("#A23BD6", SOLID, "diamond"),
    "uniform": MethodStyle("#0072B2", SOLID, "square"),
    "uncertainty": MethodStyle("#56B4E9", (6, 2), "diamond"),
    "fedmd": MethodStyle("#009E73", (8, 3), "triangle-up"),
    "fedgd": MethodStyle("#E69F00", (4, 2), "triangle-down"),
    "msfkd": MethodStyle("#CC79A7", (8, 2, 2, 2), "cross"),
    "dfml": MethodStyle("#8A63C9", (3, 2), "triangle-right"),
    "fedmkd": MethodStyle("#A38A00", (10, 3, 3, 3), "triangle-left"),
    "local": MethodStyle("#808080", (2, 2), "circle"),
    "centralized": MethodStyle("#808080", SOLID, "triangle-up"),
}
OTHER_COLOURS = ("#44AA99", "#B5486B", "#6F8FBF", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A63C9", "#A38A00")
OTHER_DASHES = ((5, 3), SOLID, (2, 3), (9, 2, 2, 2))
OTHER_MARKS = ("diamond", "square", "triangle-up", "cross", "triangle-down")

# Sizes only: what has a colour is in the theme, which the page changes for dark readers.
SIZES: dict[str, Any] = {
    "axis": {"labelFontSize": 14, "titleFontSize": 14, "titleFontWeight": "normal", "labelLimit": 130},
    "legend": {
        "labelFontSize": 14,
        "titleFontSize": 14,
        "titleFontWeight": "normal",
        "labelLimit": 220,
        "titleLimit": 400,
        "symbolStrokeWidth": 2,
    },
    "header": {"labelFontSize": 14, "titleFontSize": 14},
    "title": {"fontSize": 14, "fontWeight": "normal", "anchor": "start"},
    "text": {"fontSize": 13},
}


def method_styles(methods: Sequence[str]) -> list[MethodStyle]:
    """Return the look of every method, in their order; those without a fixed one get what is free, in turn."""
    others = [method for method in methods if method not in STYLES]
    return [
        STYLES[method] if method in STYLES else _other_style(others.index(method), taken=set(methods) & set(STYLES))
        for method in methods
    ]


def theme(*, is_dark: bool) -> dict[str, Any]:
    """Return the colours as a Vega-Lite config, to be passed beside a specification."""
    ink, grid = ("#e8e8e8", "#3a3d44") if is_dark else ("#222222", "#dddddd")
    return {
        "background": "transparent",
        "font": "Arial, Helvetica, sans-serif",
        "axis": {"labelColor": ink, "titleColor": ink, "domainColor": ink, "tickColor": ink, "gridColor": grid},
        "legend": {"labelColor": ink, "titleColor": ink},
        "header": {"labelColor": ink, "titleColor": ink},
        "title": {"color": ink, "subtitleColor": ink},
        "text": {"color": ink},
        "rule": {"color": ink},
        "view": {"stroke": grid},
    }


def short_names(methods: Sequence[str]) -> dict[str, str]:
    """Return names that fit beside an axis, each its own: of an import path the last part, of a long one both ends."""
    found: dict[str, str] = {}
    for method in methods:
        short = method if len(method) <= NAME_LETTERS else method.rpartition(":")[2]
        if len(short) > NAME_LETTERS:
            short = f"{short[: NAME_LETTERS // 2 - 1]}…{short[-NAME_LETTERS // 2 :]}"
        unique, number = short, 2
        while unique in found.values():
            unique, number = f"{short[: NAME_LETTERS - 4]}… {number}", number + 1
        found[method] = unique
    return found


def label_expression(methods: Sequence[str]) -> str:
    """Return a Vega expression that turns the name on an axis or in a legend into its short form."""
    return f"{json.dumps(short_names(methods))}[datum.label] || datum.label"


def _other_style(number: int, *, taken: set[str]) -> MethodStyle:
    used = {STYLES[method].colour for method in taken}
    free = [colour for colour in OTHER_COLOURS if colour not in used] or list(OTHER_COLOURS)
    return MethodStyle(
        free[number % len(free)], OTHER_DASHES[number % len(OTHER_DASHES)], OTHER_MARKS[number % len(OTHER_MARKS)]
    )
