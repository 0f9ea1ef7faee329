"""Metrics beyond accuracy: by hand, against scikit-learn, against a known truth, and through whole runs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crad
from crad.analysis.metric_rows import ALL_CLIENTS, metric_rows
from crad.errors import CradError, RunError
from crad.randomness import stream
from crad.report.page import report_page
from crad.report.tables import METRIC_HEADER, metric_caption, metric_cells
from crad.runs.callbacks import LambdaCallback
from crad.runs.metrics_record import METRICS_FILE
from crad.runs.run_records import load_run
from crad.runs.selection import honest_selected_round
from crad.runs.tracking.scalars import summary_scalars
from crad.training.metrics import (
    METRIC_NAMES,
    NOT_FINITE,
    NUM_BINS,
    TOO_FEW,
    ClassificationMetrics,
    _draw_weights,
    difference_estimates,
    mean_estimates,
    measure_metrics,
    metrics_from_json,
    metrics_to_json,
    softmax,
)
from tests.conftest import change
from tests.test_resume import assert_same_end

SURE, UNSURE = 0.95, 0.65


def said(confusion: list[list[int]], *, confidence: float = SURE) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels that come to this confusion matrix, all with the same confidence."""
    size = len(confusion)
    rest = (1 - confidence) / (size - 1)
    rows, labels = [], []
    for label, counts in enumerate(confusion):
        for answer, count in enumerate(counts):
            rows += [[confidence if one == answer else rest for one in range(size)]] * count
            labels += [label] * count
    return np.array(rows), np.array(labels)


def measured(probabilities: Any, labels: Any, *words: str) -> ClassificationMetrics:
    return measure_metrics(np.asarray(probabilities), np.asarray(labels), rng=stream(5, "metrics", *words))


def values(metrics: ClassificationMetrics) -> dict[str, float | None]:
    return {name: metrics[name].value for name in METRIC_NAMES}


def ends(metrics: ClassificationMetrics, name: str) -> tuple[float, float]:
    low, high = metrics[name].low, metrics[name].high
    assert low is not None
    assert high is not None
    return low, high


def test_a_confusion_matrix_worked_by_hand():
    metrics = measured(*said([[15, 5], [2, 8]]))
    assert metrics.confusion == ((15, 5), (2, 8))
    assert metrics.counts == (20, 10)
    assert metrics["accuracy"].value == pytest.approx(100 * 23 / 30)
    assert metrics["balanced_accuracy"].value == pytest.approx(100 * (15 / 20 + 8 / 10) / 2)
    assert metrics["macro_f1"].value == pytest.approx(100 * (30 / (20 + 17) + 16 / (10 + 13)) / 2)
    # Of the 20 x 10 pairs 15 x 8 are in order, and where both got the same answer, 15 x 2 and 5 x 8, half counts.
    assert metrics["auroc"].value == pytest.approx(100 * (15 * 8 + (15 * 2 + 5 * 8) / 2) / 200)
    assert metrics["ece"].reason == TOO_FEW, "30 samples in 15 bins"


def test_a_calibration_error_worked_by_hand():
    sure, sure_labels = said([[70, 10], [10, 70]], confidence=0.95)  # 87.5 % right, 95 % sure
    unsure, unsure_labels = said([[15, 5], [5, 15]], confidence=0.65)  # 75 % right, 65 % sure
    metrics = measured(np.vstack([sure, unsure]), np.concatenate([sure_labels, unsure_labels]))
    assert metrics["ece"].value == pytest.approx((160 * 7.5 + 40 * 10) / 200)


def test_classes_with_fewer_than_ten_samples_are_left_out_of_means_and_named():
    confusion = [[10, 0, 0, 0], [5, 5, 0, 0], [0, 0, 9, 0], [0, 0, 0, 0]]
    metrics = measured(*said(confusion))
    assert (metrics.counted, metrics.too_few, metrics.absent) == ((0, 1), [2], [3])
    assert metrics["balanced_accuracy"].value == pytest.approx(75)
    assert metrics["macro_f1"].value == pytest.approx(100 * (20 / 25 + 10 / 15) / 2)
    assert [value is None for value in metrics.class_auroc] == [False, False, True, True]
    assert metrics["accuracy"].value == pytest.approx(100 * 24 / 29)


