"""Small pictures as SVG text: a heat map and a line chart, without a plotting library.

Colours are safe for colour-blind readers (a one-hue ramp; Okabe and Ito's palette for lines) and follow the page's
light or dark scheme through CSS variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999", "#000000")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:var(--ink,#222)}"
    ".axis{stroke:var(--ink,#222);stroke-width:1}.grid{stroke:var(--grid,#ddd);stroke-width:1}"
)
MARGIN_LEFT, MARGIN_TOP, MARGIN_BOTTOM = 64, 34, 46
LEGEND_LETTERS = 30  # a longer name is cut, the whole one is its tooltip


def label(text: str) -> str:
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
    parts = [_open(width, height, title), f'<text x="8" y="20" font-weight="600">{label(title)}</text>']
    for column, name in enumerate(columns):
        if len(columns) <= 20:
            x, y = left + cell_width * (column + 0.6), top - 6
            parts.append(f'<text x="{x:.0f}" y="{y}" transform="rotate(-40 {x:.0f} {y})">{label(name)}</text>')
    for row, values in enumerate(counts):
        y = top + cell_height * row
        if cell_height >= 12 or row % 5 == 0:
            parts.append(
                f'<text x="{left - 8}" y="{y + cell_height * 0.7:.0f}" text-anchor="end">{label(rows[row])}</text>'
            )
        for column, value in enumerate(values):
            parts.append(_cell(left + cell_width * column, y, cell_width, cell_height, value, highest, columns[column]))
    parts.append(f'<text x="{left}" y="{height - 10}">{label(row_title)}; darkest = {highest} samples</text>')
    return "".join([*parts, "</svg>"])


def line_chart(series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x_title: str, y_title: str) -> str:
    """Lines over a common x axis, with a legend at the right."""
    width, height, legend = 640, 320, 34 + 8 * min(LEGEND_LETTERS, max(map(len, series)))
    points = [point for line in series.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_ticks = _ticks(min(y for _, y in points), max(y for _, y in points))
    right, bottom = width - legend, height - MARGIN_BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / ((x_high - x_low) or 1)
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return MARGIN_LEFT + across * (right - MARGIN_LEFT), bottom - up * (bottom - MARGIN_TOP)

    parts = [_open(width, height, title), f'<text x="8" y="20" font-weight="600">{label(title)}</text>']
    for tick in y_ticks:
        _, y = place(x_low, tick)
        parts.append(f'<line class="grid" x1="{MARGIN_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{MARGIN_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _x_ticks(x_low, x_high):
        x, _ = place(tick, y_ticks[0])
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<line class="axis" x1="{MARGIN_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (MARGIN_LEFT + right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{height - 8}" text-anchor="middle">{label(x_title)}</text>')
    y_middle = (MARGIN_TOP + bottom) / 2
    turn = f'transform="rotate(-90 16 {y_middle:.0f})"'
    parts.append(f'<text x="16" y="{y_middle:.0f}" text-anchor="middle" {turn}>{label(y_title)}</text>')
    for number, (name, line) in enumerate(series.items()):
        parts.append(_line(name, number, [place(x, y) for x, y in line], right))
    return "".join([*parts, "</svg>"])


def _open(width: float, height: float, title: str) -> str:
    # The viewBox lets the page scale it down; the label is what a screen reader says.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{label(title)}" style="max-width:100%;height:auto"><style>{STYLE}</style>'
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
        f"<title>{label(name)}: {value}</title></rect>{text}"
    )


def _line(name: str, number: int, points: Sequence[tuple[float, float]], right: float) -> str:
    colour = PALETTE[number % len(PALETTE)]
    dash = "" if number < len(PALETTE) else ' stroke-dasharray="5 3"'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    y = MARGIN_TOP + 8 + 18 * number
    dot = f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>' if len(points) == 1 else ""
    return (
        f'{dot}<polyline fill="none" stroke="{colour}" stroke-width="2"{dash} points="{path}"/>'
        f'<line x1="{right + 8}" x2="{right + 22}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"{dash}/>'
        f'<g><title>{label(name)}</title><text x="{right + 26}" y="{y + 4}">{label(_short(name))}</text></g>'
    )


def _short(name: str) -> str:
    return name if len(name) <= LEGEND_LETTERS else f"{name[: LEGEND_LETTERS - 1]}…"


def _ticks(low: float, high: float) -> list[float]:
    step = _step(high - low if high - low > 1e-6 else 1.0, 5)  # values a rounding error apart are one value
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * i for i in range(first, max(last, first + 1) + 1)]


def _x_ticks(low: float, high: float) -> list[float]:
    step = max(1.0, _step((high - low) or 1.0, 6))
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _step(span: float, wanted: int) -> float:
    rough = span / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
