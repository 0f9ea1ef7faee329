"""What the page opens with: a title, what was run in a sentence, and whether joining helped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from crad.analysis.comparable import named, run_title
from crad.analysis.comparison import METRICS, ComparisonRow
from crad.analysis.groups import NOT_JOINED
from crad.analysis.privacy_spent import privacy_spent, word_about_counts
from crad.analysis.verdict import css_class, joining_verdict
from crad.runs.run_records import RunRecords


@dataclass(frozen=True)
class Headline:
    """A verdict with its reason, and the runs that are not on the page."""

    verdict: str
    kind: str  # the verdict's, as the style names it: the accent colour follows it
    detail: Sequence[str]
    left_out: str


def title(runs: Sequence[RunRecords]) -> str:
    """Name the methods and the data set."""
    names = list(dict.fromkeys(run.summary["name"] for run in runs))
    what = names[0] if len(names) == 1 else f"{len(names)} methods compared"
    return f"{what} on {PurePath(runs[0].summary['dataset']).name}"


def status(runs: Sequence[RunRecords]) -> str:
    """Say how far the runs of a live page have come."""
    going = [run for run in runs if not run.is_complete]
    if not going:
        return "finished"
    run = going[-1]
    return f"{run_title(run)}: round {len(run.rounds)} of {run.experiment.rounds}"


def sentence(runs: Sequence[RunRecords]) -> str:
    """Say what was run, on what, on which machine."""
    summary = runs[0].summary
    active = summary["active"]
    names = "; ".join(
        f"{name} (our reconstruction, no public code)" if is_reconstruction else name
        for name, is_reconstruction in dict.fromkeys(
            (run.summary["name"], bool(run.summary.get("is_reconstruction"))) for run in runs
        )
    )
    seeds = list(dict.fromkeys(str(run.summary["seed"]) for run in runs))
    who = f"{summary['clients']} clients" + (f", {active} active" if active != summary["clients"] else "")
    how = f"{summary['partition']}" + (f" alpha {summary['alpha']:g}" if summary["partition"] == "dirichlet" else "")
    hardware, samples = summary["hardware"], runs[0].partition.get("samples", "images")
    return (
        f"{names} on {summary['dataset']} ({summary['train_images']} training and {summary['test_images']} test "
        f"{samples}): {who}, {how}, {summary['rounds']} rounds, preset {summary['preset']}, "
        f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(seeds)}, on {hardware['processor']} "
        f"({hardware['device']})."
    )


def make_headline(
    runs: Sequence[RunRecords], rows: Sequence[ComparisonRow], left_out: Sequence[RunRecords]
) -> Headline:
    """Return whether joining helped, and which runs the page leaves out."""
    found = joining_verdict(runs)
    said, detail = _without_alone(runs) if found is None else (found.sentence, found.lines)
    about_counts = dict.fromkeys(word for run in runs if (word := word_about_counts(run.experiment)))
    detail = [*detail, *committee_lines(rows), *privacy_lines(runs), *(f"{word}." for word in about_counts)]
    return Headline(
        verdict=said,
        kind=css_class("not shown" if found is None else found.kind),
        detail=detail,
        left_out=", ".join(named(run) for run in left_out),
    )


def committee_lines(rows: Sequence[ComparisonRow]) -> list[str]:
    """Say what all models of a run reach together, of the method whose committee does best; nothing if not measured."""
    asked = [row for row in rows if {*row.committee} >= {*METRICS}]
    if not asked:
        return []
    best = max(asked, key=lambda row: row.committee["global_accuracy"].mean)
    one, together = ([figures[metric].mean for metric in METRICS] for figures in (best.figures, best.committee))
    return [
        f"Asked together, all models of {best.name} reach {together[0]:.1f} % global and {together[1]:.1f} % local; "
        f"one of them alone, on average, {one[0]:.1f} and {one[1]:.1f}."
    ]


def privacy_lines(runs: Sequence[RunRecords]) -> list[str]:
    """Say what private runs have spent at most; nothing where no run is private."""
    spent = privacy_spent(runs)
    if not spent:
        return []
    most = max(spent, key=lambda one: one.epsilon)
    whose = "" if len(spent) == len(runs) else f", in {len(spent)} of {len(runs)} runs"
    return [
        f"Training was differentially private{whose}: epsilon {most.epsilon:.3g} spent at most, delta {most.delta:g}, "
        "per record of a client. A simulation's noise follows its seed: it shows the cost and protects nobody."
    ]


def _without_alone(runs: Sequence[RunRecords]) -> tuple[str, list[str]]:
    """Return a verdict and why it is none, where no finished run of training alone stands beside finished others."""
    if going := [run for run in runs if not run.is_complete]:
        several = "1 run is" if len(going) == 1 else f"{len(going)} runs are"
        detail = f"{several} not finished, of {len(runs)}; only whole runs count."
        return "Whether joining helped is still open.", [detail]
    if all(run.summary["method"] in NOT_JOINED for run in runs):
        return "Nobody joined here.", ["These clients trained without each other."]
    if any(run.experiment.attack for run in runs):
        return "A simulated attack.", ["Nobody trained alone here, so this says nothing of what joining brings."]
    return (
        "Whether joining helped is still open.",
        ["No run of training alone is on this page; Outcome says how to add it."],
    )
