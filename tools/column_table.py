"""One column of a study as a table: a line per row, every metric and its difference to a baseline.

<!-- evidence: main cifar10 asked_global_accuracy=global asked_local_accuracy=local -->
<!-- evidence: main cifar10 asked_global_accuracy=global baseline=crad rows=crad-plus,uniform -->
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from crad.paper.experiments import Choice
from crad.paper.plan import plan_reproduction, read_finished, table_texts


def column_table(folder: Path, study: str, column: str, *wanted: str) -> str:
    """Return a column's measured rows as Markdown; `folder` holds all evidence.

    `wanted`: each metric with its heading; `rows=NAME,...` where not all are wanted, `baseline=ROW` where it is not the
    study's.
    """
    metrics = dict(one.split("=", 1) for one in wanted)
    baseline, chosen = metrics.pop("baseline", None), metrics.pop("rows", None)
    path = folder / study / "tables" / f"{study}.csv"
    rows = [row for row in _figures(path, column=column, baseline=baseline) if row["column"] == column]
    if not rows:
        raise SystemExit(f"{path}: has no column {column!r}")
    rows = [row for row in rows if chosen is None or row["row"] in (baseline, *chosen.split(","))]
    return _grouped(rows, metrics=metrics)


def _figures(path: Path, *, column: str, baseline: str | None) -> list[dict[str, str]]:
    """Return the lines of a study's table, or what they are beside another baseline in one column."""
    text = path.read_text(encoding="utf-8")
    if baseline is not None:
        plan = plan_reproduction(
            path.stem,
            path.parents[1],
            flags={"preset": preset_of(path)},
            choice=Choice(columns=(column,)),
            baseline=baseline,
            sources=(path.parents[1] / "runs",),
        )
        text = table_texts(plan, read_finished(plan)[0])[path.name]
    return list(csv.DictReader(io.StringIO(text)))


def preset_of(table: Path) -> str:
    """Return the preset that a study's table was measured with."""
    with table.open(encoding="utf-8", newline="") as file:
        return next(csv.DictReader(file))["preset"]


def _grouped(rows: Sequence[dict[str, str]], *, metrics: Mapping[str, str]) -> str:
    """Return a table for each set of seeds, the largest first; what has not run is left out."""
    measured = [row for row in rows if row["mean"] and row["metric"] in metrics]
    seeds = {row["name"]: row["seeds"] for row in sorted(measured, key=lambda row: -len(row["seeds"]))}
    groups = sorted(set(seeds.values()), key=lambda said: -len(said.split()))
    parts = [
        _table([row for row in measured if seeds[row["name"]] == group], metrics, is_whole=group == groups[0])
        for group in groups
    ]
    return "\n".join(parts)


def _table(rows: Sequence[dict[str, str]], metrics: Mapping[str, str], *, is_whole: bool) -> str:
    """Return the rows of the same seeds; those of fewer than others have go below the baseline of these seeds alone."""
    baseline, seeds = rows[0]["baseline"], rows[0]["seeds"].split()
    heads = [head for label in metrics.values() for head in (label, f"minus {baseline}")]
    lines = ["| | " + " | ".join(heads) + " |", "|---" + "|---:" * len(heads) + "|"]
    if not is_whole and all(row["name"] != baseline for row in rows):
        lines.append(f"| {baseline}, the same | " + " | ".join(_of_baseline(rows, metrics)) + " |")
    for name in dict.fromkeys(row["name"] for row in rows):
        of_row = {row["metric"]: row for row in rows if row["name"] == name}
        lines.append(f"| {name} | " + " | ".join(cell for one in metrics for cell in _cells(of_row.get(one))) + " |")
    said = f"mean over seeds {', '.join(seeds)}" if len(seeds) > 1 else f"seed {seeds[0]} alone, without an interval"
    intervals = "; ± half of the paired 95 % interval, bold where it leaves out zero" if len(seeds) > 1 else ""
    return "\n".join([*lines, "", f"Percent, {said}{intervals}.", ""])


def _of_baseline(rows: Sequence[dict[str, str]], metrics: Mapping[str, str]) -> Iterator[str]:
    """Return the baseline's cells for the seeds that these rows have, from what they are ahead of it."""
    for metric in metrics:
        there = [row for row in rows if row["metric"] == metric and _is_paired(row)]
        yield from (f"{float(there[0]['mean']) - float(there[0]['difference']):.1f}" if there else "-", "")


def _is_paired(row: dict[str, str]) -> bool:
    """Return whether the baseline has all seeds of a row; it is not compared with itself."""
    return row["paired_seeds"] == row["seeds"]


def _cells(row: dict[str, str] | None) -> tuple[str, str]:
    """Return a mean and its difference to the baseline; "-" of what no run says comparably."""
    if row is None:
        return "-", ""
    mean = f"{float(row['mean']):.1f}"
    if not _is_paired(row):
        return mean, ""
    difference = f"{float(row['difference']):+.1f}"
    if not row["interval_low"]:
        return mean, difference
    half = (float(row["interval_high"]) - float(row["interval_low"])) / 2
    return mean, f"**{difference} ± {half:.1f}**" if row["verdict"] else f"{difference} ± {half:.1f}"
