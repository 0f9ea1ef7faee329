"""Tables that are made of kept runs: `python -m tools.evidence_tables` writes them again.

First those beside the runs (`evidence/*/tables`), each from the runs of its own folder alone; then what `crad advise`
rests on (tools/findings.py), and those in the docs. A page says which one it wants, and everything up to the end mark
is ours:

    <!-- evidence: kinds heart asked_global_accuracy=global asked_auroc=AUROC -->
    <!-- end of evidence -->
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.studies import committee_size, rule, small
from benchmarks.studies.measured import read_lines
from crad.files import write_atomically
from crad.paper.plan import plan_reproduction, read_finished, table_texts
from tools import findings
from tools.across_table import across_table
from tools.epsilon_table import epsilon_table

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- evidence: (?P<asked>[^\n]+?) -->\n)(?P<table>.*?)(<!-- end of evidence -->)", re.DOTALL)


def rewritten(text: str) -> str:
    """Return a page with its tables as the evidence has them now."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{made_table(found['asked'].split())}\n{found[4]}", text)


def made_table(asked: Sequence[str]) -> str:
    """Return one column of a study as Markdown: every metric, and its difference to the baseline by seed.

    `advice` is the table of what `crad advise` says, `epsilons COLUMN METRIC` that of accuracy against epsilon, `across
    STUDY METRIC,... ROW ...` some rows of a study in all of its columns, `small` and `rule DATA` the candidates of a
    choice, `committee_size` smaller committees.
    """
    if asked == ["advice"]:
        return findings.advice_table()
    if asked == ["small"]:
        return "\n".join([*small.table(read_lines(ROOT / "evidence/small" / small.MEASURED)), ""])
    if asked == ["committee_size"]:
        return "\n".join([*committee_size.table(read_lines(ROOT / "evidence/committee" / committee_size.MEASURED)), ""])
    if asked[0] == "rule":
        return "\n".join([*rule.table(rule.read(ROOT / "evidence/rule"), *asked[1:]), ""])
    if asked[0] == "epsilons":
        return epsilon_table(ROOT / "evidence" / "private", *asked[1:])
    if asked[0] == "across":
        return across_table(ROOT / "evidence", *asked[1:])
    study, column, *wanted = asked
    metrics = dict(one.split("=", 1) for one in wanted)
    path = ROOT / "evidence" / study / "tables" / f"{study}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["column"] == column]
    if not rows:
        raise SystemExit(f"{path}: has no column {column!r}")
    baseline = rows[0]["baseline"]
    heads = [head for label in metrics.values() for head in (label, f"minus {baseline}")]
    measured = [row for row in rows if row["mean"] and row["metric"] in metrics]
    seeds = sorted({row["seeds"] for row in measured}, key=lambda said: len(said.split()))
    differ = len(seeds) > 1
    lines = [
        "| | " + " | ".join([*heads, *(["seeds"] if differ else [])]) + " |",
        "|---" + "|---:" * (len(heads) + differ) + "|",
    ]
    for name in dict.fromkeys(row["name"] for row in measured):
        of_row = {row["metric"]: row for row in rows if row["name"] == name}
        cells = [cell for one in metrics for cell in _cells(of_row[one])]
        there = [min((of_row[one]["seeds"] for one in metrics), key=len)] if differ else []
        lines.append(f"| {name} | " + " | ".join([*cells, *there]) + " |")
    said = "the seeds at the end of a line" if differ else f"seeds {seeds[0].replace(' ', ', ')}"
    alone = "; of one seed the difference alone" if any(len(one.split()) == 1 for one in seeds) else ""
    return (
        "\n".join(
            [
                *lines,
                "",
                f"Percent, mean over {said}; ± half of the paired 95 % interval, bold where it leaves out zero{alone}.",
            ]
        )
        + "\n"
    )


def _cells(row: dict[str, str]) -> tuple[str, str]:
    """Return a mean and its difference to the baseline; "-" of what no run says comparably."""
    if not row["mean"]:
        return "-", ""
    mean = f"{float(row['mean']):.1f}"
    if not row["difference"]:
        return mean, ""
    difference = f"{float(row['difference']):+.1f}"
    if not row["interval_low"]:
        return mean, difference
    half = (float(row["interval_high"]) - float(row["interval_low"])) / 2
    return mean, f"**{difference} ± {half:.1f}**" if row["verdict"] else f"{difference} ± {half:.1f}"


def drawn_tables() -> list[Path]:
    """Return the tables beside kept runs, by their CSV."""
    return sorted((ROOT / "evidence").glob("*/tables/*.csv"))


def redrawn(table: Path) -> dict[Path, str]:
    """Return the files of a table as the runs of its folder have them now; the preset is the table's own."""
    with table.open(encoding="utf-8", newline="") as file:
        preset = next(csv.DictReader(file))["preset"]
    sources = (table.parents[1] / "runs",)
    plan = plan_reproduction(table.stem, table.parents[1], flags={"preset": preset}, sources=sources)
    records, damaged = read_finished(plan)
    if damaged:
        raise SystemExit(f"{table.parents[1]}: {'; '.join(damaged.values())}")
    return {table.with_name(name): text for name, text in table_texts(plan, records).items()}


def pages() -> list[Path]:
    """Return the pages that have such a table."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if BLOCK.search(path.read_text(encoding="utf-8"))]


def main() -> int:
    """Write every table and page again."""
    for table in drawn_tables():
        for path, text in redrawn(table).items():
            write_atomically(path, text.encode())
        print(table.relative_to(ROOT))
    findings.main()
    for path in pages():
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
