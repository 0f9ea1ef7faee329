"""Every method of a page as a row of tiles: what it reached, whom it helped, what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crad.analysis.comparison import METRICS, ComparisonRow
from crad.analysis.groups import NOT_JOINED
from crad.analysis.verdict import Verdict, joining_verdict
from crad.report.charts.style import method_styles
from crad.report.tables import mib
from crad.runs.run_records import RunRecords

ALONE_NOTES = {"local": "everybody alone", "centralized": "nobody joins: one model of all data"}
NAMES = {"global_accuracy": "global accuracy", "local_accuracy": "local accuracy"}


@dataclass(frozen=True)
class Tile:
    """One figure with its name and what it means."""

    name: str
    value: str
    note: str
    is_best: bool = False  # the highest of the methods that somebody joins, where there are several


@dataclass(frozen=True)
class MethodTiles:
    """One method's figures, in the colour that it has in the charts."""

    name: str
    about: str
    colour: str
    tiles: list[Tile]
    verdict: Verdict | None = None  # where somebody trained alone


def method_tiles(runs: Sequence[RunRecords], rows: Sequence[ComparisonRow]) -> list[MethodTiles]:
    """Return a row of tiles per method, in their order; other weights of a method stand in the table alone."""
    shown = [row for row in rows if not row.is_variant]
    found = joining_verdict(runs)
    verdicts = {} if found is None else {verdict.name: verdict for verdict in found.verdicts}
    best = _best(shown)
    colours = [style.colour for style in method_styles([row.name for row in shown])]
    return [
        MethodTiles(
            row.name,
            _about(runs, row),
            colour,
            [*_accuracies(row, verdicts, best), *_together(row), *_gained(row, verdicts), *_costs(row)],
            verdicts.get(row.name),
        )
        for row, colour in zip(shown, colours, strict=True)
    ]


def _about(runs: Sequence[RunRecords], row: ComparisonRow) -> str:
    rounds = [str(run.summary["best_round"]) for run in runs if run.summary["name"] == row.name]
    if len(rounds) == 1:
        return f"at round {rounds[0]} (highest validation accuracy)"
    return f"at rounds {', '.join(rounds)} (highest validation accuracy), mean of {len(rounds)} seeds"


def _best(rows: Sequence[ComparisonRow]) -> dict[str, float]:
    """Return the highest mean of every accuracy among the methods that somebody joins; nothing of one method alone."""
    joined = [row for row in rows if row.method not in NOT_JOINED]
    if len(joined) < 2:
        return {}
    return {metric: max(row.figures[metric].mean for row in joined) for metric in METRICS}


def _accuracies(row: ComparisonRow, verdicts: Mapping[str, Verdict], best: Mapping[str, float]) -> list[Tile]:
    gains = {gain.metric: gain.mean for gain in verdicts[row.name].gains} if row.name in verdicts else {}
    tiles = []
    for metric, name in NAMES.items():
        mean = row.figures[metric].mean
        note = f"{gains[metric]:+.2f} points over alone" if gains else "mean over clients"
        is_best = row.method not in NOT_JOINED and mean == best.get(metric)
        tiles.append(Tile(name, f"{mean:.2f} %", note, is_best))
    return tiles


def _together(row: ComparisonRow) -> list[Tile]:
    """Return what all models reach when they are asked together, where that was measured."""
    if len(row.committee) < len(METRICS):
        return []
    overall, local = (row.committee[metric].mean for metric in NAMES)
    return [Tile("all models together", f"{overall:.2f} %", f"global; local {local:.2f} %")]


def _gained(row: ComparisonRow, verdicts: Mapping[str, Verdict]) -> list[Tile]:
    if not verdicts:
        return []  # nobody trained alone here
    if row.method in NOT_JOINED:
        return [Tile("clients that gained", "-", ALONE_NOTES[row.method])]
    own = verdicts[row.name]
    number = f"{own.num_gained} of {own.num_pairs}"
    return [Tile("clients that gained", number, "better on one accuracy, worse on neither")]


def _costs(row: ComparisonRow) -> list[Tile]:
    about = f"{row.cost.payload_counts}, per client and round"
    return [
        Tile("payload", f"{mib(row.payload_bytes)} MiB", about),
        Tile("time", f"{row.cost.round_seconds:.2f} s", "per round, median"),
    ]
