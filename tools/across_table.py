"""One study across its columns as a small table: a line per column, a cell per row with one or two metrics in it.

<!-- evidence: across committee asked_global_accuracy,asked_local_accuracy alone alone-together -->

Where a study was run with several presets, each has a folder of its own: `main/committee_rules`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from crad.paper.experiments import PaperExperiment, load_paper

Cell = dict[str, str]
UNITS = {"%": "percent"}
BEST = "best:"  # `best:METRIC` in place of a row: which of all rows has the highest mean


def across_table(folder: Path, study: str, metrics: str, *rows: str) -> str:
    """Return the columns of a study that have the first of these rows, as Markdown; `folder` holds all evidence."""
    home, _, name = study.rpartition("/")
    paper, names = load_paper(name), metrics.split(",")
    path = folder / (home or _home(folder, name)) / "tables" / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        cells = {(one["column"], one["row"], one["metric"]): one for one in csv.DictReader(file) if one["mean"]}
    labels = {row.name: paper.label_of(row) for row in paper.rows}
    heads = [labels[row] if row in labels else _best_head(paper, row) for row in rows]
    lines = ["| | " + " | ".join(heads) + " |", "|---" + "|---:" * len(heads) + "|"]
    for column in paper.columns:
        said = [_said(cells, column.name, row, names, labels, seeds=len(paper.seeds)) for row in rows]
        if said[0]:
            lines.append(f"| {column.label} | " + " | ".join(one or "-" for one in said) + " |")
    baseline = labels[next(iter(cells.values()))["baseline"]]
    shown = [one for one in paper.metrics if one.name in names]
    unit = f"{' / '.join(one.label for one in shown)}, {UNITS.get(shown[0].unit, shown[0].unit)}"
    whole = ", ".join(map(str, paper.seeds))
    note = f"{unit}, mean over seeds {whole}; behind a cell with fewer of them, how many. "
    compared = f"**Bold**: better than {baseline}, *italic*: worse, where the paired 95 % interval leaves out zero."
    return "\n".join([*lines, "", note[0].upper() + note[1:] + compared, ""])


def _home(folder: Path, study: str) -> str:
    """Return whose folder has the study's table: its own, or the one that it shares with others."""
    found = [path.parts[-3] for path in sorted(folder.glob(f"*/tables/{study}.csv"))]
    if len(found) != 1:
        raise SystemExit(f"{study}: its table is in {', '.join(found) or 'no folder'}: write FOLDER/{study}")
    return found[0]


def _best_head(paper: PaperExperiment, row: str) -> str:
    [label] = [one.label for one in paper.metrics if f"{BEST}{one.name}" == row]
    return f"highest {label}"


def _said(
    cells: Mapping[tuple[str, str, str], Cell],
    column: str,
    row: str,
    metrics: Sequence[str],
    labels: Mapping[str, str],
    *,
    seeds: int,
) -> str:
    if row.startswith(BEST):
        metric = row.removeprefix(BEST)
        means = {name: float(cells[column, name, metric]["mean"]) for name in labels if (column, name, metric) in cells}
        best = max(means, key=means.__getitem__, default=None)
        return "" if best is None else f"{labels[best]}, {means[best]:.1f}"
    found = [cells.get((column, row, metric)) for metric in metrics]
    if not any(found):
        return ""
    there = min(len(one["seeds"].split()) for one in found if one)
    few = f" ({there})" if there < seeds else ""
    return " / ".join("-" if one is None else _marked(one) for one in found) + few


def _marked(cell: Cell) -> str:
    mean = f"{float(cell['mean']):.1f}"
    mark = {"better": "**", "worse": "*"}.get(cell["verdict"], "")
    return f"{mark}{mean}{mark}"
