"""The paper's experiments on other data than the paper's: under that data's name in every form, or refused."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from crad.cli.terminal.terminal_tables import sectioned_table
from crad.errors import ConfigError
from crad.paper.experiments import NAMES, OWN, Choice, load_paper
from crad.paper.plan import Records, ReproductionPlan, make_tables, make_tidy, plan_reproduction, write_tables
from crad.paper.study_page import study_page
from crad.report.tables import Table
from tests.pages import Page
from tests.records import made_run

THEIRS = re.compile(r"CIFAR|PathMNIST|cifar|pathmnist")
ELSEWHERE = [*NAMES, *(name for name in OWN if not load_paper(name).is_bound_to_data)]  # runs on other data as well
DISCLAIMERS = (r"Run on \S+ in place of [^.]*\.", r"dataset \S+ \(paper: [^)]*\)")


def planned(what: str, tmp_path: Path, **flags: object) -> ReproductionPlan:
    return plan_reproduction(what, tmp_path, flags={"preset": "demo", **flags}, seeds=[1, 2])


def finished(plan: ReproductionPlan) -> Records:
    """Records of every planned run, made by hand."""
    return {
        run.key: replace(
            made_run(run.experiment.method, seed=run.experiment.seed, clients=4, attack="honest", attackers=1),
            experiment=run.experiment,
            path=Path(run.path.name),
        )
        for run in plan.runs
    }


def without_disclaimers(text: str) -> str:
    """All that is said but the sentences that name the paper's data as what this is not."""
    text = " ".join(text.split())
    for said in DISCLAIMERS:
        text = re.sub(said, "", text)
    return text


def terminal(table: Table) -> str:
    file = io.StringIO()
    console = Console(file=file, width=200)
    console.print(sectioned_table(table))
    console.print(table.caption, highlight=False, markup=False)
    return file.getvalue()


@pytest.mark.parametrize("what", ELSEWHERE)
def test_no_form_of_any_experiment_says_another_data_set_than_it_ran_on(what, tmp_path):
    plan = planned(what, tmp_path)
    records = finished(plan)
    write_tables(plan, records)
    for table in make_tables(plan, records)[what]:
        assert "digits" in terminal(table)
        assert not THEIRS.search(without_disclaimers(terminal(table)))
    for ending in ("md", "tex"):
        text = (tmp_path / "tables" / f"{what}.{ending}").read_text(encoding="utf-8")
        assert "digits" in text
        assert not THEIRS.search(without_disclaimers(text)), ending
    rows = list(csv.DictReader((tmp_path / "tables" / f"{what}.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["dataset"] for row in rows} == {"digits"}
    assert not {row["column"] for row in rows} & {"cifar10", "cifar100", "pathmnist"}
    assert {row.get("paper", "") for row in rows} == {""}, "a published figure is of other data"
    assert [dict(row) for row in rows] == make_tidy(plan, records)[what]


@pytest.mark.parametrize("what", [name for name in ELSEWHERE if name in OWN])
def test_the_page_of_a_study_says_it_too_and_its_command_asks_for_columns_by_their_own_names(what, tmp_path):
    plan = planned(what, tmp_path)
    (paper,) = plan.papers
    page = study_page(paper, plan.cells[what], plan.of_cell(paper, finished(plan)))
    text = Page(page).text
    assert f"<title>{paper.title}</title>" in page
    assert paper.title.endswith(", on digits")
    assert not THEIRS.search(without_disclaimers(text))
    assert f"crad reproduce {what} --preset demo --seeds 1,2 --baseline" in text


def test_a_study_of_certain_data_stays_with_them(tmp_path):
    plan = planned("kinds", tmp_path)
    assert {cell.experiment.dataset for cell in plan.cells["kinds"]} == {"heart", "agnews", "fsdd"}, "under any preset"
    assert [column.name for column in plan.papers[0].columns] == [
        "heart",
        "agnews",
        "fsdd-speakers",
        "fsdd-dirichlet",
    ]
    with pytest.raises(ConfigError, match=r"the columns of 'kinds' are data sets .*: leave out --dataset"):
        planned("kinds", tmp_path, dataset="digits")


def test_columns_that_become_the_same_are_one_with_every_run_once(tmp_path):
    plan = planned("table1", tmp_path)
    (paper,) = plan.papers
    assert [(column.name, column.label) for column in paper.columns] == [("digits", "digits")]
    assert paper.columns[0].stands_for == ("cifar10", "cifar100", "pathmnist")
    of_cell = plan.of_cell(paper, finished(plan))
    assert {len(runs) for runs in of_cell.values()} == {2}, "one run per seed"
    (table,) = make_tables(plan, finished(plan))["table1"]
    assert len(table.rows) == 9
    assert "dataset digits (paper: cifar10, cifar100, pathmnist)" in table.caption
    assert "Run on digits in place of CIFAR-10, CIFAR-100, PathMNIST, and the published figures are left out." in (
        table.caption
    )
    assert table.header == ("method", "global %, ours", "local %, ours")


def test_columns_that_differ_in_more_stay_apart(tmp_path):
    (paper,) = planned("beyond", tmp_path).papers
    assert [column.label for column in paper.columns] == [
        "digits",
        "digits, two of ten lie",
        "digits, N = 20, ten active",
    ]
    assert paper.caption.endswith("Run on digits in place of CIFAR-10, CIFAR-100, PathMNIST.")
    plan = plan_reproduction("beyond", tmp_path, flags={"preset": "demo"}, choice=Choice(columns=["liars"]))
    (paper,) = plan.papers
    page = study_page(paper, plan.cells["beyond"], plan.of_cell(paper, finished(plan)))
    assert "--columns liars --baseline crad" in Page(page).text


def test_an_own_file_gives_its_name(tmp_path):
    plan = plan_reproduction("beyond", tmp_path, flags={"preset": "mini", "dataset": "data/my scans.npz"}, seeds=[1])
    (paper,) = plan.papers
    assert (paper.columns[0].name, paper.columns[0].label) == ("my-scans", "my scans.npz")
    assert paper.title == "Beyond the paper, on my scans.npz"
    assert {row["dataset"] for row in make_tidy(plan, {})["beyond"]} == {"data/my scans.npz"}
    page = study_page(paper, plan.cells["beyond"], plan.of_cell(paper, finished(plan)))
    assert "--dataset 'data/my scans.npz'" in Page(page).text


def test_a_data_set_of_the_paper_under_the_columns_of_others_is_refused(tmp_path):
    words = "--dataset cifar10 would stand under every column of 'table1': leave it out and choose the columns that are"
    with pytest.raises(ConfigError, match=words):
        planned("table1", tmp_path, preset="mini", dataset="cifar10")
    (paper,) = planned("weights", tmp_path, preset="mini", dataset="cifar10").papers
    assert (paper.columns[0].label, paper.title) == ("cifar10", "How the kept teachers are weighed, on cifar10")
    assert all(row.published == {} for row in paper.rows)


def test_on_the_papers_own_data_nothing_is_renamed(tmp_path):
    for flags in ({"preset": "mini"}, {"preset": "mini", "dataset": "cifar10"}):
        plan = plan_reproduction("cost", tmp_path, flags=flags)
        (paper,) = plan.papers
        assert (paper.title, paper.columns[0].label) == ("What a round costs", "CIFAR-10")
        assert any(row.published for row in paper.rows)
        assert {row["dataset"] for row in make_tidy(plan, {})["cost"]} == {"cifar10"}
