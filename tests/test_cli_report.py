"""`crad report`: one page for one or several finished runs, its figures as files, and what it refuses."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import crad
from crad.cli import main
from crad.report import charts
from crad.runs.run_records import load_run
from tests.conftest import change
from tests.pages import Page, script_data


@pytest.fixture
def report(monkeypatch, capsys, tmp_path):
    """Run `crad report ARGS` in an empty folder: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["crad", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory) -> Path:
    """Two runs side by side, as crad compare leaves them."""
    path: Path = tmp_path_factory.mktemp("runs")
    for method in ("crad", "local"):
        experiment = change(tiny, rounds=1, models=("cnn6",), method=method, committee=True)
        crad.run(experiment, output=path / f"{method}-seed5")
    return path


@pytest.fixture
def alone(folder, tmp_path) -> Path:
    """A copy of the crad run that may be changed."""
    return Path(shutil.copytree(folder / "crad-seed5", tmp_path / "run"))


def one_line(outcome: tuple[int, str, str]) -> str:
    code, out, err = outcome
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err


def test_one_run_gets_its_page_in_its_own_directory(alone, report):
    (alone / "report.html").unlink()
    code, out, err = report(alone)
    assert (code, out.strip(), err) == (0, str(alone / "report.html"), "")
    assert "Whether joining helped is still open." in Page((alone / "report.html").read_text()).text


def test_the_page_is_the_one_that_the_run_ended_with(alone, report):
    before = (alone / "report.html").read_text()
    report(alone, "--output", "again.html")
    # The directory was copied: only the names of the run in commands differ.
    assert before.replace("crad-seed5", "run") != before
    assert Page(Path("again.html").read_text()).tables == Page(before).tables


def test_several_runs_get_one_page_here_and_a_folder_stands_for_its_runs(folder, tmp_path, report):
    code, out, err = report(folder / "local-seed5", folder / "crad-seed5")
    assert (code, out.strip()) == (0, "report.html")
    assert err.startswith("In this run joining with crad ")
    assert "one seed shows no more than that." in err
    text = Page((tmp_path / "report.html").read_text()).text
    assert text.startswith("2 methods compared on tiny.npz")
    assert err.splitlines()[0] in text, "page and terminal say the same"
    code, out, _ = report(folder, "-o", "deep/er/all.html")
    assert (code, out.strip()) == (0, "deep/er/all.html")
    assert "2 methods compared" in (tmp_path / "deep" / "er" / "all.html").read_text()


def test_differences_are_against_training_alone_whichever_run_is_named_first(folder, tmp_path, report):
    def table(*runs: Path) -> list[list[str]]:
        assert report(*runs, "--output", "page.html", "--force")[0] == 0
        text = Page((tmp_path / "page.html").read_text())
        assert "Δ: against 'local', paired by seed" in text.text
        return next(one for one in text.tables if "Δ global" in one[0])

    wanted = table(folder / "local-seed5", folder / "crad-seed5")
    assert [row[0] for row in wanted[1:]] == ["local", "crad"]
    assert table(folder / "crad-seed5", folder / "local-seed5") == wanted
    assert table(folder) == wanted, "a folder's runs are read by name, crad before local"


def test_a_page_is_never_replaced_silently(alone, report, tmp_path):
    """A run's own page is made again, and that is said; any other file needs --force."""
    code, out, err = report(alone)
    assert (code, out.strip()) == (0, str(alone / "report.html"))
    assert err == f"crad: {alone / 'report.html'} was there and is written again\n"
    (tmp_path / "mine.html").write_text("my own words")
    line = one_line(report(alone, "--output", "mine.html"))
    assert "mine.html is there already: choose another --output, or add --force" in line
    assert (tmp_path / "mine.html").read_text() == "my own words"
    code, out, err = report(alone, "--output", "mine.html", "--force")
    assert (code, out, err) == (0, "mine.html\n", "crad: mine.html was there and is written again\n")
    assert Page((tmp_path / "mine.html").read_text()).tables


def test_figures_are_written_in_three_formats(folder, tmp_path, report, monkeypatch):
    first = charts.make_charts([load_run(folder / "crad-seed5")])[0]
    monkeypatch.setattr("crad.report.charts.make_charts", lambda runs: [first])  # one is enough: drawing takes long
    code, out, _ = report(folder / "crad-seed5", "-o", "page.html", "--figures", "figures")
    assert code == 0
    names = {f"{first.name}.{form}" for form in ("pdf", "svg", "png")}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names
    assert set(out.split()) == {f"figures/{name}" for name in names} | {"page.html"}


@pytest.mark.parametrize("flag", ["--figures", "--output"])
def test_a_folder_that_cannot_be_made_is_named(alone, report, tmp_path, flag):
    (tmp_path / "file").write_text("no folder")
    line = one_line(report(alone, flag, tmp_path / "file" / "x" / "page.html"))
    assert "cannot make the folder" in line
    assert str(tmp_path / "file" / "x") in line
    assert "choose another" in line


def test_figures_without_the_extra_are_refused_before_anything_is_written(alone, report, monkeypatch):
    monkeypatch.setattr("crad.report.charts.charts_available", lambda: False)
    before = (alone / "report.html").stat().st_mtime_ns
    assert "pip install '.[report]'" in one_line(report(alone, "--figures", "figures"))
    assert (alone / "report.html").stat().st_mtime_ns == before


def test_an_inspection_that_is_missing_is_made_from_the_checkpoint(alone, report):
    before = json.loads((alone / "inspection.json").read_text())
    (alone / "inspection.json").unlink()
    code, _, err = report(alone)
    assert (code, err.count("\n"), "is written again" in err) == (0, 1, True)
    assert json.loads((alone / "inspection.json").read_text()) == before
    assert len(json.loads(script_data((alone / "report.html").read_text()))["inspections"]) == 1


def test_an_inspection_that_cannot_be_made_is_noted_and_the_page_is_written(alone, report):
    (alone / "inspection.json").unlink()
    shutil.rmtree(alone / "checkpoint")
    code, _, err = report(alone)
    noted, replaced = err.splitlines()
    assert code == 0
    assert "no inspector on the page" in noted
    assert "is written again" in replaced
    assert "Nothing to inspect" in Page((alone / "report.html").read_text()).text


def test_what_is_no_run_is_refused(tmp_path, report):
    assert "absent does not exist" in one_line(report("absent"))
    (tmp_path / "empty").mkdir()
    assert "empty is no run directory and holds none" in one_line(report("empty"))


def test_an_unfinished_run_is_refused_with_how_to_finish_it(alone, report):
    (alone / "summary.json").unlink()
    assert f"finish the run with crad run --resume {alone}" in one_line(report(alone))


def test_runs_of_different_data_are_refused(folder, alone, report):
    summary = json.loads((alone / "summary.json").read_text())
    (alone / "summary.json").write_text(json.dumps({**summary, "dataset": "cifar10"}))
    line = one_line(report(folder / "local-seed5", alone))
    assert "differ in their data set" in line
    assert not Path("report.html").exists()


def test_an_output_that_is_a_folder_is_refused(folder, tmp_path, report):
    assert "is a folder: name the file to write" in one_line(report(folder, "--output", tmp_path))
