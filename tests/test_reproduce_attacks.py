"""`crad reproduce attacks`: planned seed by seed, compared twice, kept in small files that need no training again."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import crad.api
from crad.errors import ConfigError
from crad.federation.attacks import ATTACKS
from crad.paper.experiments import load_paper, plan_cells
from crad.paper.plan import plan_reproduction
from crad.report.page import report_page
from crad.runs.kept_run import keep_run, slim_rounds
from crad.runs.run_records import load_run
from crad.runs.selection import honest_selected_round
from tests.conftest import change
from tests.records import made_run
from tests.test_reproduce import TOY, command, tidy

SMALL = {**TOY, "active": "none", "rounds": 1, "attackers": 1}
CHOSEN = ["--columns", "none,noise,backdoor", "--rows", "uniform,crad", "--seeds", "1,2"]


def reproduce(*arguments):
    return command("attacks", *CHOSEN, *arguments, *(f"--{key.replace('_', '-')}={one}" for key, one in SMALL.items()))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    answer = reproduce("--output", folder / "work", "--keep", folder / "kept")
    assert answer[0] == 0, answer[2]
    return folder, *answer[1:]


# --- the plan


def test_every_attack_is_a_column_and_two_of_ten_attack():
    paper = load_paper("attacks")
    cells = plan_cells(paper, flags={"preset": "mini"})
    assert {cell.experiment.attack for cell in cells} == set(ATTACKS)
    assert {cell.experiment.attackers for cell in cells} == {2}
    assert (paper.baseline, paper.control, paper.seeds) == ("uniform", "none", (1, 2, 3))
    assert [row.name for row in paper.rows] == ["uniform", "crad", "crad-plus"]


def test_the_first_seed_of_every_cell_comes_first(tmp_path):
    runs = plan_reproduction("attacks", tmp_path, flags={"preset": "mini"}).runs
    assert [run.experiment.seed for run in runs] == [1] * 27 + [2] * 27 + [3] * 27


@pytest.mark.parametrize("flag", ["attack", "liars"])
def test_a_flag_that_makes_the_columns_alike_is_refused(flag):
    flags = {"preset": "mini", flag: 1 if flag == "liars" else "noise"}
    with pytest.raises(ConfigError, match=f"the columns of 'attacks' differ in their attack: leave out --{flag}"):
        plan_cells(load_paper("attacks"), flags=flags)


# --- the tables


def test_damage_is_the_difference_to_the_same_row_without_an_attack(measured):
    folder, out, _ = measured
    honest = {}
    for path in (folder / "work" / "runs").iterdir():
        summary = json.loads((path / "summary.json").read_text())
        honest[summary["method"], summary["attack"], summary["seed"]] = summary["honest"]
    rows = [row for row in tidy(folder / "work", "attacks") if row["metric"] == "honest_global_accuracy"]
    for row in rows:
        kind = "honest" if row["column"] == "none" else row["column"]
        own = [honest[row["row"], kind, seed]["global_accuracy"] for seed in (1, 2)]
        assert float(row["mean"]) == pytest.approx(sum(own) / 2, abs=1e-3)
        if row["baseline"] == "column none":
            theirs = [honest[row["row"], "honest", seed]["global_accuracy"] for seed in (1, 2)]
            assert row["column"] != "none"
        elif row["row"] == "uniform":
            continue
        else:
            theirs = [honest["uniform", kind, seed]["global_accuracy"] for seed in (1, 2)]
        assert float(row["difference"]) == pytest.approx((sum(own) - sum(theirs)) / 2, abs=1e-3)
    assert len(rows) == 2 * 3 + 2 * 2
    assert "Attacks by two of ten, on digits: global %, against no attack" in out


def test_success_is_shown_where_it_is_measured(measured):
    rows = [row for row in tidy(measured[0] / "work", "attacks") if row["metric"] == "attack_success"]
    assert {row["column"] for row in rows} == {"none", "backdoor"}
    assert all(row["mean"] for row in rows)


# --- what is kept


def test_kept_runs_are_small_and_hold_no_model(measured):
    kept = measured[0] / "kept"
    for path in (kept / "runs").iterdir():
        assert {file.name for file in path.iterdir()} == {
            "experiment.toml",
            "partition.json",
            "rounds.jsonl",
            "summary.json",
        }
    assert len(list((kept / "runs").iterdir())) == 2 * 3 * 2
    assert (kept / "tables" / "attacks.md").read_text() == (measured[0] / "work" / "tables" / "attacks.md").read_text()


def test_the_same_tables_come_from_the_kept_runs_alone_and_nothing_is_trained_again(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(crad.api, "run", lambda *_, **__: pytest.fail("trained again"))
    code, _, err = reproduce("--output", tmp_path / "elsewhere", "--keep", measured[0] / "kept")
    assert code == 0, err
    assert "12 runs: 12 done" in err
    assert tidy(tmp_path / "elsewhere", "attacks") == tidy(measured[0] / "work", "attacks")
    assert (tmp_path / "elsewhere" / "attacks.html").is_file()
    assert not (tmp_path / "elsewhere" / "runs").exists()


def test_what_is_not_kept_is_run_and_then_kept(measured, tmp_path, monkeypatch):
    shutil.copytree(measured[0] / "kept", tmp_path / "kept")
    lost = sorted((tmp_path / "kept" / "runs").iterdir())[0]
    (lost / "summary.json").unlink()  # a copy that was cut off is no run
    ran = []
    really = crad.api.run

    def run(experiment, **settings):
        ran.append(experiment)
        return really(experiment, **settings)

    monkeypatch.setattr(crad.api, "run", run)
    code, _, err = reproduce("--output", tmp_path / "work", "--keep", tmp_path / "kept")
    assert code == 0, err
    assert len(ran) == 1
    assert [path.name for path in (tmp_path / "work" / "runs").iterdir()] == [lost.name]
    ours, before = (
        json.loads((path / "summary.json").read_text()) for path in (lost, measured[0] / "kept/runs" / lost.name)
    )
    assert ours["honest"] == before["honest"]


def test_a_kept_run_says_of_every_client_what_the_whole_one_says(tiny, tmp_path):
    experiment = change(tiny, rounds=4, eval_every=2, attack="backdoor", attackers=1, committee=True)
    crad.run(experiment, output=tmp_path / "whole")
    keep_run(tmp_path / "whole", tmp_path / "kept")
    whole, kept = load_run(tmp_path / "whole"), load_run(tmp_path / "kept")
    assert (kept.experiment, kept.partition, kept.summary) == (whole.experiment, whole.partition, whole.summary)
    assert [len(record["clients"]) for record in kept.rounds] == [0, 4, 0, 4]
    for slim, full in zip(kept.rounds[1]["clients"], whole.rounds[1]["clients"], strict=True):
        assert slim["global_accuracy"] == pytest.approx(full["global_accuracy"], abs=1e-4)
        assert slim["attack_success"] == pytest.approx(full["attack_success"], abs=1e-4)
        assert "trust" not in slim
    selected = next(record for record in kept.rounds if record["round"] == whole.summary["best_round"])
    assert all(client["global"] for client in selected["clients"])
    assert report_page([kept]).count("Means over the honest clients alone") == 1


def test_hits_of_who_sat_out_the_selected_round_are_kept():
    run = made_run(clients=3, rounds=3)
    away = [{**record, "clients": [one for one in record["clients"] if one["client"] != 2 or record["round"] == 1]}
            for record in run.rounds]  # fmt: skip
    slim = slim_rounds(away, selected=3)
    assert [[one["client"] for one in record["clients"] if "global" in one] for record in slim] == [[2], [], [0, 1]]


def test_rounds_that_cannot_be_selected_cannot_be_in_a_kept_run_either():
    run = made_run(clients=3, rounds=3)
    best = max(run.rounds, key=lambda record: record["validation_accuracy"])["round"]
    prepared = [{**record, "is_preparation": True} if record["round"] == best else record for record in run.rounds]
    slim = slim_rounds(prepared, selected=best)
    assert honest_selected_round(run.rounds, []) == best
    assert honest_selected_round(slim, []) == honest_selected_round(prepared, []) != best


def test_a_kept_run_of_thirty_rounds_and_ten_clients_is_below_sixty_kilobytes():
    run = made_run(clients=10, classes=10, rounds=30, eval_every=2, attack="noise", attackers=2)
    slim = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in slim_rounds(run.rounds, selected=30))
    assert len(slim) < 45_000


def test_git_does_not_ignore_kept_runs():
    """They are kept in order to be committed; a pattern for run directories once left them behind."""
    root = Path(__file__).parents[1]
    kept = "evidence/attacks/runs/cifar10-crad-seed1-00000000/summary.json"
    ignored = subprocess.run(["git", "check-ignore", kept], cwd=root, capture_output=True, text=True)
    if ignored.returncode not in (0, 1):
        pytest.skip(f"no git checkout here: {ignored.stderr.strip()}")
    assert ignored.returncode == 1, ignored.stdout
