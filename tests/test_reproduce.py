"""`crad reproduce` as a person meets it, at toy scale through every table: planned, run once, continued, shown."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import crad.api
from crad.cli import main
from crad.cli.reproduce import _by_reason
from crad.config import Experiment
from crad.errors import BusyError, DataError
from crad.files import read_toml
from crad.paper.experiments import NAMES
from crad.paper.plan import one_page_of
from crad.runs.callbacks import LambdaCallback
from crad.runs.checkpoint import save_checkpoint
from crad.runs.run_records import RunRecords

SMALL = "fedgd.generator_steps=1,fedgd.generator_batch=8,fedgd.transfer_size=12"
TOY: dict[str, object] = {"preset": "demo", "rounds": 2, "eval_every": 1, "clients": 4, "active": 3}
TOY |= {"models": "cnn6", "width": 0.125}
TOY |= {"train_limit": 160, "test_limit": 40, "proxy_size": 12, "workers": 1, "device": "cpu"}


def reproduce(*arguments: object, **settings: object) -> tuple[int, str, str]:
    """`crad reproduce ARGS` at toy scale."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**TOY, **settings}.items()]
    return command(*arguments, *flags, "--no-metrics")


def command(*arguments: object) -> tuple[int, str, str]:
    """Run `crad reproduce ARGS` in this process: exit code, standard output, standard error."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["crad", "reproduce", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
            main()
    finally:
        sys.argv = before
    return int(stopped.value.code or 0), out.getvalue(), err.getvalue()


def run_names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "runs").iterdir())


def tidy(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / "tables" / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def crad_runs(folder: Path, *words: str) -> list[Path]:
    """The runs of CRAD whose settings say these words."""
    paths = folder.glob("runs/digits-crad-*")
    return [path for path in paths if all(word in (path / "experiment.toml").read_text() for word in words)]


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The methods that are really run, in their order."""
    seen: list[str] = []
    really_run = crad.api.run

    def run(experiment, **settings):
        seen.append(experiment.method)
        return really_run(experiment, **settings)

    monkeypatch.setattr(crad.api, "run", run)
    return seen


