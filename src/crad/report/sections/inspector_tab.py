"""The page's inspector: single test images, and how each student's teachers were combined for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from crad.analysis.comparable import run_title
from crad.report.commands import run_name
from crad.runs.records import Record
from crad.runs.run_records import RunRecords

MAX_CHARACTERS = 5_000_000  # of all inspections of a page, which shall stay well below 10 MB


@dataclass(frozen=True)
class InspectorSection:
    """The inspector's part of the page: is there anything to inspect, and what is to be said of the rest."""

    has_traces: bool
    note: str = ""


def inspector_data(runs: Sequence[RunRecords]) -> list[Record]:
    """Return the inspections that fit on a page, crad's first; each knows its run's name."""
    ordered = sorted(runs, key=lambda run: run.summary["method"] != "crad")
    chosen: list[Record] = []
    room = MAX_CHARACTERS
    for run in ordered:
        if run.inspection is None:
            continue
        room -= len(json.dumps(run.inspection, separators=(",", ":")))
        if chosen and room < 0:
            break
        chosen.append({"title": run_title(run), "run": run_name(run), **run.inspection})
    return chosen


def inspector_section(runs: Sequence[RunRecords], inspections: Sequence[Record], *, is_live: bool) -> InspectorSection:
    """Return whether the page has the frame that its script fills, or why there is nothing to inspect."""
    if inspections:
        num_left_out = sum(run.inspection is not None for run in runs) - len(inspections)
        note = f"{num_left_out} more would not fit here: crad report with one run shows its own."
        return InspectorSection(has_traces=True, note=note if num_left_out else "")
    if is_live and any(not run.is_complete for run in runs):
        return InspectorSection(has_traces=False, note="The inspector comes when the run is complete.")
    return InspectorSection(
        has_traces=False,
        note="Nothing to inspect: no run here has traces of single targets. They are made for methods that combine "
        "teachers by a rule, such as crad, while the run's checkpoint is there.",
    )
