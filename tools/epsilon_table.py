"""Accuracy against epsilon as one small table: methods by epsilon, each beside training alone with the same epsilon."""

from __future__ import annotations

import functools
from pathlib import Path

from crad.paper.experiments import Choice
from crad.paper.plan import Records, make_tidy, plan_reproduction, read_finished

STUDY, PRESET = "private", "mini"
EPSILONS = ("none", "8", "4", "2", "1")
METHODS = {  # how a row of the study begins and ends, and what it is called here
    ("local", ""): "`local`",
    ("uniform", ""): "`uniform`",
    ("crad", ""): "`crad`",
    ("crad-plus", ""): "`crad-plus` (`--evidence reported`)",
    ("local", "-together"): "`local`, all together",
}


def epsilon_table(folder: Path, column: str, metric: str) -> str:
    """Return means and paired differences to `local` at the same epsilon, as Markdown; `folder` has the kept runs."""
    records = _records(folder)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for epsilon in EPSILONS:
        plan = plan_reproduction(
            STUDY,
            folder,
            flags={"preset": PRESET},
            choice=Choice(columns=[column]),
            baseline=f"local-{epsilon}",
            sources=(folder / "runs",),
        )
        for row in make_tidy(plan, records)[STUDY]:
            if row["metric"] == metric and row["mean"]:
                cells[row["row"], epsilon] = row
    lines = ["| epsilon | " + " | ".join(EPSILONS) + " |", "|---" + "|---:" * len(EPSILONS) + "|"]
    for (method, ending), name in METHODS.items():
        found = [cells.get((f"{method}-{epsilon}{ending}", epsilon)) for epsilon in EPSILONS]
        lines.append(f"| {name} | " + " | ".join("-" if one is None else _cell(one) for one in found) + " |")
    seeds = {row["seeds"] for row in cells.values()}
    complete = max(seeds, key=len).replace(" ", ", ")
    partly = " (fewer seeds where a cell has a number behind a slash)" if len(seeds) > 1 else ""
    return "\n".join(
        [
            *lines,
            "",
            f"Percent, mean over seeds {complete}{partly}; behind it the difference to `local` at the same epsilon, "
            "± half of its paired 95 % interval, bold where that leaves out zero.",
            "",
        ]
    )


@functools.cache
def _records(folder: Path) -> Records:
    plan = plan_reproduction(STUDY, folder, flags={"preset": PRESET}, sources=(folder / "runs",))
    records, damaged = read_finished(plan)
    if damaged:
        raise SystemExit(f"{folder}: {'; '.join(damaged.values())}")
    return records


def _cell(row: dict[str, str]) -> str:
    seeds = len(row["seeds"].split())
    mean = f"{float(row['mean']):.1f}" + (f" / {seeds}" if seeds < 3 else "")
    if not row["interval_low"]:
        return mean
    half = (float(row["interval_high"]) - float(row["interval_low"])) / 2
    difference = f"{float(row['difference']):+.1f} ± {half:.1f}"
    return f"{mean} ({f'**{difference}**' if row['verdict'] else difference})"
