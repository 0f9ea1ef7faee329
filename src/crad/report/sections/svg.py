"""A heat map as SVG text, without a plotting library: who holds what, drawn before a run begins.

Its one-hue ramp is safe for colour-blind readers; its text follows a page's light or dark scheme. The picture itself is
`templates/heat_map.svg`; here is where its parts lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crad.report.markup import render

MARGIN_TOP = 34
MAX_NAMED_COLUMNS = 20
LIGHTEST, DARKEST = 245, (8, 69, 148)  # of all three colours; of red, green and blue


@dataclass(frozen=True)
class HeatCell:
    """One count: its column, its colour, and the ink that can be read on it."""

    x: int
    text_x: str
    name: str
    count: int
    rgb: tuple[int, ...]
    ink: str


@dataclass(frozen=True)
class HeatRow:
    """One row of cells; its label only where there is room for it."""

    y: int
    text_y: str
    label: str | None
    cells: list[HeatCell]


@dataclass(frozen=True)
class HeatMap:
    """A rows x columns table of counts as shaded cells."""

    title: str
    note: str
    left: int
    width: int
    height: int
    cell_width: int
    cell_height: int
    names_y: int
    names: list[tuple[str, str]]  # of the columns, each after its x; none where there is no room
    rows: list[HeatRow]

    @property
    def has_numbers(self) -> bool:
        """Tell whether cells have room for their number."""
        return self.cell_width >= 30 and self.cell_height >= 16


def heat_map(
    counts: Sequence[Sequence[int]], *, rows: Sequence[str], columns: Sequence[str], title: str, row_title: str
) -> str:
    """Draw a rows x columns table of counts as shaded cells, which carry their number while there is room for it."""
    return _draw(_lay_out(counts, rows=rows, columns=columns, title=title, row_title=row_title))


def partition_picture(partition: Mapping[str, Any]) -> str:
    """Draw the partition as a heat map, clients x classes."""
    return _draw(partition_heat_map(partition))


def partition_heat_map(partition: Mapping[str, Any]) -> HeatMap:
    """Return the partition's heat map for a template that includes `heat_map.svg`."""
    counts = partition["counts"]
    return _lay_out(
        counts,
        rows=[_called(partition, client) for client in range(len(counts))],
        columns=partition["class_names"],
        title="Private samples per client and class",
        row_title="rows: clients, columns: classes",
    )


def _called(partition: Mapping[str, Any], client: int) -> str:
    """Return a client by its number, and by its site where it is one."""
    sites = partition.get("sites")
    return f"client {client}" if sites is None else f"client {client}, {sites[client]}"


def _draw(picture: HeatMap) -> str:
    return render("heat_map.svg", picture=picture)


def _lay_out(
    counts: Sequence[Sequence[int]], *, rows: Sequence[str], columns: Sequence[str], title: str, row_title: str
) -> HeatMap:
    has_names = len(columns) <= MAX_NAMED_COLUMNS
    cell_width = 44 if has_names else max(6, 900 // len(columns))
    cell_height = 22 if len(rows) <= 40 else 8
    left = 18 + 7 * max(map(len, rows))
    top = MARGIN_TOP + (16 + 5 * max(map(len, columns)) if has_names else 16)
    highest = max(1, max(max(row) for row in counts))
    return HeatMap(
        title=title,
        note=f"{row_title}; darkest = {highest} samples",
        left=left,
        width=left + cell_width * len(columns) + 90,
        height=top + cell_height * len(rows) + 34,
        cell_width=cell_width,
        cell_height=cell_height,
        names_y=top - 6,
        names=[(f"{left + cell_width * (i + 0.6):.0f}", name) for i, name in enumerate(columns)] if has_names else [],
        rows=[
            HeatRow(
                y,
                f"{y + cell_height * 0.7:.0f}",
                rows[number] if cell_height >= 12 or number % 5 == 0 else None,
                [
                    _cell(name, count, x=left + cell_width * column, cell_width=cell_width, highest=highest)
                    for column, (name, count) in enumerate(zip(columns, values, strict=True))
                ],
            )
            for number, values in enumerate(counts)
            for y in [top + cell_height * number]
        ],
    )


def _cell(name: str, count: int, *, x: int, cell_width: int, highest: int) -> HeatCell:
    strength = math.sqrt(count / highest)  # the eye sees small counts too
    rgb = tuple(round(LIGHTEST + (end - LIGHTEST) * strength) for end in DARKEST)
    ink = "#fff" if strength > 0.55 else "#222"
    return HeatCell(x, f"{x + cell_width / 2:.0f}", name, count, rgb, ink)
