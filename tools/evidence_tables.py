"""Tables that are made of kept runs: `python -m tools.evidence_tables` writes them again.

First those beside the runs (`evidence/*/tables`), each from the runs of its own folder alone; then what `crad advise`
rests on (tools/findings.py), and those in the docs. A page says which one it wants, and everything up to the end mark
is ours:

    <!-- evidence: kinds heart asked_global_accuracy=global asked_auroc=AUROC -->
    <!-- end of evidence -->
"""

from __future__ import annotations

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
from tools.column_table import column_table, preset_of
from tools.epsilon_table import epsilon_table

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- evidence: (?P<asked>[^\n]+?) -->\n)(?P<table>.*?)(<!-- end of evidence -->)", re.DOTALL)


def rewritten(text: str) -> str:
    """Return a page with its tables as the evidence has them now."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{made_table(found['asked'].split())}\n{found[4]}", text)


def made_table(asked: Sequence[str]) -> str:
    """Return a table as Markdown, by what it is called.

    `STUDY COLUMN METRIC=LABEL ...` is one column of a study (tools/column_table.py), `across STUDY METRIC,... ROW ...`
    some rows of it in all columns, `advice` what `crad advise` says, `epsilons COLUMN METRIC` accuracy against epsilon,
    `small` and `rule DATA` the candidates of a choice, `committee_size` smaller committees.
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
    return column_table(ROOT / "evidence", *asked)


def drawn_tables() -> list[Path]:
    """Return the tables beside kept runs, by their CSV."""
    return sorted((ROOT / "evidence").glob("*/tables/*.csv"))


def redrawn(table: Path) -> dict[Path, str]:
    """Return the files of a table as the runs of its folder have them now; the preset is the table's own."""
    sources = (table.parents[1] / "runs",)
    plan = plan_reproduction(table.stem, table.parents[1], flags={"preset": preset_of(table)}, sources=sources)
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
