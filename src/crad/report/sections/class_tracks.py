"""A member's accuracy alone and with the others as marks on one axis, a row per class: HTML without a plotting library.

A member's machine need not have the charts' libraries, and its page stays small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crad.analysis.intervals import share_interval


@dataclass(frozen=True)
class TrackMark:
    """One accuracy on the axis of percent, with its 95 % interval."""

    kind: str  # alone or joined
    at: float
    low: float
    high: float


@dataclass(frozen=True)
class TrackRow:
    """A class, how many test images there are of it, and both accuracies; none where there is no image."""

    name: str
    num_images: int
    marks: list[TrackMark]

    @property
    def words(self) -> str:
        """Say both accuracies."""
        return " → ".join(f"{mark.at:.0f}" for mark in self.marks) + " %" if self.marks else "no test samples"


def class_tracks(record: Mapping[str, Any]) -> list[TrackRow]:
    """Return a row for all classes together, and one for each, from a participant's record."""
    classes = record["per_class"]
    total = sum(row["test_samples"] for row in classes)
    hits = {key: sum(_hits(row, key) for row in classes) for key in ("alone", "federated")}
    rows = [TrackRow("all classes", total, _marks(hits, total))]
    for row in classes:
        own = {key: _hits(row, key) for key in ("alone", "federated")}
        rows.append(TrackRow(row["name"], row["test_samples"], _marks(own, row["test_samples"])))
    return rows


def _hits(row: Mapping[str, Any], key: str) -> int:
    return 0 if row[key] is None else round(row[key] * row["test_samples"] / 100)


def _marks(hits: Mapping[str, int], count: int) -> list[TrackMark]:
    if not count:
        return []
    return [
        TrackMark(kind, 100 * hits[key] / count, *share_interval(hits[key], count))
        for kind, key in (("alone", "alone"), ("joined", "federated"))
    ]
