"""The examples do what they promise: they run as they are shown, in other processes too, and stay short."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import crad
from crad.config import to_toml
from tests.conftest import ROOT, change

EXAMPLES = ROOT / "examples"
OWN_METHOD = "examples.own_method:BestPeers"


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    """Examples are named by import path, from the project's folder."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def short(tiny):
    return change(tiny, rounds=2, models=("cnn6",))


def last_round(result):
    return json.loads((result.directory / "rounds.jsonl").read_text().splitlines()[-1])


def class_accuracies(scored):
    return [hits / count for hits, count in zip(scored["hits"], scored["counts"], strict=True) if count]


def run_crad_in_examples(*arguments):
    command = [sys.executable, "-m", "crad", "run", *map(str, arguments)]
    return subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=120)


def test_a_method_of_ones_own_takes_less_than_forty_lines():
    assert len((EXAMPLES / "own_method.py").read_text().splitlines()) < 40


@pytest.mark.parametrize("method", ["examples.own_rule:METHOD", OWN_METHOD])
def test_an_example_runs_by_its_import_path(method, short, tmp_path):
    summary = crad.run(change(short, method=method), output=tmp_path / "run").summary
    assert summary["method"] == method
    assert summary["payload_bytes_per_client_round"] > 0


@pytest.mark.parametrize("k", [1, 2])
def test_a_client_learns_from_its_k_best_peers_alone(k, short, tmp_path):
    experiment = change(short, method=OWN_METHOD, method_settings={"k": k})
    clients = last_round(crad.run(experiment, output=tmp_path / "run"))["clients"]
    assert [len(client["trust"]) for client in clients] == [k] * short.clients


def test_the_best_are_those_with_the_highest_published_accuracies(short, tmp_path):
    experiment = change(short, method=OWN_METHOD, method_settings={"k": 1})
    crad.run(experiment, output=tmp_path)
    first, last = (json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines())
    published = {client["client"]: sum(class_accuracies(client["validation"])) for client in first["clients"]}
    for client in last["clients"]:
        others = {index: total for index, total in published.items() if index != client["client"]}
        assert list(client["trust"]) == [str(max(others, key=lambda index: others[index]))]


def test_the_command_line_runs_it_from_its_folder_with_workers(short, tmp_path):
    (tmp_path / "short.toml").write_text(to_toml(short))
    summaries = []
    for workers in (1, 2):
        output = tmp_path / f"workers-{workers}"
        done = run_crad_in_examples(
            *("--config", tmp_path / "short.toml", "--method", "own_method:BestPeers", "--method-settings", "k=2"),
            *("--workers", workers, "--output", output, "--quiet"),
        )
        assert done.returncode == 0, done.stderr
        summaries.append(json.loads((output / "summary.json").read_text()))
    alone, together = (summary["global_accuracy_per_client"] for summary in summaries)
    assert alone == together
    assert summaries[1]["hardware"]["workers"] == 2


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("kk=2", "unknown setting of method 'own_method:BestPeers' 'kk'. Did you mean 'k'? Known: k"),
        ("k=0", "method 'own_method:BestPeers': k = 0: Input should be greater than 0"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(setting, reason):
    done = run_crad_in_examples("--preset", "demo", "--method", "own_method:BestPeers", "--method-settings", setting)
    assert done.returncode == 2
    assert done.stderr == f"crad: {reason}\n"
