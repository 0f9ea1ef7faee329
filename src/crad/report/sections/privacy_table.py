"""What private runs have spent, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from crad.analysis.privacy_spent import privacy_spent
from crad.report.sections.page_table import PageTable
from crad.runs.run_records import RunRecords

HEADER = [
    "method",
    "seed",
    "epsilon",
    "target",
    "delta",
    "by training",
    "by statistics",
    "steps",
    "releases",
    "noise",
]
CAPTION = (
    "Differential privacy of one record of a client, added or removed, after the last round, of the client that has "
    "spent most. By training: noised steps; by statistics: counts once, hits per release; no record is in both, so "
    "the larger counts. Noise: standard deviation over the clipping norm. A simulation's noise follows its seed: it "
    "shows the cost and protects nobody. What is covered and what is not: docs/privacy.md."
)


def privacy_tables(runs: Sequence[RunRecords]) -> list[PageTable]:
    """Return the table of what was spent; none where no run trained privately."""
    rows = [
        [
            one.name,
            str(one.seed),
            f"{one.epsilon:.3f}",
            f"{one.target:g}",
            f"{one.delta:g}",
            f"{one.training_epsilon:.3f}",
            f"{one.statistics_epsilon:.3f}",
            str(one.steps),
            str(one.releases),
            "-" if one.noise_multiplier is None else f"{one.noise_multiplier:.3f}",
        ]
        for one in privacy_spent(runs)
    ]
    return [PageTable(HEADER, rows, CAPTION, num_heads=2, title="Privacy")] if rows else []
