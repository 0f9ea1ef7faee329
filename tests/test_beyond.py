"""An experiment with a baseline: paired differences by hand, its tables in every form, its charts and its page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from crad.analysis.intervals import paired, t_quantile
from crad.config import Experiment
from crad.errors import ConfigError
from crad.paper.experiments import GROUPS, Choice, PaperExperiment, load_paper, plan_cells, read_paper
from crad.paper.paper_tables import tidy_csv
from crad.paper.study_charts import make_study_charts
from crad.paper.study_page import study_page
from crad.paper.study_tables import find_compared, make_study_tables, study_rows
from crad.report.charts import save_chart
from crad.report.latex import table_latex
from crad.report.tables import table_markdown
from tests.pages import Page
from tests.records import made_run

# --- paired differences


def test_the_interval_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1; t with two degrees of freedom is 4.3027: 2 -+ 4.3027 / sqrt(3).
    found = paired({1: 11.0, 2: 22.0, 3: 33.0}, {1: 10.0, 2: 20.0, 3: 30.0})
    assert found is not None
    assert found.figure.values == (1.0, 2.0, 3.0)
    assert found.interval == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-4)
    assert found.sign == 0
    # 2, 2.1, 1.9: the same mean, a tenth of the deviation.
    sure = paired({1: 12.0, 2: 22.1, 3: 31.9}, {1: 10.0, 2: 20.0, 3: 30.0})
    assert sure is not None
    assert sure.interval == pytest.approx((2 - 0.248414, 2 + 0.248414), abs=1e-4)
    assert sure.sign == 1


def test_pairs_are_made_by_seed_and_seeds_without_a_partner_left_out():
    found = paired({3: 5.0, 1: 1.0, 9: 99.0}, {1: 0.0, 3: 2.0, 4: 50.0})
    assert found is not None
    assert (found.seeds, found.figure.values) == ((3, 1), (3.0, 1.0))
    assert paired({1: 5.0}, {2: 5.0}) is None


def test_one_seed_has_a_difference_and_no_interval():
    found = paired({1: 90.0}, {1: 10.0})
    assert found is not None
    assert (found.figure.mean, found.interval, found.sign) == (80.0, None, 0)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_students_t_as_in_printed_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


def test_students_t_with_other_levels_and_in_the_limit():
    assert t_quantile(1, level=0.5) == pytest.approx(1.0)  # the quartile of Cauchy's distribution
    assert t_quantile(2, level=0.5) == pytest.approx(math.sqrt(2 / 3))
    assert t_quantile(10_000) == pytest.approx(1.96, abs=1e-3)


# --- the file


def test_the_project_has_its_own_experiment_apart_from_the_papers():
    paper = load_paper("beyond")
    assert all("beyond" not in names for group, names in GROUPS.items() if group != "everything")
    assert not any(row.published for row in paper.rows)
    assert (paper.baseline, paper.seeds) == ("crad", (1, 2, 3))
    assert {row.settings["method"] for row in paper.rows} == {"local", "uniform", "crad", "crad-plus"}
    alone = [row.settings for row in paper.rows if len(row.settings) > 1]
    assert [list(settings)[1:] for settings in alone] == [["local_loss"], ["evidence"], ["filter"], ["distill_augment"]]


def test_a_column_may_have_some_of_the_rows():
    cells = plan_cells(load_paper("beyond"), flags={"preset": "mini"})
    assert len(cells) == 3 * (3 * 8 + 4 + 4)
    lying = [cell for cell in cells if cell.experiment.attackers]
    assert {cell.experiment.attackers for cell in lying} == {2}
    assert {cell.row.name for cell in lying} == {"uniform", "crad", "evidence", "crad-plus"}
    many = [cell.experiment for cell in cells if cell.experiment.clients == 20]
    assert {(one.method, one.active) for one in many} == {
        (name, 10) for name in ("local", "uniform", "crad", "crad-plus")
    }


def test_the_controls_share_one_loss_and_none_of_the_seeds_that_were_looked_at_before():
    paper = load_paper("controls")
    assert all("controls" not in names for group, names in GROUPS.items() if group != "everything")
    assert not set(paper.seeds) & set(load_paper("beyond").seeds)
    losses = {row.name: Experiment(**row.settings).recipe.local_loss for row in paper.rows}
    assert losses == {
        "crad": "plain",
        "uniform-balanced": "balanced",
        "crad-balanced": "balanced",
        "crad-plus": "balanced",
    }
    # A world that both have is the same world, so that a run of one is a run of the other.
    assert {column.name: column.settings for column in paper.columns} == {
        column.name: column.settings for column in load_paper("beyond").columns
    }


def test_rows_and_columns_can_be_chosen():
    choice = Choice(rows=["crad", "evidence"], columns=["n20", "liars"])
    cells = plan_cells(load_paper("beyond"), flags={}, seeds=[1], choice=choice)
    assert [(cell.row.name, cell.column.name) for cell in cells] == [
        ("crad", "liars"),
        ("evidence", "liars"),
        ("crad", "n20"),
    ]


SMALL: dict[str, Any] = {
    "name": "small",
    "kind": "table",
    "title": "Small",
    "caption": "By hand.",
    "seeds": [1, 2, 3],
    "baseline": "crad",
    "metrics": [
        {"name": "global_accuracy", "label": "global", "unit": "%", "best": "highest"},
        {"name": "round_seconds", "label": "time", "unit": "s", "digits": 1, "best": "lowest"},
    ],
    "columns": [
        {"name": "a", "label": "A", "settings": {"dataset": "cifar10"}},
        {"name": "b", "label": "B", "settings": {"dataset": "cifar100"}, "rows": ["crad", "mixed"]},
    ],
    "rows": [
        {"name": "local", "settings": {"method": "local"}, "is_reference": True},
        {"name": "crad", "settings": {"method": "crad"}},
        {"name": "mixed", "settings": {"method": "crad", "matching": "mixup"}},
    ],
}
FAULTS = {
    "unknown baseline": ({"baseline": "crda"}, "unknown row 'crda'. Did you mean 'crad'"),
    "unknown row": ({"columns": [{"name": "a", "label": "A", "rows": ["mixd"]}]}, "unknown row 'mixd'"),
    "no seed": ({"seeds": []}, "seeds"),
}


@pytest.mark.parametrize(("change", "words"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_file_is_refused_with_its_name(change, words, tmp_path):
    import tomli_w

    (tmp_path / "small.toml").write_text(tomli_w.dumps({**SMALL, **change}))
    with pytest.raises(ConfigError, match=r"small\.toml") as refused:
        read_paper(tmp_path / "small.toml")
    assert words in str(refused.value)


# --- tables from runs made by hand


def measured(method, *, accuracies, seconds=1.0, dataset="cifar10", **settings):
    """Runs with seeds 1, 2, ... that reach these accuracies."""
    return [
        replace(run, summary={**run.summary, "global_accuracy": accuracy, "round_seconds": seconds, **ABACUS})
        for seed, accuracy in accuracies.items()
        for run in [made_run(method, seed=seed, dataset=dataset, **settings)]
    ]


ABACUS = {"hardware": {"processor": "Abacus", "device": "cpu", "cores": 2}, "versions": {"crad": "1"}}
PAPER = PaperExperiment(**SMALL)
CELLS = plan_cells(PAPER, flags={"rounds": 2})
FINISHED = {
    ("local", "a"): measured("local", accuracies={1: 5.0, 2: 15.0, 3: 25.0}, seconds=0.5),
    ("crad", "a"): measured("crad", accuracies={1: 10.0, 2: 20.0, 3: 30.0}),
    ("mixed", "a"): measured("crad", accuracies={1: 12.0, 2: 22.1, 3: 31.9}, seconds=3.0, matching="mixup"),
    ("crad", "b"): measured("crad", accuracies={1: 50.0, 2: 51.0}, dataset="cifar100"),
    ("mixed", "b"): measured("crad", accuracies={1: 51.0, 2: 50.0, 3: 99.0}, dataset="cifar100", matching="mixup"),
}
GOLDEN_GLOBAL = """\
### Small: global %

