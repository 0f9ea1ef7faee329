"""A heat map as SVG text, without a plotting library: who holds what, drawn before a run begins.

Its one-hue ramp is safe for colour-blind readers; its text follows a page's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

STYLE = "text{font:12px system-ui,sans-serif;fill:var(--ink,#222)}"
MARGIN_TOP = 34


def escape_html(text: str) -> str:
    """Text for a page or a picture: escaped, and what no font can show replaced."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def heat_map(
    counts: Sequence[Sequence[int]], *, rows: Sequence[str], columns: Sequence[str], title: str, row_title: str
) -> str:
    """A rows x columns table of counts as shaded cells; cells carry their number while there is room for it."""
    cell_width = 44 if len(columns) <= 20 else max(6, 900 // len(columns))
    cell_height = 22 if len(rows) <= 40 else 8
    left = 18 + 7 * max(map(len, rows))
    column_room = 16 + 5 * max(map(len, columns)) if len(columns) <= 20 else 16
    top = MARGIN_TOP + column_room
    width, height = left + cell_width * len(columns) + 90, top + cell_height * len(rows) + 34
    highest = max(1, max(max(row) for row in counts))
    parts = [_open(width, height, title), f'<text x="8" y="20" font-weight="600">{escape_html(title)}</text>']
    for column, name in enumerate(columns):
        if len(columns) <= 20:
            x, y = left + cell_width * (column + 0.6), top - 6
            parts.append(f'<text x="{x:.0f}" y="{y}" transform="rotate(-40 {x:.0f} {y})">{escape_html(name)}</text>')
    for row, values in enumerate(counts):
        y = top + cell_height * row
        if cell_height >= 12 or row % 5 == 0:
            parts.append(
                f'<text x="{left - 8}" y="{y + cell_height * 0.7:.0f}" text-anchor="end">'
                f"{escape_html(rows[row])}</text>"
            )
        for column, value in enumerate(values):
            parts.append(_cell(left + cell_width * column, y, cell_width, cell_height, value, highest, columns[column]))
    parts.append(f'<text x="{left}" y="{height - 10}">{escape_html(row_title)}; darkest = {highest} samples</text>')
    return "".join([*parts, "</svg>"])


def partition_picture(partition: Mapping[str, Any]) -> str:
    """The partition as a heat map, clients x classes."""
    counts = partition["counts"]
    return heat_map(
        counts,
        rows=[f"client {i}" for i in range(len(counts))],
        columns=partition["class_names"],
        title="Private samples per client and class",
        row_title="rows: clients, columns: classes",
    )


def _open(width: float, height: float, title: str) -> str:
    # The viewBox lets the page scale it down; the label is what a screen reader says.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{escape_html(title)}" style="max-width:100%;height:auto"><style>{STYLE}</style>'
    )


def _cell(x: float, y: float, width: float, height: float, value: int, highest: int, name: str) -> str:
    strength = math.sqrt(value / highest)  # the eye sees small counts too
    ink = "#fff" if strength > 0.55 else "#222"
    red, green, blue = (round(245 + (end - 245) * strength) for end in (8, 69, 148))
    text = ""
    if width >= 30 and height >= 16:
        text = (
            f'<text x="{x + width / 2:.0f}" y="{y + height * 0.7:.0f}" text-anchor="middle" style="fill:{ink}">'
            f"{value}</text>"
        )
    return (
        f'<rect x="{x}" y="{y}" width="{width - 1}" height="{height - 1}" fill="rgb({red},{green},{blue})">'
        f"<title>{escape_html(name)}: {value}</title></rect>{text}"
    )
