"""Tables, texts and recordings that are known by name: found in the data directory, with what is known of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from crad.config import Experiment
from crad.data import load_dataset
from crad.data.catalog import absolute_name, check_present, source_of
from crad.data.kinds import ReadOptions, kind_of_source
from crad.data.known_files import KNOWN_FILES
from crad.data.readers.table_file import TableOptions
from crad.errors import ConfigError, DataError
from crad.paper.experiments import load_paper, plan_cells
from crad.paper.measures import MEASURES
from crad.runs.resolution import resolve_experiment
from tests.records import made_run

HEART = "hospital,age,chol,trestbps,disease\n" + "".join(
    f"{site},{40 + place},{0 if place == 3 else 200 + place},{120 + place},{('no', 'yes')[place % 2]}\n"
    for site in ("a", "b") for place in range(20)
)  # fmt: skip
NEWS = "text,topic\n" + "".join(f"word{place} of {topic},{topic}\n" for topic in "xyz" for place in range(12))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "heart.csv").write_text(HEART)
    (tmp_path / "agnews_train.csv").write_text(NEWS)
    (tmp_path / "agnews_test.csv").write_text("text,topic\nsome x,x\nsome y,y\n")
    monkeypatch.setenv("CRAD_DATA", str(tmp_path))
    return tmp_path


def test_a_known_table_is_read_with_its_label_its_sites_and_its_codes_for_gaps(folder):
    dataset = load_dataset("heart", seed=1)
    assert (dataset.name, dataset.kind, dataset.class_names) == ("heart", "table", ("no", "yes"))
    assert dataset.site_names == ("a", "b")
    chol = [column.name for column in dataset.columns].index("chol")
    samples = np.concatenate([dataset.train_samples, dataset.test_samples])
    assert np.isnan(samples[:, chol]).sum() == 2, "cholesterol 0 is a gap"


def test_known_texts_have_their_own_test_file(folder):
    dataset = load_dataset("agnews", seed=1)
    assert (dataset.kind, len(dataset.train_labels), len(dataset.test_labels)) == ("text", 36, 2)


def test_what_a_person_says_of_the_columns_wins(folder):
    said = TableOptions(site="disease", label="hospital")
    _, options = source_of("heart", ReadOptions(table=said))
    assert options.table == replace(KNOWN_FILES["heart"].options, site="disease", label="hospital")
    assert source_of("other.csv", ReadOptions(table=said)) == ("other.csv", ReadOptions(table=said))


def test_a_run_is_written_down_by_the_name_and_not_by_this_machines_path(folder):
    experiment = resolve_experiment(Experiment(preset="demo", dataset="heart", partition="natural"))
    assert (experiment.dataset, experiment.clients, experiment.test_data) == ("heart", 2, None)
    assert absolute_name("agnews") == "agnews"
    assert experiment.models == kind_of_source("heart").models


def test_what_is_not_there_is_refused_with_where_it_is_published(tmp_path, monkeypatch):
    monkeypatch.setenv("CRAD_DATA", str(tmp_path))
    for name, known in KNOWN_FILES.items():
        with pytest.raises(DataError, match=known.published[:20]):
            check_present(name)
        with pytest.raises(DataError, match=known.path):
            load_dataset(name, seed=1)
    (tmp_path / "agnews_train.csv").write_text(NEWS)
    with pytest.raises(DataError, match=r"looked for agnews_test.csv"):
        check_present("agnews")


def test_a_path_of_any_kind_is_present_and_an_unknown_name_is_not(folder):
    check_present(str(folder / "heart.csv"))
    check_present("digits")
    with pytest.raises(ConfigError, match="heart"):
        check_present("hart")


def test_the_list_and_the_check_know_them(folder, crad_command):
    code, out, _ = crad_command("data", "list", "--json")
    assert code == 0
    found = {row["name"]: row for row in json.loads(out)["datasets"]}
    assert found["heart"]["available"]
    assert not found["fsdd"]["available"]
    code, out, _ = crad_command("data", "check", "heart", "--json")
    assert code == 0
    report = json.loads(out)
    assert (report["rows"], report["sites"]) == (40, {"a": 20, "b": 20})
    code, out, _ = crad_command("data", "check", "agnews")
    assert code == 0
    assert "36 texts in text" in out
    code, _, said = crad_command("data", "fetch", "heart")
    assert code == 2
    assert "UCI" in said


def test_the_experiment_on_other_kinds_of_data_asks_all_methods_and_names_only_known_data():
    paper = load_paper("kinds")
    cells = plan_cells(paper, flags={})
    assert {cell.experiment.dataset for cell in cells} == set(KNOWN_FILES)
    assert {cell.experiment.seed for cell in cells} == {1, 2, 3, 4, 5}
    assert {"local", "uniform", "crad", "crad-plus", "dfml", "centralized"} == {c.experiment.method for c in cells}
    assert all(not cell.departures for cell in cells)


def test_auroc_is_that_of_one_model_or_of_all_together():
    measure, run = MEASURES["asked_auroc"], made_run()
    assert measure(run, "crad") is None, "a run of an earlier version has no metrics"
    run = replace(run, summary={**run.summary, "metrics": {"global": {"auroc": {"value": 71.5}}}})
    assert (measure(run, "crad"), measure(run, "crad-together")) == (71.5, None)
    run.summary["metrics"]["committee"] = {"global": {"auroc": {"value": 80.0}}}
    assert measure(run, "crad-together") is None, "of a version that left its answers softened"
    run.summary["committee"] = {"answer_temperature": 1.0}
    assert (measure(run, "crad"), measure(run, "crad-together")) == (71.5, 80.0)
