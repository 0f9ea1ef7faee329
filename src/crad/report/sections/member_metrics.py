"""A member's metrics beyond accuracy: joined, alone and together, and its confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.analysis.metric_rows import METRIC_TITLES
from crad.report.sections.page_table import PageTable
from crad.training.metrics import (
    MIN_SAMPLES,
    Estimate,
    estimate_from_json,
    metrics_from_json,
)

MANY_CLASSES = 30  # of a table that can still be looked over


def metric_tables(record: Mapping[str, Any]) -> list[PageTable]:
    """Return the tables for the page; none of records of an earlier version."""
    if "metrics" not in record:
        return []
    names = [row["name"] for row in record["per_class"]]
    return [_figure_table(record, names), *([_confusion_table(record, names)] if len(names) <= MANY_CLASSES else [])]


def _figure_table(record: Mapping[str, Any], names: Sequence[str]) -> PageTable:
    found = record["metrics"]
    columns = {
        "joined": found["federated"]["figures"],
        "alone": found["alone"]["figures"],
        "difference": found["difference"],
        "together": (record.get("committee") or {}).get("metrics"),
    }
    shown = {title: entries for title, entries in columns.items() if entries is not None}
    rows = [
        [
            title,
            *(
                _cell(estimate_from_json(entries[name]), is_signed=which == "difference")
                for which, entries in shown.items()
            ),
        ]
        for name, title in METRIC_TITLES.items()
    ]
    measured = metrics_from_json(found["federated"])
    caption = (
        f"On {sum(measured.counts)} own test samples, in percent, in brackets the 95 % bootstrap interval. Balanced "
        "accuracy, macro F1 and AUROC (one class against the rest) are means over the classes with "
        f"{MIN_SAMPLES} test samples or more"
        + _left_out(", too few samples", [names[label] for label in measured.too_few])
        + _left_out(", no samples", [names[label] for label in measured.absent])
        + ". Calibration error: how far confidence is from accuracy, lower is better."
    )
    return PageTable(["metric", *shown], rows, caption, title="Beyond accuracy")


def _confusion_table(record: Mapping[str, Any], names: Sequence[str]) -> PageTable:
    rows = [
        [name, *(str(count) for count in row)]
        for name, row in zip(names, record["metrics"]["federated"]["confusion"], strict=True)
    ]
    caption = "Own test samples by their class (rows) and by what the model with the federation says (columns)."
    return PageTable(["true class", *names], rows, caption, title="Confusion matrix")


def _left_out(words: str, names: Sequence[str]) -> str:
    return f"{words}: {', '.join(names)}" if names else ""


def _cell(estimate: Estimate, *, is_signed: bool) -> str:
    if estimate.value is None or not is_signed:
        return str(estimate)
    return f"{estimate.value:+.1f} [{estimate.low:+.1f}, {estimate.high:+.1f}]"
