"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crad.analysis.traces import STATE_WORDS, ImageTrace, percent, samples
from crad.analysis.verdict import JoiningVerdict, Kind
from crad.report import tables as results

SHADES = " ░▒▓█"
VERDICT_STYLES: dict[Kind, str] = {"helped": "green", "hurt": "red", "mixed": "yellow", "not shown": "bold"}
BLUES = (255, 195, 153, 117, 75, 33, 27, 19)  # of the 256-colour palette, light to dark


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> Table:
    """First column left, the others right; on a narrow terminal cells wrap, nothing is cut."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for number, name in enumerate(header):
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def sectioned_table(table: results.Table) -> Table:
    """One of the paper's tables: sections in italics, the best of a column bold."""
    shown = plain_table(table.header, [], title=table.title)
    for number, row in enumerate(table.rows):
        if number in table.sections:
            shown.add_row(Text(table.sections[number], style="italic"), end_section=False)
        is_last = number + 1 in table.sections or number + 1 == len(table.rows)
        cells = [Text(cell.text, style="bold" if cell.is_best else "") for cell in row]
        shown.add_row(*cells, end_section=is_last)
    return shown


def table_console() -> Console:
    """Return where tables are printed: piped, as wide as they need; on a narrow terminal their cells wrap."""
    return Console() if Console().is_terminal else Console(width=160)


def print_verdict(console: Console, verdict: JoiningVerdict | None) -> None:
    """Say whether joining helped, in the colour of the verdict; nothing where nobody trained alone."""
    if verdict is None:
        return
    console.print(Text(verdict.sentence, style=VERDICT_STYLES[verdict.kind]))
    for line in verdict.lines:
        console.print(Text(line))


def partition_table(partition: Mapping[str, Any], *, width: int) -> Table:
    """Clients x classes: numbers while they fit, one shaded cell per class (or per few classes) where they do not."""
    counts: list[list[int]] = partition["counts"]
    names = partition.get("sites") or [str(client) for client in range(len(counts))]
    highest = max(1, max(max(row) for row in counts))
    table = Table(box=None, title="Private samples per client and class", title_justify="left", pad_edge=False)
    table.add_column("client", justify="right")
    num_classes = len(counts[0])
    cell_width = max(4, len(str(highest)) + 1)
    if num_classes * (cell_width + 1) + 18 <= width:
        for label in range(num_classes):
            table.add_column(str(label), justify="right", min_width=cell_width - 1)
        table.add_column("all", justify="right")
        for client, row in enumerate(counts):
            table.add_row(names[client], *(_shaded(value, highest) for value in row), str(sum(row)))
    else:
        per_cell = math.ceil(num_classes / max(10, width - 24))
        table.add_column(f"classes 0 to {num_classes - 1}" + (f", {per_cell} per cell" if per_cell > 1 else ""))
        table.add_column("all", justify="right")
        for client, row in enumerate(counts):
            cells = [max(row[start : start + per_cell]) for start in range(0, num_classes, per_cell)]
            table.add_row(names[client], "".join(_shade(value, highest) for value in cells), str(sum(row)))
    return table


def trace_table(trace: ImageTrace) -> Table:
    """One image and class: every teacher's part in the target."""
    header = ["teacher", "architecture", "samples", "accuracy %", "says %", "state", "weight %"]
    rows = [
        [
            teacher.name,
            teacher.architecture,
            samples(teacher.count),
            percent(teacher.accuracy),
            *([] if teacher.false_alarms is None else [percent(teacher.false_alarms)]),
            percent(teacher.probability),
            *([] if teacher.corrected is None else [percent(teacher.corrected)]),
            STATE_WORDS[teacher.state],
            percent(teacher.weight),
        ]
        for teacher in trace.teachers
    ]
    if any(teacher.false_alarms is not None for teacher in trace.teachers):
        header.insert(4, "false alarms %")
    if any(teacher.corrected is not None for teacher in trace.teachers):
        header.insert(header.index("state"), "prior out %")
    low, high = trace.accepted
    title = (
        f"Student {trace.student}, test {trace.word} {trace.image} (true class {trace.true_class}), class "
        f"{trace.class_index} ({trace.class_name}), round {trace.round_index}\n"
        f"consensus {percent(trace.consensus)} %, accepted {percent(low)} to {percent(high)} %\n"
        f"target {percent(trace.target)} %, a uniform average would say {percent(trace.uniform)} %"
    )
    return plain_table(header, rows, title=title)


def _shaded(value: int, highest: int) -> Text:
    strength = math.sqrt(value / highest)
    colour = BLUES[min(len(BLUES) - 1, int(strength * len(BLUES)))]
    ink = "white" if strength > 0.6 else "black"
    return Text(f"{value} ", style=f"{ink} on color({colour})")


def _shade(value: int, highest: int) -> str:
    return SHADES[math.ceil(math.sqrt(value / highest) * (len(SHADES) - 1))]