| method      |          global % | Δ crad |    95 % interval | verdict |
|-------------|------------------:|-------:|-----------------:|--------:|
| *A*         |                   |        |                  |         |
| local       |     15.00 ± 10.00 |  -5.00 |   -5.00 to -5.00 |   worse |
| crad        |     20.00 ± 10.00 |      - |                - |         |
| crad, mixup |  **22.00 ± 9.95** |  +2.00 |   +1.75 to +2.25 |  better |
| *B*         |                   |        |                  |         |
| crad        |      50.50 ± 0.71 |      - |                - |         |
| crad, mixup | **66.67 ± 28.01** |  +0.00 | -12.71 to +12.71 |         |

By hand. Δ: minus crad with the same seed, mean over the seeds, in points, with its 95 % interval (Student's t over \
the seeds' differences). Better, worse: the interval leaves out zero; every line is judged by itself, and of twenty \
lines without any effect one is expected to say so. No verdict: no difference is shown. Bold or (best): best of a \
section, training alone not counted. Measured with preset paper, seeds 1, 2, 3 (mean ± standard deviation), 2 rounds, \
1000 training and 20 test images, on Abacus (cpu, 2 cores). 14 of 15 runs are there; -: not run. The scale is not the \
paper's: rounds 2 (paper: 300); 1000 of the 50000 training images of cifar10; 1000 of the 50000 training images of \
cifar100. Seeds that only the row or only crad has are not in Δ: crad, mixup on B (3).
"""
GOLDEN_TIME = """\
### Small: time s

