"""`crad reproduce --from`: tables, figures and pages from kept runs alone, the committed ones too."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import crad.api
from crad.paper.experiments import GROUPS, Choice
from crad.paper.kept import kept_folders, kept_presets
from crad.paper.plan import _by_division, plan_reproduction
from crad.privacy import accountant
from crad.runs import source_commit
from crad.runs.directory import RunDirectory
from crad.runs.kept_run import keep_run
from tests.conftest import ROOT, change
from tests.records import made_run
from tests.test_reproduce import command, tidy
from tools import evidence_tables

CHOICE = Choice(rows=["uniform", "crad"], columns=["none", "noise"])
CHOSEN = ("--rows", "uniform,crad", "--columns", "none,noise")
COMMITTED = ROOT / "evidence/attacks"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve committed runs, four cells of three seeds, in two folders of evidence; one of them in both."""
    folder: Path = tmp_path_factory.mktemp("evidence")
    plan = plan_reproduction("attacks", folder, flags={"preset": "mini"}, choice=CHOICE)
    (folder / "third").mkdir()
    for place, runs in {"first": plan.runs[:7], "second": plan.runs[6:]}.items():
        for run in runs:
            shutil.copytree(ROOT / "evidence/attacks/runs" / run.path.name, folder / place / "runs" / run.path.name)
    return folder


