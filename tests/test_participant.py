"""What a member is told at the end, from records small enough to check by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crad.randomness import stream
from crad.report.participant import (
    committee_lines,
    participant_cells,
    participant_page,
    participant_record,
    shortfall,
)
from crad.report.sections.member_metrics import metric_tables
from crad.training.metrics import ClassificationMetrics, measure_metrics


def record_of(
    round_index: int, *, hits: list[int], trust: dict[str, list[float]], missing: list[int]
) -> dict[str, Any]:
    """A line of rounds.jsonl of a member with two classes and four test images of the first, none of the second."""
    accuracy = 100.0 * sum(hits) / 4
    client = {"local_accuracy": accuracy, "local": {"counts": [4, 0], "hits": hits}, "trust": trust, "notes": {}}
    return {
        "round": round_index,
        "validation_accuracy": accuracy,
        "local_accuracy": accuracy,
        "missing": {"0": missing} if missing else {},
        "clients": [client],
    }


SWAP = {"teacher": 1, "said": 1, "own": 0, "said_share": 0.9, "right_share": 0.0}


def told(**changes: Any) -> dict[str, Any]:
    joined = [
        record_of(1, hits=[2, 0], trust={"1": [1.0, 0.0], "2": [0.0, 0.0]}, missing=[]),
        record_of(2, hits=[3, 0], trust={"1": [0.5, 1.0]}, missing=[2]),
    ]
    given: dict[str, Any] = {
        "federation": "colon",
        "member": "a",
        "members": ["a", "b", "c"],
        "class_names": ["benign", "malignant"],
        "joined": joined,
        "joined_selected": joined[1],
        "alone_selected": record_of(1, hits=[1, 0], trust={}, missing=[]),
        "refused": {"c": {"not signed": 2}},
        "left": {"b": {"snapshot": 1000}},
        "private_counts": None,
    }
    return participant_record(**{**given, **changes})


def test_the_difference_is_of_the_own_test_images():
    record = told()
    assert (record["difference"], record["missing"]) == (50.0, {"c": 1})
    assert record["per_class"] == [
        {"name": "benign", "test_samples": 4, "federated": 75.0, "alone": 25.0},
        {"name": "malignant", "test_samples": 0, "federated": None, "alone": None},
    ]
    assert record["trusted"] == [{"member": "b", "shares": [0.75, 0.5]}, {"member": "c", "shares": [0.0, 0.0]}]
    page = participant_page(record, versions={})
    assert "Joining helped." not in page
    assert "In this run joining raised local accuracy by 50.0 points: one run shows no more than that." in page
    assert "Local accuracy is not beyond what a guess may reach on so many test samples, 75.0 % joined and" in page
    assert "naming the commonest class gets 100.0 %" in page, "all four are benign"
    assert '<div class="headline not-shown"' in page
    assert "+50.00 points on 4 test images, 25.0 points each" in page
    assert "Not used from c: not signed (2 times)" in page


def test_who_could_not_teach_and_who_means_something_else_are_named_beside_whose_knowledge_was_used():
    joined = [
        record_of(number, hits=[3, 0], trust={"1": [0.5, 1.0]}, missing=[])
        | {"clients": [{"trust": {}, "notes": {"confused": [{**SWAP, "samples": 20 + number}]}}]}
        for number in (1, 2)
    ]
    record = told(joined=joined, left_out={"c": "its network x:y is not built in"})
    assert record["left_out"] == {"c": "its network x:y is not built in"}
    (entry,) = record["confused"]
    assert (entry["member"], entry["theirs"], entry["ours"], entry["rounds"]) == ("b", "malignant", "benign", 2)
    page = participant_page(record, versions={})
    assert "Not learned from c: its network x:y is not built in." in page
    assert "behaves like our class" in page
    assert "of our 22 images of that class it called 90 % so" in page


TOGETHER = {
    "is_allowed": True,
    "own_accuracy": 75.0,
    "accuracy": 100.0,
    "test_samples": 4,
    "members": {"a": 2, "b": 1},
    "left_out": {"c": "no snapshot of it is here"},
    "believed": {"a": 1.0, "b": 0.25},
    "rule": "support-all",
    "file": "committee.safetensors",
}


def test_what_all_do_together_is_told_with_who_is_in_it_and_who_is_not():
    record = told(committee=TOGETHER)
    sentence = "Your model 75.0 %, all of you together 100.0 %, on 4 own test images."
    assert committee_lines(record) == [
        sentence,
        "Together are a (round 2), b (round 1), by rule support-all: committee.safetensors, for crad predict.",
        "What b says of itself counts for 25 %: our own validation images do not bear it out.",
        "Left out of the committee: c: no snapshot of it is here.",
    ]
    page = participant_page(record, versions={})
    assert all(line in page for line in committee_lines(record))
    assert ["all of you together", "100.00"] in participant_cells(record)
    deleted = {"is_allowed": False, "deleted": {"count": 4, "bytes": 2**20, "time": 1.0}}
    assert "4 of them (1.00 MiB) were deleted" in committee_lines(told(committee=deleted))[0]
    assert committee_lines(told()) == []


def test_a_method_under_which_nobody_is_taught_is_not_blamed_for_it():
    untaught = [record_of(1, hits=[2, 0], trust={}, missing=[])]
    assert "In 1 of its rounds nobody's snapshot was used." in shortfall(told(joined=untaught, rounds_agreed=1))
    assert shortfall(told(joined=untaught, rounds_agreed=1, is_taught=False)) == ""
    assert shortfall(told(joined=[{**untaught[0], "is_preparation": True}], rounds_agreed=1)) == ""


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [(0.5, "epsilon 0.5 spent by this agreement. Accuracies were not"), (None, "published as they are")],
)
def test_the_budget_is_told_with_what_it_does_not_cover(epsilon, said):
    record = told(private_counts=epsilon)
    assert record["private_counts"]["epsilon_spent"] == epsilon
    assert said in participant_page(record, versions={})


def metrics_of(*hits: int) -> ClassificationMetrics:
    """A model that gets so many of twelve samples of the first class and of four of the second right, quite sure."""
    labels = np.repeat([0, 1], [12, 4])
    right = np.concatenate([np.arange(12) < hits[0], np.arange(4) < hits[1]])
    said = np.where(right, labels, 1 - labels)
    return measure_metrics(0.9 * np.eye(2)[said] + 0.05, labels, rng=stream(1, "metrics", "own", 0))


def test_a_member_is_told_its_metrics_what_has_too_few_samples_and_its_confusion_matrix():
    record = told(joined_metrics=metrics_of(9, 4), alone_metrics=metrics_of(6, 1))
    figures = record["metrics"]["federated"]["figures"]
    assert figures["accuracy"]["value"] == pytest.approx(100 * 13 / 16)
    assert record["metrics"]["difference"]["accuracy"]["value"] == pytest.approx(100 * 6 / 16)
    assert figures["balanced_accuracy"] == {"value": None, "reason": "too few samples"}, "one class has four"
    page = participant_page(record, versions={})
    assert "On 16 own test samples" in page
    assert "test samples or more, too few samples: malignant." in page
    assert "<td>9</td><td>3</td>" in page.replace("\n", ""), "of twelve benign ones three are called malignant"
    assert "Beyond accuracy" not in participant_page(told(), versions={}), "a record of an earlier version"


def test_metrics_of_enough_samples_stand_beside_those_alone_and_together():
    enough = measure_metrics(
        np.repeat([[0.9, 0.1], [0.2, 0.8]], 20, axis=0), np.repeat([0, 1], 20), rng=stream(1, "metrics", "own", 0)
    )
    figures = {name: {"value": 50.0, "low": 40.0, "high": 60.0} for name in enough.figures}
    committee: dict[str, Any] = {
        "is_allowed": True,
        "own_accuracy": 1.0,
        "accuracy": None,
        "file": None,
        "left_out": {},
        "members": {},
    }
    record = told(joined_metrics=enough, alone_metrics=enough, committee={**committee, "metrics": figures})
    figures_shown, matrix = metric_tables(record)
    assert figures_shown.header == ["metric", "joined", "alone", "difference", "together"]
    all_right = ["100.0 [100.0, 100.0]", "100.0 [100.0, 100.0]", "+0.0 [+0.0, +0.0]", "50.0 [40.0, 60.0]"]
    assert figures_shown.rows[0] == ["balanced accuracy", *all_right]
    assert figures_shown.rows[3] == ["calibration error", *["too few samples"] * 3, "50.0 [40.0, 60.0]"]
    assert matrix.rows == [["benign", "20", "0"], ["malignant", "0", "20"]]