| method      |        time s | Δ crad | 95 % interval | verdict |
|-------------|--------------:|-------:|--------------:|--------:|
| *A*         |               |        |               |         |
| local       |     0.5 ± 0.0 |   -0.5 |  -0.5 to -0.5 |  better |
| crad        | **1.0 ± 0.0** |      - |             - |         |
| crad, mixup |     3.0 ± 0.0 |   +2.0 |  +2.0 to +2.0 |   worse |
| *B*         |               |        |               |         |
| crad        |     1.0 ± 0.0 |      - |             - |         |
| crad, mixup |     1.0 ± 0.0 |   +0.0 |  +0.0 to +0.0 |         |

What is shown, and of which runs, stands at the table of global. Seeds that only the row or only crad has are not in \
Δ: crad, mixup on B (3).
"""
GOLDEN_CSV = """\
table,row,name,column,dataset,metric,mean,deviation,seeds,baseline,difference,interval_low,interval_high,paired_seeds,verdict,preset
small,local,local,a,cifar10,global_accuracy,15,10,1 2 3,crad,-5,-5,-5,1 2 3,worse,paper
small,crad,crad,a,cifar10,global_accuracy,20,10,1 2 3,crad,,,,,,paper
small,mixed,"crad, mixup",a,cifar10,global_accuracy,22,9.95038,1 2 3,crad,2,1.75159,2.24841,1 2 3,better,paper
small,crad,crad,b,cifar100,global_accuracy,50.5,0.707107,1 2,crad,,,,,,paper
small,mixed,"crad, mixup",b,cifar100,global_accuracy,66.6667,28.006,1 2 3,crad,0,-12.7062,12.7062,1 2,,paper
"""
GOLDEN_LATEX = r"""
\multicolumn{5}{@{}l}{\textit{A}} \\
local & 15.00 $\pm$ 10.00 & $-$5.00 & $-$5.00 to $-$5.00 & worse \\
crad & 20.00 $\pm$ 10.00 & -- & -- &  \\
crad, mixup & \textbf{22.00 $\pm$ 9.95} & +2.00 & +1.75 to +2.25 & better \\
\midrule
"""


def test_markdown_by_hand():
    overall, time = map(table_markdown, make_study_tables(PAPER, CELLS, FINISHED))
    assert overall == GOLDEN_GLOBAL
    assert time == GOLDEN_TIME, "less is better"


def test_csv_by_hand():
    text = tidy_csv(study_rows(PAPER, CELLS, FINISHED))
    assert text.startswith(GOLDEN_CSV)
    assert len(text.splitlines()) == 1 + 2 * 5


def test_latex_by_hand():
    overall, time = map(table_latex, make_study_tables(PAPER, CELLS, FINISHED))
    assert GOLDEN_LATEX in overall
    assert "\\label{tab:small-global}" in overall
    assert "\\label{tab:small-time}" in time
    for table in make_study_tables(load_paper("beyond"), plan_cells(load_paper("beyond"), flags={}), {}):
        assert table_latex(table).isascii()


def test_a_line_fits_a_narrow_terminal():
    paper = load_paper("beyond")
    for table in make_study_tables(paper, plan_cells(paper, flags={}), {}):
        assert max(len(row[0].text) for row in table.rows) <= 26, (
            "beside it four columns and their gaps need 52 letters"
        )


def test_with_one_seed_the_difference_stands_alone():
    first = {key: runs[:1] for key, runs in FINISHED.items()}
    cells = plan_cells(PAPER, flags={}, seeds=[1])
    table = make_study_tables(PAPER, cells, first)[0]
    assert [cell.text for cell in table.rows[2]] == ["crad, mixup", "12.00", "+2.00", "-", ""]
    assert "one seed gives no interval" in table.caption
    assert "Better, worse" not in table.caption


def test_without_the_baseline_there_is_no_difference():
    without = {key: runs for key, runs in FINISHED.items() if key != ("crad", "a")}
    table = make_study_tables(PAPER, CELLS, without)[0]
    assert [cell.text for cell in table.rows[2]] == ["crad, mixup", "22.00 ± 9.95", "-", "-", ""]
    assert "crad, mixup on A (1, 2, 3)" in table.caption


# --- charts and the page


def test_charts_have_the_numbers_of_the_table():
    charts = {chart.name: chart for chart in make_study_charts(PAPER, CELLS, FINISHED)}
    assert list(charts) == ["differences-global", "differences-time", "accuracy-a", "accuracy-b"]
    chart = charts["differences-global"]
    shown = [(row["panel"], row["method"], row["difference"], row["verdict"], row["seeds"]) for row in chart.rows]
    assert shown == [
        ("A", "local", -5.0, "worse", 3),
        ("A", "crad, mixup", pytest.approx(2.0), "better", 3),
        ("B", "crad, mixup", 0.0, "", 2),
    ]
    assert chart.rows[1]["low"] == pytest.approx(1.75159, abs=1e-4)
    assert chart.alt == "Differences that are shown: local -5.0 on A, crad, mixup +2.0 on A."
    assert "dashed line is crad" in chart.caption
    assert [panel["title"]["text"] for panel in chart.spec["vconcat"]] == ["A", "B"]
    curves = charts["accuracy-a"]
    assert {row["method"] for row in curves.rows} == {"local", "crad", "crad, mixup"}
    assert curves.title == "Accuracy over rounds: A"


SENDING = PaperExperiment(
    **SMALL
    | {"metrics": [SMALL["metrics"][0], {"name": "sent_mib", "label": "sent", "unit": "MiB", "digits": "three"}]}
)


def test_accuracy_stands_over_what_is_sent():
    sent = {"local": 0, "crad": 3 * 2**20, "mixed": 6 * 2**20}  # a round, by row
    runs = {
        (row, column): [
            replace(one, summary=one.summary | {"payload_bytes_per_client_round": sent[row]}) for one in measured_runs
        ]
        for (row, column), measured_runs in FINISHED.items()
    }
    charts = {chart.name: chart for chart in make_study_charts(SENDING, CELLS, runs)}
    chart = charts["accuracy-against-sent"]
    rounds = len(runs["crad", "a"][0].rounds)
    points = [(row["panel"], row["method"], row["accuracy"], row["sent"]) for row in chart.rows]
    assert points == [
        ("A", "local", 15.0, 0.0),
        ("A", "crad", 20.0, 3.0 * rounds),
        ("A", "crad, mixup", pytest.approx(22.0), 6.0 * rounds),
    ], "no panel of two points"
    assert chart.rows[0]["drawn"] > 0, "an axis of logarithms has no zero"
    assert chart.alt == f"Highest: crad, mixup on A 22.0 % for {6 * rounds}.0 MiB."
    few = {key: one for key, one in runs.items() if key[1] == "b"}
    assert "accuracy-against-sent" not in {chart.name for chart in make_study_charts(SENDING, CELLS, few)}


def test_charts_are_drawn_and_saved(tmp_path):
    for chart in make_study_charts(PAPER, CELLS, FINISHED)[:1]:
        files = save_chart(chart, tmp_path)
        assert sorted(path.suffix for path in files) == [".pdf", ".png", ".svg"]
        svg = (tmp_path / f"{chart.name}.svg").read_text(encoding="utf-8")
        for words in ("crad, mixup", "global accuracy minus that of crad (points)", ">A<", ">B<"):
            assert words in svg


def test_one_seed_draws_points_without_bars():
    first = {key: runs[:1] for key, runs in FINISHED.items()}
    chart = make_study_charts(PAPER, plan_cells(PAPER, flags={}, seeds=[1]), first)[0]
    assert {row["low"] for row in chart.rows} == {None}
    assert "One seed each: no intervals." in chart.caption
    assert chart.alt == "No difference is shown by its interval."


def test_the_page_says_it_in_words():
    page = study_page(PAPER, CELLS, FINISHED, details=["report.html"])
    assert "crad, mixup against crad" in page
    assert "Global: better on 1, worse on 0, not shown on 1 of 2 (A +2.00, +1.75 to +2.25; B +0.00, -12.71 to" in page
    assert '<a href="report.html">' in page
    assert 'data-chart="differences-global"' in page
    assert "22.00 ± 9.95 (best)" in page
    assert "crad reproduce small --preset paper --seeds 1,2,3 --baseline crad --rounds 2" in Page(page).text


def test_another_row_can_be_the_baseline():
    changed = PAPER.against("mixed")
    rows = {row["row"]: row for row in study_rows(changed, CELLS, FINISHED) if row["column"] == "a"}
    assert (rows["crad"]["difference"], rows["crad"]["verdict"]) == ("-2", "better"), "2 s less than the changed one"
    (overall, _) = map(table_markdown, make_study_tables(changed, CELLS, FINISHED))
    assert "| crad        |     20.00 ± 10.00 |         -2.00 |   -2.25 to -1.75 |   worse |" in overall
    assert "Δ: minus crad, mixup with the same seed" in overall
    assert PAPER.baseline == "crad", "the experiment itself stays as it is"


def test_the_page_is_about_the_last_row_that_is_not_the_baseline():
    page = study_page(PAPER.against("mixed"), CELLS, FINISHED)
    assert "crad against crad, mixup" in page
    assert "Global: better on 0, worse on 1, not shown on 1 of 2 (A -2.00, -2.25 to -1.75; B" in page


def test_the_page_is_about_the_experiments_subject():
    about = PAPER.model_copy(update={"subject": "mixed"}).against("local")
    assert "crad, mixup against local" in study_page(about, CELLS, FINISHED)
    assert about.against("mixed").headline_row().name == PAPER.rows[-2].name, "not the baseline with itself"
    with pytest.raises(ValueError, match="mixt"):
        PaperExperiment.model_validate({**PAPER.model_dump(), "subject": "mixt"})


def test_one_seed_shows_nothing_and_the_page_says_so():
    cells, first = plan_cells(PAPER, flags={}, seeds=[1]), {key: runs[:1] for key, runs in FINISHED.items()}
    page = study_page(PAPER, cells, first)
    assert "Global: better on 0, worse on 0, not shown on 2 of 2 (A +2.00, one seed; B " in page


def test_the_pages_command_repeats_the_part_that_was_run():
    part = [cell for cell in CELLS if cell.row.name != "local" and cell.column.name == "a"]
    finished = {("crad", "a"): FINISHED["crad", "a"], ("mixed", "a"): FINISHED["mixed", "a"]}
    page = study_page(PAPER.against("mixed"), part, finished)
    assert "--seeds 1,2,3 --rows crad,mixed --columns a --baseline mixed --rounds 2" in Page(page).text


def test_without_the_extra_the_page_has_its_tables(monkeypatch):
    monkeypatch.setattr("crad.report.charts.charts_available", lambda: False)
    assert make_study_charts(PAPER, CELLS, FINISHED) == []
    page = study_page(PAPER, CELLS, FINISHED)
    assert "pip install '.[report]'" in Page(page).text
    assert "+1.75 to +2.25" in page


def test_verdicts_are_those_of_the_metrics_good_end():
    verdicts = {
        (one.outcome.metric.name, one.outcome.column.name, one.outcome.row.name): one.verdict
        for one in find_compared(PAPER, CELLS, FINISHED)
    }
    assert verdicts["global_accuracy", "a", "mixed"] == "better"
    assert verdicts["round_seconds", "a", "mixed"] == "worse", "it took longer"
    assert verdicts["round_seconds", "a", "crad"] == ""


def test_a_metric_without_a_good_end_has_no_verdict():
    metrics = [one.model_copy(update={"best": None}) for one in PAPER.metrics]
    open_ended = PAPER.model_copy(update={"metrics": tuple(metrics)})
    compared = find_compared(open_ended, CELLS, FINISHED)
    assert {one.verdict for one in compared} == {""}
    assert any(one.difference is not None and one.difference.sign for one in compared), "though differences are shown"
    assert "has not been run" in study_page(open_ended, CELLS, FINISHED)