@pytest.fixture
def draw(monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """`crad reproduce attacks` of these cells; it trains nothing. Pages and figures take seconds, and have a test."""
    monkeypatch.setattr(crad.api, "run", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.setattr("crad.paper.plan.write_reports", lambda plan, _: [plan.folder / "report.html"])
    monkeypatch.setattr("crad.paper.plan.write_figures", lambda *_: [])
    return lambda *words: command("attacks", *CHOSEN, *words)


def test_all_is_drawn_from_several_folders_and_nothing_is_run(kept, draw, tmp_path):
    code, out, err = draw("--from", kept, "--output", tmp_path / "drawn")
    assert code == 0, err
    assert f"preset mini: 12 runs, 12 kept in {kept}, 0 missing" in " ".join(err.split())
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {"tables"}
    committed = {(row["row"], row["column"], row["metric"], row["baseline"]): row for row in tidy(COMMITTED, "attacks")}
    drawn = tidy(tmp_path / "drawn", "attacks")
    assert drawn == [committed[row["row"], row["column"], row["metric"], row["baseline"]] for row in drawn]
    assert {row["seeds"] for row in drawn if row["metric"] == "honest_global_accuracy"} == {"1 2 3"}
    assert f"Report: {tmp_path / 'drawn/report.html'}" in out


def test_what_is_missing_is_counted_and_stands_as_a_dash(kept, draw, tmp_path):
    code, out, err = draw("--from", kept / "first", "--seeds", "2,3", "--output", tmp_path / "drawn")
    assert code == 0, err
    assert "8 runs, 3 kept" in err
    assert "5 missing" in err
    assert "3 of 8 runs are there; -: not run" in " ".join(out.split())
    lines = (tmp_path / "drawn/tables/attacks.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("| crad ")][1:2]
    assert [cell.strip(" *") for cell in line.split("|")[2:5]] == ["-", "-", "-"], line


def test_what_lies_where_tables_go_is_not_read(kept, draw, tmp_path):
    shutil.copytree(kept / "second", tmp_path / "work")
    code, out, err = draw("--from", kept / "first/runs", "--output", tmp_path / "work", "--json", "--quiet")
    states = [run["state"] for run in json.loads(out)["runs"]]
    assert (code, err, states.count("done"), states.count("new")) == (0, "", 7, 5)


def test_presets_are_those_of_the_runs_each_in_its_folder(kept, draw, tmp_path, monkeypatch):
    evidence = tmp_path / "evidence"
    shutil.copytree(kept / "first", evidence / "first")
    (run,) = (ROOT / "evidence/kinds/runs").glob("heart-local-seed1-*")
    shutil.copytree(run, evidence / "kinds/runs" / run.name)
    assert kept_presets(kept_folders(evidence)) == ["paper", "mini"]
    code, _, err = draw("--from", evidence, "--output", tmp_path / "drawn")
    assert code == 0, err
    assert (tmp_path / "drawn/tables/attacks.csv").is_file()  # of one preset alone: no folder for it
    monkeypatch.setitem(GROUPS, "everything", ("beyond", "attacks", "kinds", "private"))  # the whole of it: 7 s
    code, _, err = command("everything", "--from", evidence, "--output", tmp_path / "all", "--quiet")
    assert code == 0, err
    tables = {path.relative_to(tmp_path / "all").as_posix() for path in (tmp_path / "all").rglob("*.csv")}
    assert {"mini/tables/attacks.csv", "mini/tables/beyond.csv", "paper/tables/kinds.csv"} <= tables
    assert "mini/tables/private.csv" not in tables  # nothing is kept of it
    code, out, err = command("everything", "--from", evidence, "--output", tmp_path / "json", "--json")
    assert (code, out, "say --preset paper or mini" in err) == (2, "", True), err


def test_what_cannot_be_drawn_is_one_line(kept, draw, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    faults = {
        ("--from", tmp_path / "nowhere"): "is no folder",
        ("--from", tmp_path / "file"): "is no folder",
        ("--from", tmp_path / "empty"): "holds no kept run",
        ("--from", kept, "--keep", tmp_path / "kept"): "leave out --keep",
        ("--from", kept, "--alpha", "0.5"): "holds 12 kept runs, of preset mini, and none that 'attacks'",
    }
    for words, fault in faults.items():
        code, out, err = draw(*words, "--output", tmp_path / "drawn")
        assert (code, out, fault in err, err.count("\n")) == (2, "", True, 1), err
    assert not (tmp_path / "drawn").exists()


def test_a_damaged_kept_run_is_named_and_the_others_are_drawn(kept, draw, tmp_path):
    shutil.copytree(kept / "first", tmp_path / "evidence")
    (damaged, *_) = sorted((tmp_path / "evidence/runs").iterdir())
    (damaged / "summary.json").write_text("{")
    code, _, err = draw("--from", tmp_path / "evidence", "--output", tmp_path / "drawn")
    assert (code, "12 runs, 6 kept" in err) == (2, True)
    assert f"1 of 12 runs failed: {damaged.name}" in err
    assert (tmp_path / "drawn/tables/attacks.md").is_file()


def test_pages_and_figures_come_from_kept_runs(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(crad.api, "run", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.setattr("crad.paper.plan.save_chart", lambda chart, folder: [folder / f"{chart.name}.svg"])
    words = ("--columns", "none", "--rows", "uniform,crad", "--seeds", "1")
    code, out, err = command("attacks", *words, "--from", kept, "--output", tmp_path / "drawn")
    assert code == 0, err
    assert {path.name for path in (tmp_path / "drawn").glob("*.html")} == {"attacks.html", "report.html"}
    assert str(tmp_path / "drawn/attacks.html") in out


def test_runs_that_divide_one_world_otherwise_are_on_pages_of_their_own():
    first, other, alike = made_run(seed=1), made_run(seed=1), made_run(seed=2)
    divided = replace(other, partition={**other.partition, "proxy_size": 12})
    assert _by_division([first, divided, alike, first]) == [[first, alike, first], [divided]]


# --- what a kept run holds


def test_a_kept_run_says_the_commit_and_what_was_reached_in_every_class(tiny, tmp_path):
    crad.run(change(tiny, rounds=1, method="local", metrics=False), output=tmp_path / "whole")
    keep_run(tmp_path / "whole", tmp_path / "kept")
    summary = RunDirectory(tmp_path / "kept").summary()
    assert summary["versions"].get("commit") == source_commit.source_commit()
    assert len({one["name"]: one["global_accuracy"] for one in summary["per_class"]}) == 4
    assert {"hardware", "total_seconds", "peak_memory_bytes", "global_accuracy_per_client"} <= summary.keys()
    selected = [one for one in RunDirectory(tmp_path / "kept").rounds() if one["round"] == summary["best_round"]]
    hits = [client[part]["hits"] for one in selected for client in one["clients"] for part in ("global", "local")]
    assert {len(one) for one in hits} == {4}


@pytest.fixture
def clone(tmp_path):
    """A source tree of this project with one commit."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    (tmp_path / "src/crad").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def test_a_clone_says_its_commit_and_whether_a_file_was_changed(clone, monkeypatch):
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True).stdout
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # of another repository, as a hook has it
    assert source_commit.commit_of(clone) == said[:8]
    (clone / "notes").write_text("not a file of the project")
    assert source_commit.commit_of(clone) == said[:8]
    (clone / "pyproject.toml").write_text("changed")
    assert source_commit.commit_of(clone) == f"{said[:8]}-dirty"


@pytest.mark.parametrize("fault", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 5)])
def test_a_git_that_does_not_answer_is_no_fault(clone, monkeypatch, fault):
    def run(*_, timeout, **__):
        assert 0 < timeout <= 5
        raise fault

    monkeypatch.setattr(subprocess, "run", run)
    assert source_commit.commit_of(clone) is None


def test_a_folder_that_is_no_clone_of_this_project_is_not_asked(clone, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("asked"))
    (clone / "pyproject.toml").unlink()
    assert source_commit.commit_of(clone) is None
    assert source_commit.commit_of(clone / "src") is None


def test_git_is_asked_once(monkeypatch):
    asked = list[Path]()
    monkeypatch.setattr(source_commit, "commit_of", asked.append)
    source_commit.source_commit.cache_clear()
    try:
        assert [source_commit.source_commit() for _ in range(3)] == [None] * 3
    finally:
        source_commit.source_commit.cache_clear()
    assert len(asked) == 1


# --- the committed evidence


@pytest.mark.parametrize("path", [pytest.param(one, id=one.stem) for one in evidence_tables.drawn_tables()])
def test_committed_tables_are_what_their_runs_say(path, monkeypatch):
    # To search for the noise of private runs takes half a minute, and Opacus: the runs say what was found.
    monkeypatch.setattr(accountant, "_noise_within", lambda *_: pytest.fail("searched"))
    for file, text in evidence_tables.redrawn(path).items():
        assert file.read_text(encoding="utf-8") == text, f"{file.relative_to(ROOT)}: python -m tools.evidence_tables"


def test_every_kept_run_is_in_a_table_or_its_folder_says_which():
    for folder in sorted((ROOT / "evidence").iterdir()):
        if (folder / "runs").is_dir():
            assert list((folder / "tables").glob("*.csv")), f"{folder.name}: kept runs, and no table of them"