@pytest.mark.parametrize(
    ("confusion", "withheld"),
    [
        ([[9, 0], [0, 9]], {"balanced_accuracy", "macro_f1", "auroc", "ece"}),
        ([[30, 0], [0, 9]], {"balanced_accuracy", "macro_f1", "auroc", "ece"}),
        ([[4, 0], [0, 5]], set(METRIC_NAMES)),
        ([[10, 0], [0, 10]], {"ece"}),
        ([[140, 0], [0, 10]], set()),
        ([[0, 0], [0, 0]], set(METRIC_NAMES)),
    ],
)
def test_what_has_too_few_samples_is_withheld_and_says_so(confusion, withheld):
    probabilities, labels = said(confusion)
    metrics = measured(probabilities.reshape(-1, 2), labels.astype(np.int64))
    assert {name for name in METRIC_NAMES if metrics[name].value is None} == withheld
    assert all(str(metrics[name]) == TOO_FEW for name in withheld)
    assert metrics.resampled.keys() == set(METRIC_NAMES) - withheld


def test_predictions_that_are_not_finite_have_no_ranks_and_no_confidence():
    probabilities, labels = said([[80, 0], [0, 80]])
    probabilities[3] = np.nan
    metrics = measured(probabilities, labels)
    assert metrics["auroc"].reason == metrics["ece"].reason == NOT_FINITE
    assert metrics["accuracy"].value == 100.0, "the first class is what a row without numbers comes to"
    assert np.isnan(softmax(np.array([[np.inf, 0.0], [-np.inf, -np.inf]]))).all()


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Predictions with many equal ones, for classes of all sizes, some without samples."""
    size = draw(st.integers(2, 5))
    counts = draw(st.lists(st.sampled_from([0, 3, 10, 17, 40]), min_size=size, max_size=size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.permutation(np.repeat(np.arange(size), counts))
    logits = np.round(rng.normal(size=(len(labels), size)), draw(st.integers(0, 3)))
    logits[np.arange(len(labels)), labels] += draw(st.sampled_from([0.0, 1.0, 4.0]))
    return softmax(logits), labels


@given(cases())
@settings(max_examples=60, deadline=None)
def test_figures_are_those_of_scikit_learn(case):
    from sklearn.metrics import confusion_matrix, f1_score, recall_score, roc_auc_score

    probabilities, labels = case
    metrics, answers = measured(probabilities, labels), probabilities.argmax(axis=1)
    for name, value in values(metrics).items():
        assert value is None or ends(metrics, name)[0] <= value <= ends(metrics, name)[1]
    classes = list(range(probabilities.shape[1]))
    if len(labels):
        assert np.array_equal(metrics.confusion, confusion_matrix(labels, answers, labels=classes))
    if metrics["auroc"].value is None:
        assert len(metrics.counted) < 2
        return
    common = {"labels": list(metrics.counted), "average": "macro", "zero_division": 0}
    aurocs = [100 * roc_auc_score(labels == one, probabilities[:, one]) for one in metrics.counted]
    assert metrics["balanced_accuracy"].value == pytest.approx(100 * recall_score(labels, answers, **common))
    assert metrics["macro_f1"].value == pytest.approx(100 * f1_score(labels, answers, **common))
    assert metrics["auroc"].value == pytest.approx(np.mean(aurocs))
    assert [value for value in metrics.class_auroc if value is not None] == pytest.approx(aurocs)


@given(cases())
@settings(max_examples=25, deadline=None)
def test_every_resample_is_that_of_the_samples_drawn(case):
    """The figure of a resample, counted with weights, equals that of the samples written down as often as drawn."""
    probabilities, labels = case
    metrics = measured(probabilities, labels, "drawn")
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    if not metrics.resampled:
        return
    [weights] = _draw_weights(labels, counts, stream(5, "metrics", "drawn"))
    assert np.array_equal(np.bincount(labels, weights=weights[:, 7], minlength=len(counts)), counts)
    again = measured(np.repeat(probabilities, weights[:, 7], axis=0), np.repeat(labels, weights[:, 7]))
    assert {name: column[7] for name, column in metrics.resampled.items()} == pytest.approx(
        {name: value for name, value in values(again).items() if value is not None}
    )


@given(cases())
@settings(max_examples=25, deadline=None)
def test_a_calibration_error_is_that_of_bins_looked_at_one_by_one(case):
    probabilities, labels = case
    error, confidence, hits = 0.0, probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    for number in range(NUM_BINS):
        low, high = number / NUM_BINS, (number + 1) / NUM_BINS
        inside = [i for i in range(len(labels)) if low < confidence[i] <= high]
        if inside:
            error += len(inside) / len(labels) * abs(np.mean(hits[inside]) - np.mean(confidence[inside]))
    found = measured(probabilities, labels)["ece"].value
    assert found == pytest.approx(100 * error, abs=1e-9) if len(labels) >= 150 else found is None


def test_intervals_hold_a_known_truth_about_as_often_as_they_say():
    """Two classes, every margin normal around 1.2 with variance two: P(margin > 0), and P(sum of two margins > 0)."""
    truth = {"accuracy": 0.5 + 0.5 * math.erf(0.6), "auroc": 0.5 + 0.5 * math.erf(1.2 * math.sqrt(2) / 2)}
    held = dict.fromkeys([*truth, "balanced_accuracy"], 0)
    truth["balanced_accuracy"] = truth["accuracy"]
    labels = np.repeat([0, 1], [60, 40])
    for number in range(150):
        margin = np.random.default_rng(number).normal(1.2, math.sqrt(2), size=100)
        margin = np.where(labels == 1, margin, -margin)
        metrics = measured(softmax(np.column_stack([-margin / 2, margin / 2])), labels, str(number))
        for name in held:
            low, high = ends(metrics, name)
            held[name] += low <= 100 * truth[name] <= high
    assert {name: count >= 0.88 * 150 for name, count in held.items()} == dict.fromkeys(held, True), held
    assert min(held.values()) < 150, "an interval that always holds the truth says nothing"


def test_models_on_the_same_samples_share_their_draws():
    """What two models have in common neither averages out of the interval of their mean nor is in their difference."""
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], 200)
    logits = rng.normal(size=(400, 2)) + 1.2 * np.eye(2)[labels]
    one = measured(softmax(logits), labels)
    other = measured(softmax(3 * logits), labels)  # as often right, but surer
    mean, difference = mean_estimates([one, other]), difference_estimates(one, other)
    assert mean["accuracy"] == one["accuracy"]
    assert (difference["auroc"].value, difference["auroc"].low, difference["auroc"].high) == pytest.approx((0, 0, 0))
    errors = [values(metrics)["ece"] or 0.0 for metrics in (one, other)]
    assert difference["ece"].value == pytest.approx(errors[0] - errors[1])
    assert (difference["ece"].high or 0) < 0, "the surer one is worse calibrated"


def test_a_mean_is_of_those_that_have_the_figure():
    enough, few = measured(*said([[15, 5], [2, 8]])), measured(*said([[3, 0], [0, 8]]))
    assert mean_estimates([enough, few])["balanced_accuracy"] == enough["balanced_accuracy"]
    assert mean_estimates([enough, few])["accuracy"].value == pytest.approx((100 * 23 / 30 + 100) / 2)
    assert mean_estimates([few])["auroc"].reason == TOO_FEW
    assert difference_estimates(enough, few)["auroc"].reason == TOO_FEW


def test_metrics_survive_json():
    metrics = measured(*said([[15, 5, 0], [2, 8, 0], [0, 0, 4]]))
    again = metrics_from_json(json.loads(json.dumps(metrics_to_json(metrics), allow_nan=False)))
    assert (again.figures, again.confusion, again.class_auroc) == (
        metrics.figures,
        metrics.confusion,
        metrics.class_auroc,
    )
    assert (again.counts, again.counted) == (metrics.counts, metrics.counted)


@pytest.fixture(scope="module")
def experiment(shallow):
    """Committees, a balanced loss with two faces, clients that are not drawn."""
    return change(shallow, rounds=2, active=3, eval_every=1, committee=True, metrics=True, method="crad-plus", lr=0.05)


@pytest.fixture(scope="module")
def run(experiment, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("metrics") / "run"
    crad.run(experiment, output=path)
    return path


def test_matrices_of_a_run_have_the_hits_of_its_records_on_both_faces(run):
    found = load_run(run)
    assert found.metrics is not None
    selected = next(record for record in found.rounds if record["round"] == found.summary["best_round"])
    assert found.metrics["round"] == found.summary["best_round"]
    newest = {
        one["client"]: one
        for record in found.rounds
        for one in record["clients"]
        if record["round"] <= selected["round"]
    }
    assert [one["client"] for one in found.metrics["clients"]] == [0, 1, 2, 3]
    for one in found.metrics["clients"]:
        for face in ("global", "local"):
            assert np.diag(one[face]["confusion"]).tolist() == newest[one["client"]][face]["hits"]
            assert np.sum(one[face]["confusion"], axis=1).tolist() == newest[one["client"]][face]["counts"]
    summary = found.summary["metrics"]
    assert summary["global"]["accuracy"]["value"] == pytest.approx(found.summary["global_accuracy"])
    assert summary["global"]["accuracy"]["per_client"] == pytest.approx(found.summary["global_accuracy_per_client"])
    local = [one["local"]["confusion"] for one in found.metrics["clients"]]
    assert found.metrics["pooled"]["confusion"] == np.sum(local, axis=0).tolist()
    together = summary["committee"]["global"]["accuracy"]
    assert together["value"] == pytest.approx(found.summary["committee"]["global_accuracy"])
    assert together["per_client"] == pytest.approx(found.summary["committee"]["global_accuracy_per_client"])


def test_figures_are_those_of_the_models_that_a_result_hands_out(run, experiment):
    result = crad.load(run)
    with np.load(experiment.dataset) as data:
        images, labels = data["test_images"], data["test_labels"]
    again = measure_metrics(
        result.models[2].predict_proba(images).astype(np.float64),
        labels,
        rng=stream(experiment.seed, "metrics", "global"),
    )
    for name in ("balanced_accuracy", "macro_f1", "auroc"):
        ours, theirs = result.metrics(client=2)[name], again[name]
        # Probabilities are handed out in single precision, in which some come out equal.
        assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high), abs=0.2)


def test_a_result_hands_out_metrics_by_client_and_face(run):
    result = crad.load(run)
    both = result.metrics()
    assert np.sum(both.confusion) == 4 * 80
    assert both["auroc"].value == result.summary["metrics"]["global"]["auroc"]["value"]
    assert repr(result.metrics(client=1)).startswith("<ClassificationMetrics of 80 samples: accuracy ")
    assert result.metrics(client=1, face="local").counts == tuple(np.sum(result.metrics(1, face="local").confusion, 1))
    assert result.metrics(face="pooled").confusion == result.metrics(face="local").confusion
    with pytest.raises(RunError, match="leave client out"):
        result.metrics(client=1, face="pooled")
    with pytest.raises(RunError, match="client 9 was not measured; there are 0, 1, 2, 3"):
        result.metrics(client=9)
    with pytest.raises(CradError, match="face"):
        result.metrics(face="globl")  # type: ignore[arg-type]


def test_stopped_after_the_last_round_and_resumed_ends_with_the_same_metrics(run, experiment, tmp_path):
    class StopError(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == experiment.rounds:
            raise StopError

    with pytest.raises(StopError):
        crad.run(experiment, output=tmp_path / "run", callbacks=[LambdaCallback(on_round=stop)])
    assert not (tmp_path / "run" / METRICS_FILE).exists()
    crad.run(experiment, output=tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", run)
    assert (tmp_path / "run" / METRICS_FILE).read_bytes() == (run / METRICS_FILE).read_bytes()
    assert not list((run / "checkpoint").glob("logits*")), "nothing is left of the pass"


@pytest.mark.usefixtures("forked_workers")
def test_workers_and_memory_give_the_same_metrics(run, experiment, tmp_path):
    crad.run(change(experiment, workers=2), output=tmp_path / "run")
    assert (tmp_path / "run" / METRICS_FILE).read_bytes() == (run / METRICS_FILE).read_bytes()
    in_memory = crad.run(experiment)
    assert in_memory.summary["metrics"] == load_run(run).summary["metrics"]
    assert in_memory.metrics(client=3).figures == crad.load(run).metrics(client=3).figures


def test_a_run_of_an_earlier_version_is_read_without_metrics(run, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(run, old)
    (old / METRICS_FILE).unlink()
    summary = json.loads((old / "summary.json").read_text())
    del summary["metrics"]
    (old / "summary.json").write_text(json.dumps(summary))
    result = crad.load(old)
    assert "Beyond accuracy" not in report_page([result.records()])
    assert metric_rows([result.summary]) == []
    assert "summary/metrics" not in " ".join(summary_scalars(summary))
    with pytest.raises(RunError, match="has no metrics: its run was made by an earlier version"):
        result.metrics()


def test_under_attack_metrics_are_of_the_honest_clients_at_their_round(shallow, tmp_path):
    experiment = change(
        shallow,
        rounds=4,
        eval_every=1,
        attack="label-flip",
        attackers=1,
        committee=True,
        metrics=True,
        lr=0.05,
        models=("cnn6",),
    )
    result = crad.run(experiment, output=tmp_path / "run")
    [attacker] = result.summary["attackers"]
    metrics, honest = result.summary["metrics"], result.summary["honest"]
    assert metrics["round"] == honest["best_round"] == honest_selected_round(result.rounds, [attacker])
    assert attacker not in metrics["clients"]
    assert metrics["global"]["accuracy"]["value"] == pytest.approx(honest["global_accuracy"])
    assert metrics["global"]["accuracy"]["per_client"][attacker] is None
    alone = crad.run(change(experiment, method="local", attack=None, attackers=0))
    found = metric_rows([alone.summary, result.summary])
    rows = {row.name: row for row in found if row.test_set == "global" and not row.is_committee}
    floor = alone.summary["metrics"]["global"]["auroc"]["per_client"]
    figure = rows["local"].figures["auroc"]
    assert figure.over_seeds is not None
    assert figure.over_seeds.mean == pytest.approx(np.mean(np.delete(floor, attacker)))
    assert (figure.interval, rows["local"].is_of_honest) == (None, True)
    pooled = [row for row in found if row.test_set == "pooled"]
    assert [row.figures["auroc"].reason == ALL_CLIENTS for row in pooled] == [True, False], "one has the attacker in it"


def summary_of(name: str, seed: int, value: float | None) -> dict[str, Any]:
    """A summary whose metrics are all the same."""
    entry = {"value": None, "reason": TOO_FEW} if value is None else {"value": value, "low": 60.0, "high": 90.5}
    metrics = {"clients": [0, 1], "pooled": dict.fromkeys(METRIC_NAMES, entry)}
    return {"name": name, "method": name, "seed": seed, "metrics": metrics}


def test_the_table_says_intervals_of_one_seed_and_deviations_of_several():
    one = metric_rows([summary_of("crad", 1, 75.0), summary_of("local", 1, None)])
    assert metric_cells(one) == [
        ["crad", "own test halves", *["75.0 [60.0, 90.5]"] * 4],
        ["local", "own test halves", *[TOO_FEW] * 4],
    ]
    assert {len(row) for row in metric_cells(one)} == {len(METRIC_HEADER)}
    assert "in brackets the 95 % bootstrap interval" in metric_caption(one)
    two = metric_rows([summary_of("crad", seed, value) for seed, value in ((1, 70.0), (2, 74.0))])
    assert metric_cells(two)[0][2] == "72.00 ± 2.83"
    assert "mean ± deviation over seeds" in metric_caption(two)
    one_lacks = [summary_of("crad", 1, 75.0), {**summary_of("crad", 2, 75.0), "metrics": None}]
    assert metric_rows(one_lacks) == [], "a run of an earlier version among them"


def test_tracked_are_figures_and_the_ends_of_their_intervals(run):
    summary = load_run(run).summary
    logged, auroc = summary_scalars(summary), summary["metrics"]["global"]["auroc"]
    assert logged["summary/metrics/global/auroc"] == auroc["value"]
    assert logged["summary/metrics/global/auroc/low"] == auroc["low"]
    assert (
        logged["summary/metrics/committee/global/auroc"] == summary["metrics"]["committee"]["global"]["auroc"]["value"]
    )
    assert "summary/metrics/global/ece" not in logged, "80 samples are too few for it"


def test_a_comparison_has_the_metrics_as_columns(run, experiment, tmp_path):
    both = crad.compare([crad.load(run), crad.run(change(experiment, method="local"), output=tmp_path / "local")])
    frame = both.to_frame()
    assert frame["global_auroc"].tolist() == [
        one.summary["metrics"]["global"]["auroc"]["value"] for one in both.results
    ]
    page = report_page([one.records() for one in both.results])
    assert "Beyond accuracy" in page
    assert "Which class is taken for which" in page
