"""`crad reproduce committee` and `committee_rules`: one model against all asked together, and rule by rule."""

from __future__ import annotations

import json

import pytest

from crad.aggregation import RULES
from crad.paper.experiments import load_paper, plan_cells
from crad.paper.measures import MEASURES
from crad.paper.plan import plan_reproduction
from tests.records import made_run
from tests.test_reproduce import TOY, command, tidy

SMALL = {**TOY, "active": "none", "rounds": 1, "clients": 3}
TABLES = ("main", "committee", "committee_rules")
FLAGS = [f"--{key.replace('_', '-')}={one}" for key, one in SMALL.items()]


def test_every_rule_is_a_row_with_the_prior_kept_and_out_and_one_run_serves_them_all(tmp_path):
    paper = load_paper("committee_rules")
    assert {row.name for row in paper.rows} == {f"{rule}/{prior}" for rule in RULES for prior in ("keep", "remove")}
    runs = plan_reproduction("committee_rules", tmp_path, flags={"preset": "mini"}).runs
    assert len(runs) == len(paper.columns) * len(paper.seeds)
    assert all(run.experiment.committee_study and run.experiment.method == "committee" for run in runs)


def test_one_run_serves_a_method_and_its_committee(tmp_path):
    paper = load_paper("committee")
    runs = plan_reproduction("committee", tmp_path, flags={"preset": "mini"}).runs
    rows = [len(column.rows or paper.rows) for column in paper.columns]
    assert len(runs) == sum(rows) // 2 * len(paper.seeds)
    assert rows.count(len(paper.rows)) == 4, "students are asked where data or honesty differ"
    worlds = {(cell.experiment.dataset, cell.experiment.alpha, cell.experiment.clients) for cell in
              plan_cells(paper, flags={"preset": "mini"})}  # fmt: skip
    for dataset in ("cifar10", "pathmnist"):
        assert {(dataset, alpha, 10) for alpha in (0.1, 0.3, 1.0)} <= worlds
        assert {(dataset, 0.3, clients) for clients in (5, 20)} <= worlds
    assert ("cifar100", 0.3, 10) in worlds


def test_models_trained_alone_and_exchanged_once_are_trained_once_for_three_tables(tmp_path):
    plans = {what: plan_reproduction(what, tmp_path, flags={"preset": "small"}) for what in TABLES}
    alone = {what: [run for run in plan.runs if run.experiment.method == "committee"] for what, plan in plans.items()}
    keys = {what: {run.key for run in runs} for what, runs in alone.items()}
    assert keys["committee"] == keys["committee_rules"]
    shared = [run.experiment for run in alone["main"] if run.key in keys["committee_rules"]]
    assert [(one.dataset, one.seed) for one in shared] == [
        *((dataset, seed) for seed in (1, 2, 3) for dataset in ("cifar10", "pathmnist")),
        ("cifar100", 1),
    ]
    assert all(run.experiment.committee_study for what in ("main", "committee_rules") for run in alone[what])


def test_the_tables_say_what_the_runs_say_also_from_kept_ones(tmp_path):
    asked = ["--columns", "cifar10", "--seeds", "1", *FLAGS]
    code, _, said = command("committee_rules", *asked, "--output", tmp_path / "work", "--keep", tmp_path / "kept")
    assert code == 0, said
    [folder] = (tmp_path / "work" / "runs").iterdir()
    study = json.loads((folder / "summary.json").read_text())["committee"]["study"]
    rows = {row["row"]: float(row["mean"]) for row in tidy(tmp_path / "work", "committee_rules")
            if row["metric"] == "studied_global_accuracy"}  # fmt: skip
    assert rows == {
        f"{rule}/{prior}": pytest.approx(figures["global_accuracy"])
        for rule, priors in study.items()
        for prior, figures in priors.items()
    }
    code, _, said = command(
        "committee_rules", *asked, "--output", tmp_path / "again", "--keep", tmp_path / "kept", "--only-show"
    )
    assert code == 0, said
    assert tidy(tmp_path / "again", "committee_rules") == tidy(tmp_path / "work", "committee_rules")


def test_measures_by_hand():
    run = made_run(clients=2)
    study = {"crad": {"remove": {"global_accuracy": 61.0, "local_accuracy": 71.0}}}
    run.summary["committee"] = {
        "answer_temperature": 1.0,
        "global_accuracy": 60.0,
        "local_accuracy": 70.0,
        "local_accuracy_per_client": [80.0, 60.0],
        "study": study,
    }
    assert MEASURES["asked_global_accuracy"](run, "crad") == run.summary["global_accuracy"]
    assert MEASURES["asked_global_accuracy"](run, "crad-together") == 60.0
    assert MEASURES["asked_local_accuracy"](run, "crad-together") == 70.0
    run.summary["others_accuracy"] = 55.0
    assert MEASURES["others_accuracy"](run, "crad") == 55.0
    assert MEASURES["others_accuracy"](run, "crad-together") is None, "that is of one model: nobody asks all of them"
    run.summary["attackers"] = [0]
    assert MEASURES["asked_local_accuracy"](run, "crad-together") == 60.0, "of the honest one"
    assert MEASURES["studied_local_accuracy"](run, "crad/remove") == 71.0
    assert MEASURES["studied_local_accuracy"](run, "crad/keep") is None
    assert MEASURES["sent_mib"](run, "crad") == pytest.approx(2.0), "one MiB a round, two rounds"
    del run.summary["committee"]["answer_temperature"]
    run.summary["committee"]["temperature"] = 1.0  # as it was called first
    assert MEASURES["asked_local_accuracy"](run, "crad-together") == 60.0
    assert MEASURES["studied_local_accuracy"](run, "crad/remove") == 71.0
    del run.summary["committee"]["temperature"]  # as earlier versions left it
    assert MEASURES["asked_local_accuracy"](run, "crad-together") is None
    assert MEASURES["studied_local_accuracy"](run, "crad/remove") is None
    assert MEASURES["asked_global_accuracy"](run, "crad-together") == 60.0, "which is the most likely class is the same"
    del run.summary["committee"]
    assert MEASURES["asked_local_accuracy"](run, "crad-together") is None