@pytest.fixture(scope="module", autouse=True)
def no_page_of_single_runs():
    """They take longer than a toy run; the pages of the whole are real."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("crad.api.report_page", lambda runs: "")
        yield


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> tuple[Path, str, str]:
    """Every table and figure, run once for all tests: the folder, standard output, standard error."""
    folder: Path = tmp_path_factory.mktemp("toy") / "all"
    code, out, err = reproduce("all", "--output", folder, method_settings=SMALL)
    assert code == 0, err
    return folder, out, err


@pytest.fixture(autouse=True)
def nothing_is_drawn_again(monkeypatch):
    """Pages and figures of the whole are made once, with `toy`, before this: they cost more than all toy runs."""

    def pages_that_are_there(plan, records):
        return sorted(plan.folder.glob("report*.html"), key=lambda path: len(path.name))

    monkeypatch.setattr("crad.paper.plan.write_reports", pages_that_are_there)
    monkeypatch.setattr("crad.paper.plan.make_charts", lambda runs: ["a chart"])
    monkeypatch.setattr("crad.paper.plan.save_chart", lambda chart, folder: [folder])


# --- everything, once


def test_every_table_is_written_in_three_forms_and_shown(toy):
    folder, out, _ = toy
    for name in NAMES:
        rows = tidy(folder, name)
        assert rows, name
        assert any(row["ours_mean"] for row in rows), name
        assert {row["preset"] for row in rows} == {"demo"}
        assert {row["dataset"] for row in rows} == {"digits"}
        assert (folder / "tables" / f"{name}.md").read_text(encoding="utf-8").startswith("### ")
        assert "\\bottomrule" in (folder / "tables" / f"{name}.tex").read_text(encoding="utf-8")
    for title in (
        "All methods, on digits (laid out as Table 1)",
        "A success and a failure, traced, on digits (laid out as Figure 5, appendix)",
    ):
        assert title in " ".join(out.split())
    assert not re.search("^ *(CIFAR|PathMNIST)", out, re.MULTILINE), "no heading of data that was not run"
    assert "This is no reproduction of the paper's figures, the scale is another: dataset digits (paper: cifar10" in out
    assert out.strip().endswith(str(folder))


def test_no_experiment_is_trained_twice(toy):
    folder, _, err = toy
    names = run_names(folder)
    # Nine methods; six other weights; private counts; stage 1; and two with shards that are alike (N = 20, 50, 100).
    assert len(names) == 9 + 6 + 1 + 1 + 2
    assert len({name.split("-seed")[0] for name in names}) == 9 + 6 + 1
    assert all(re.fullmatch(r"digits-[a-z0-9-]+-seed1024-[0-9a-f]{8}", name) for name in names)
    assert f"{len(names)} runs: 0 done, 0 to resume, {len(names)} to run" in err
    assert f"[{len(names)}/{len(names)}]" in err


def test_every_number_of_ours_is_that_of_a_run(toy):
    folder, _, _ = toy
    summaries = [json.loads(path.read_text()) for path in folder.glob("runs/*/summary.json")]
    for row in tidy(folder, "table1"):
        found = {f"{round(one[row['metric']], 6):g}" for one in summaries if one["method"] == row["row"]}
        assert row["ours_mean"] in found, row
        if row["paper"]:
            assert float(row["difference"]) == pytest.approx(float(row["ours_mean"]) - float(row["paper"]), abs=1e-3)
    costs = {row["row"]: row["ours_mean"] for row in tidy(folder, "cost") if row["metric"] == "needs_proxy"}
    assert costs == {
        **dict.fromkeys(("fedmd", "fedgd", "msfkd"), "yes"),
        **dict.fromkeys(("dfml", "fedmkd", "uniform", "uncertainty", "crad"), "no"),
    }


def test_the_time_left_is_shown_for_the_run_and_for_all(toy):
    _, _, err = toy
    assert "to run, time known after the first run" in err
    lines = [line for line in err.splitlines() if re.match(r"\[\d+/\d+\] .*round 1/2", line)]
    assert all(re.search(r"left (\d+ min )?\d+ s  all runs (\d+ min )?\d+ s$", line) for line in lines[1:-1])
    assert re.search(r"18 runs left, about \d", err)
    assert re.search(r"1 run left, about \d", err)
    assert re.search(r"0 runs left$", err, re.MULTILINE)


def test_the_cases_are_those_that_explain_shows(toy):
    from crad.inspection import RunInspector

    folder, _, _ = toy
    cases = {(row["row"], row["metric"]): row["ours_mean"] for row in tidy(folder, "cases")}
    (path,) = crad_runs(folder, 'private_counts = "none"', 'partition = "dirichlet"')
    for kind, trace in zip(("success", "failure"), RunInspector(path).clearest(), strict=True):
        assert cases[kind, "case_class"] == trace.class_name
        assert float(cases[kind, "case_target"]) == pytest.approx(100 * trace.target, abs=0.01)
        assert float(cases[kind, "case_consensus"]) == pytest.approx(100 * trace.consensus, abs=0.01)
        states = [teacher.state for teacher in trace.teachers]
        assert float(cases[kind, "case_kept"]) == states.count("kept")
        assert cases[kind, "case_client"] in {f"C{teacher.client}" for teacher in trace.teachers}


def test_figures_and_a_report_lie_beside_the_tables(toy):
    folder = toy[0]
    first, other = sorted(folder.glob("report*.html"), key=lambda path: len(path.name))
    assert (first.name, other.name) == ("report.html", "report-iid.html"), "another division of the data: another page"
    assert f"Report: {first}\nReport: {other}\n" in toy[1]
    assert all(method in first.read_text(encoding="utf-8") for method in ("stage1", "fedmkd", "inverse-ce"))
    assert "stage1" not in other.read_text(encoding="utf-8")
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert len(names) >= 5
    for name in names:
        assert (folder / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / "figures" / f"{name}.svg").read_text(encoding="utf-8")[:500]


def test_without_the_extra_there_are_no_figures_but_a_line_that_says_how(toy, monkeypatch):
    monkeypatch.setattr("crad.paper.plan.charts_available", lambda: False)
    code, out, err = reproduce("context", "--only-show", "--output", toy[0])
    assert code == 0
    assert "no figures were drawn: pip install '.[report]'" in err
    assert "Support and accuracy of every client" in out
    assert "no figures" not in reproduce("cost", "--only-show", "--output", toy[0])[2]


def test_the_same_command_again_trains_nothing_and_says_the_same(toy, asked):
    folder, out, _ = toy
    code, again, err = reproduce("all", "--output", folder, method_settings=SMALL)
    assert (code, again, asked) == (0, out, [])
    assert "19 runs: 19 done, 0 to resume, 0 to run\n" in err


def test_one_table_reads_the_runs_of_another(toy, asked):
    folder, _, _ = toy
    code, out, err = reproduce("weights", "--output", folder)
    assert (code, asked) == (0, [])
    assert "7 runs: 7 done" in err
    assert "How the kept teachers are weighed" in out
    assert "What a round costs" not in out


def test_what_is_there_can_be_shown_alone(toy, asked):
    folder, _, _ = toy
    code, out, _ = reproduce("table1", "--only-show", "--seeds", "1024,7", "--output", folder, method_settings=SMALL)
    assert (code, asked) == (0, [])
    assert "9 of 18 runs are there" in " ".join(out.split())
    code, out, _ = reproduce(
        "table1", "--output", folder, "--methods", "local,crad", "--datasets", "cifar100", "--json"
    )
    rows = json.loads(out)["tables"]["table1"]
    assert (code, asked) == (0, [])
    assert {(row["row"], row["column"]) for row in rows} == {("local", "digits"), ("crad", "digits")}


def test_showing_before_anything_was_run_writes_nothing(tmp_path, asked):
    code, out, err = command("all", "--only-show", "--preset", "paper", "--output", tmp_path / "new")
    assert (code, asked) == (0, [])
    assert not (tmp_path / "new").exists()
    assert "41 runs: 0 done, 0 to resume, 41 to run, about" in err
    assert "at the seconds per round that the paper gives for its GPU" in err
    assert "0 of 27 runs are there" in out
    assert str(tmp_path / "new") not in out, "what stands there last is a folder for a program to read"
    assert err.endswith(f"crad: nothing is in {tmp_path / 'new'} yet: the same command without --only-show runs it\n")


def test_a_page_has_a_method_once_per_seed_and_whole_seeds():
    runs = [
        RunRecords(Experiment(method=method, seed=seed, private_counts=private), {}, [], {})
        for method, seed, private in (("crad", 1, None), ("crad", 1, 1.0), ("local", 1, None), ("crad", 2, None))
    ]
    assert one_page_of(runs) == [runs[0], runs[2], runs[3]]
    lone = RunRecords(Experiment(method="dfml", seed=2), {}, [], {})
    assert lone not in one_page_of([*runs, RunRecords(Experiment(method="uniform", seed=1), {}, [], {}), lone])


# --- the project's own experiment


@pytest.fixture(scope="module")
def beyond(tmp_path_factory) -> tuple[Path, str, str]:
    """CRAD, its changes and crad-plus with two seeds: the folder, standard output, standard error."""
    folder: Path = tmp_path_factory.mktemp("beyond")
    code, out, err = reproduce("beyond", "--methods", "crad,crad-plus", "--seeds", "1,2", "--output", folder, rounds=1)
    assert code == 0, err
    return folder, out, err


def test_variants_of_a_method_are_runs_of_their_own(beyond):
    folder, _, err = beyond
    names = [name.split("-seed")[0] for name in run_names(folder)]
    # With and without liars; the other data sets and the twenty clients are the same at this scale.
    assert {name: names.count(name) for name in names} == {
        "digits-crad": 4,
        "digits-crad-balanced-loss": 2,
        "digits-crad-pooled-evidence": 4,
        "digits-crad-weighted-consensus": 2,
        "digits-crad-mixup": 2,
        "digits-crad-plus": 4,
    }
    assert "] digits crad, pooled evidence, 3 of 4 clients, noise by 2, seed 2  round 1/1" in err
    assert "digits crad, balanced loss, 3 of 4 clients, seed 1: global" in err


def test_differences_are_those_of_the_runs(beyond):
    folder, out, _ = beyond
    of_run: dict[tuple[str, int], dict[int, float]] = {}
    for path in folder.glob("runs/*"):
        summary = json.loads((path / "summary.json").read_text())
        liars = read_toml(path / "experiment.toml")["attackers"]
        of_run.setdefault((summary["name"], liars), {})[summary["seed"]] = summary["local_accuracy"]
    rows = [row for row in tidy(folder, "beyond") if row["metric"] == "local_accuracy"]
    assert len(rows) == 6 + 3 + 2, "three data sets became one"
    for row in rows:
        liars = 2 if row["column"] == "liars" else 0
        own, theirs = of_run[row["name"], liars], of_run["crad", liars]
        assert float(row["mean"]) == pytest.approx((own[1] + own[2]) / 2, abs=1e-3)
        if row["row"] == "crad":
            assert row["difference"] == row["verdict"] == ""
            continue
        one, two = own[1] - theirs[1], own[2] - theirs[2]
        assert row["paired_seeds"] == "1 2"
        assert float(row["difference"]) == pytest.approx((one + two) / 2, abs=1e-3)
        # Two values: their deviation over the root of two is half their distance.
        reach = 12.7062 * abs(one - two) / 2
        assert float(row["interval_high"]) - float(row["difference"]) == pytest.approx(reach, abs=1e-2)
    assert "Beyond the paper, on digits: rare-class %" in out
    assert out.count("digits, N = 20, ten active") == 3, "a table per metric"


def test_the_own_experiment_has_tables_figures_and_a_page(beyond):
    folder, out, _ = beyond
    markdown = (folder / "tables" / "beyond.md").read_text(encoding="utf-8")
    assert re.findall("### (.*)", markdown) == [
        f"Beyond the paper, on digits: {name} %" for name in ("global", "local", "rare-class")
    ]
    assert (folder / "tables" / "beyond.tex").read_text(encoding="utf-8").count("\\bottomrule") == 3
    names = {path.name for path in (folder / "figures").iterdir()}
    assert {f"differences-{name}.{end}" for name in ("global", "local", "rare-class") for end in ("pdf", "svg")} < names
    assert "accuracy-digits-two-of-ten-lie.png" in names
    pages = re.findall("Report: (.*)", out)
    assert [Path(page).name for page in pages] == ["beyond.html", "report.html", "report-attack-noise-attackers-2.html"]
    page = Path(pages[0]).read_text(encoding="utf-8")
    assert 'data-chart="differences-rare-class"' in page
    detail = Path(pages[1]).read_text(encoding="utf-8")
    assert "6 methods compared on digits" in detail
    assert "crad, weighted consensus" in detail


def test_what_needs_the_baseline_is_said_without_it(beyond):
    code, out, _ = reproduce(
        "beyond", "--methods", "crad-plus", "--seeds", "1,2", "--only-show", "--output", beyond[0], rounds=1
    )
    assert code == 0
    assert "Seeds that only the row or only crad has are not in Δ: crad-plus on digits (1, 2)" in out.replace("\n", " ")


def test_rows_columns_and_a_baseline_of_the_users_own(beyond):
    arguments = ["--rows", "crad,evidence,crad-plus", "--columns", "liars", "--baseline", "evidence"]
    code, out, err = reproduce(
        "beyond", *arguments, "--seeds", "1,2", "--only-show", "--json", "--output", beyond[0], rounds=1
    )
    assert code == 0, err
    assert "6 runs: 6 done" in err
    rows = json.loads(out)["tables"]["beyond"]
    assert {(row["row"], row["column"], row["baseline"]) for row in rows} == {
        (name, "liars", "evidence") for name in ("crad", "evidence", "crad-plus")
    }
    assert {row["row"] for row in rows if not row["difference"]} == {"evidence"}


# --- seeds, interruptions, failures


def test_several_seeds_give_means_and_deviations(tmp_path):
    code, out, _ = reproduce("privacy", "--seeds", "1,2", "--output", tmp_path, rounds=1)
    assert code == 0
    assert [row["seeds"] for row in tidy(tmp_path, "privacy")] == ["1 2"] * 4
    values = [json.loads(path.read_text())["global_accuracy"] for path in tmp_path.glob("runs/*/summary.json")]
    assert len(values) == 4
    assert re.search(r"exact counts .*\d\.\d\d ± \d", out)
    assert "seeds 1, 2 (mean ± standard deviation)" in " ".join(out.split())


def test_an_interruption_between_runs_loses_nothing(tmp_path, asked, monkeypatch):
    counted = crad.api.run

    def interrupt_the_second(experiment, **settings):
        if asked:
            raise KeyboardInterrupt
        return counted(experiment, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(crad.api, "run", interrupt_the_second)
        assert reproduce("privacy", "--output", tmp_path, rounds=1)[0] == 130
    assert len(run_names(tmp_path)) == 1
    code, _, err = reproduce("privacy", "--output", tmp_path, rounds=1)
    assert (code, asked) == (0, ["crad", "crad"])
    assert "2 runs: 1 done, 0 to resume, 1 to run, about" in err
    assert "(from the runs finished here)" in err


def test_a_run_that_was_begun_is_resumed(toy, tmp_path, asked, monkeypatch):
    interrupted = tmp_path / "begun"

    def stop_after_one_round(*arguments, **settings):
        save_checkpoint(*arguments, **settings)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("crad.runs.loop.save_checkpoint", stop_after_one_round)
        code, _, err = reproduce("context", "--output", interrupted)
    assert code == 130
    assert f"continue with the same command and --output {interrupted}" in err
    code, _, err = reproduce("context", "--output", interrupted)
    assert (code, asked) == (0, ["crad", "crad"])
    assert "1 runs: 0 done, 1 to resume, 0 to run" in err
    assert "round 2/2" in err
    assert "round 1/2" not in err
    assert tidy(interrupted, "context") == tidy(toy[0], "context"), "as if it had not been interrupted"


def test_two_commands_share_a_plan(tmp_path, monkeypatch):
    """The second one comes while the first works on its first run: each trains one of the two."""
    really_run, trained = crad.api.run, []
    second: list[Any] = []

    def second_command(record):
        second.extend(reproduce("privacy", "--output", tmp_path, rounds=1))

    def run(experiment, *, callbacks, **settings):
        trained.append(experiment.private_counts)
        if len(trained) == 1:
            callbacks = [*callbacks, LambdaCallback(on_round=second_command)]
        return really_run(experiment, callbacks=callbacks, **settings)

    monkeypatch.setattr(crad.api, "run", run)
    code, _, err = reproduce("privacy", "--output", tmp_path, rounds=1)

    assert trained == [None, 1.0], "nothing is trained twice"
    assert (code, second[0]) == (0, 0)
    assert "1 run left to another process: not in these tables yet" in second[2]
    assert "left to another" not in err, "the first reads what the second has finished"
    assert [row["seeds"] for row in tidy(tmp_path, "privacy") if row["metric"] == "global_accuracy"] == ["1024"] * 2


def test_a_run_that_another_command_gave_up_is_taken_over(tmp_path, monkeypatch):
    really_run, trained = crad.api.run, []

    def run(experiment, **settings):
        trained.append(experiment.private_counts)
        if len(trained) == 1:
            raise BusyError("in use")
        return really_run(experiment, **settings)

    monkeypatch.setattr(crad.api, "run", run)
    code, _, err = reproduce("privacy", "--output", tmp_path, rounds=1)

    assert (code, trained) == (0, [None, 1.0, None])
    assert "left to another" not in err


def test_a_run_that_fails_is_named_and_the_others_finish(tmp_path, monkeypatch):
    really_run = crad.api.run

    def run(experiment, **settings):
        if experiment.private_counts is not None:
            raise DataError("the noise\nran out")
        return really_run(experiment, **settings)

    monkeypatch.setattr(crad.api, "run", run)
    # The private run would be second: --seeds makes a run after it.
    code, out, err = reproduce("privacy", "--seeds", "1,2", "--output", tmp_path, rounds=1)
    assert code == 2
    last = err.splitlines()[-1]
    assert last.startswith("crad: 2 of 4 runs failed: digits-crad-seed1-")
    assert last.count("(the noise ran out)") == 1, "a reason is given once"
    assert "give the same command again" in last
    assert len(run_names(tmp_path)) == 2
    found = {(row["row"], row["metric"]): row for row in tidy(tmp_path, "privacy")}
    assert found["exact", "global_accuracy"]["seeds"] == "1 2"
    assert found["private", "global_accuracy"]["ours_mean"] == ""
    assert re.search(r"noisy counts, ε = 1 +- +- ", out)


def test_many_runs_that_fail_for_one_reason_are_counted():
    failed = {f"run{i}": "no disk" for i in range(5)} | {"other": "no net"}
    assert _by_reason(failed) == "run0, run1, run2 and 2 more (no disk); other (no net)"


def test_data_that_is_absent_is_said_before_anything_is_trained(tmp_path, monkeypatch, asked):
    monkeypatch.setenv("CRAD_DATA", str(tmp_path / "nothing"))
    code, _, err = reproduce("privacy", "--output", tmp_path / "out", preset="mini")
    assert (code, asked) == (2, [])
    assert "2 of them cannot be run: data set 'cifar100' is not in" in err.splitlines()[1]
    assert "crad data fetch cifar100" in err
    assert err.splitlines()[-1].startswith("crad: 2 of 2 runs failed: cifar100-crad-seed1024-")
    assert not (tmp_path / "out").exists()


def test_a_damaged_run_is_named_and_the_rest_is_shown(toy, tmp_path):
    for path in (toy[0] / "runs").glob("digits-crad-*"):
        shutil.copytree(path, tmp_path / "runs" / path.name)
    (damaged,) = crad_runs(tmp_path, "private_counts = 1.0")
    (damaged / "summary.json").write_text("{")
    code, out, err = reproduce("privacy", "--output", tmp_path)
    assert code == 2
    assert f"1 of 2 runs failed: {damaged.name} (" in err.splitlines()[-1]
    assert re.search(r"exact counts +\d", out)


def test_quiet_prints_the_path_alone(toy):
    folder, _, _ = toy
    code, out, err = reproduce("cost", "--quiet", "--output", folder, method_settings=SMALL)
    assert (code, out.strip(), err) == (0, str(folder), "")


def test_json_holds_the_tables_and_the_state_of_every_run(toy):
    folder, _, _ = toy
    code, out, _ = reproduce("cost", "--json", "--quiet", "--output", folder, method_settings=SMALL)
    answer = json.loads(out)
    assert (code, answer["output"], answer["failed"]) == (0, str(folder), {})
    assert answer["tables"]["cost"] == tidy(folder, "cost")
    assert {run["state"] for run in answer["runs"]} == {"done"}
    assert len(answer["runs"]) == 8


ABSENT_DEVICE = "mps" if torch.cuda.is_available() else "cuda"
BAD = {
    "experiment": (["tabel1"], {}, "unknown experiment 'tabel1'. Did you mean 'table1'?"),
    "preset": (["table1"], {"preset": "minj"}, "unknown preset 'minj'. Did you mean 'mini'?"),
    "data set": (["table1", "--datasets", "cifar"], {}, "unknown data set 'cifar'. Did you mean 'cifar10'?"),
    "data set of one column": (
        ["table1"],
        {"preset": "mini", "dataset": "cifar10"},
        "--dataset cifar10 would stand under every column of 'table1'",
    ),
    "data set elsewhere": (["cost", "--datasets", "pathmnist"], {}, "unknown data set 'pathmnist'"),
    "method": (["table1", "--methods", "crda"], {}, "unknown method 'crda'. Did you mean 'crad'?"),
    "row": (["beyond", "--rows", "filtr"], {}, "unknown row 'filtr'. Did you mean 'filter'?"),
    "column": (["beyond", "--columns", "n2O"], {}, "unknown column 'n2O'. Did you mean 'n20'?"),
    "no cell": (
        ["beyond", "--rows", "local", "--columns", "liars"],
        {},
        "no run of 'beyond' has these data sets, meth",
    ),
    "baseline": (["beyond", "--baseline", "crda"], {}, "unknown row 'crda'. Did you mean 'crad'?"),
    "rows without it": (
        ["beyond", "--rows", "crad-plus"],
        {},
        "compared with 'crad', which the chosen part of 'beyond'",
    ),
    "not there": (
        ["beyond", "--rows", "local,crad-plus", "--columns", "liars,n20", "--baseline", "local"],
        {},
        "does not have in liars: name it among --rows",
    ),
    "no baseline": (["table1", "--baseline", "crad"], {}, "'table1' is compared with the paper and has no baseline"),
    "what is compared": (["beyond"], {"local_loss": "plain"}, "differ in local_loss: leave out --local-loss"),
    "seeds": (["table1", "--seeds", "1,x"], {}, "--seeds '1,x'"),
    "method setting": (["table1"], {"method_settings": "fedmkd.my=1"}, "'my'. Did you mean 'mu'?"),
    "whose setting": (["table1"], {"method_settings": "mu=1"}, "'mu' names no compared method"),
    "rounds": (["table1"], {"rounds": 0}, "rounds = '0'"),
    "device": (["privacy"], {"device": ABSENT_DEVICE}, f"device {ABSENT_DEVICE!r} is not available on this machine"),
    "nothing": ([], {}, "WHAT"),
}


@pytest.mark.parametrize(("arguments", "settings", "words"), BAD.values(), ids=BAD)
def test_bad_input_gets_one_line_and_writes_nothing(tmp_path, arguments, settings, words, asked):
    code, out, err = reproduce(*arguments, "--output", tmp_path / "out", **settings)
    assert (code, out, asked) == (2, "", [])
    assert err.startswith("crad: ")
    assert err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "out").exists()
