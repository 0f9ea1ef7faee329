"""The command as a person meets it: good runs print tables and JSON, bad input gets one line and exit code 2."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import crad
from crad.config import to_toml
from tests.conftest import change
from tests.pages import Page


@pytest.fixture(scope="module")
def quick(tiny):
    return change(tiny, rounds=2, models=("cnn6",), committee=True)


@pytest.fixture(scope="module")
def quick_toml(quick, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("toml") / "experiment.toml"
    path.write_text(to_toml(quick))
    return path


@pytest.fixture(scope="module")
def finished(quick_toml, tmp_path_factory) -> Path:
    """One finished run, made by the real command in a process of its own."""
    path: Path = tmp_path_factory.mktemp("runs") / "finished"
    command = [sys.executable, "-m", "crad", "run", "--config", str(quick_toml), "--output", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(str(path))
    assert re.search(r"crad, seed 5  round 1/2  loss \d.*validation .*left \d+ s", done.stderr)
    assert re.search(r"round 2/2", done.stderr)
    return path


def test_a_run_directory_holds_what_the_design_says(finished, quick):
    names = {path.name for path in finished.iterdir()}
    assert {"experiment.toml", "rounds.jsonl", "summary.json", "checkpoint", "report.html"} <= names
    summary = json.loads((finished / "summary.json").read_text())
    wanted = (
        "schema method dataset preset seed clients alpha rounds best_round global_accuracy local_accuracy "
        "validation_accuracy global_accuracy_per_client per_class payload_bytes_per_client_round round_seconds "
        "peak_memory_bytes hardware versions"
    )
    assert [key for key in wanted.split() if key not in summary] == []
    assert len(summary["global_accuracy_per_client"]) == quick.clients
    assert [row["name"] for row in summary["per_class"]] == ["0", "1", "2", "3"]
    assert len((finished / "rounds.jsonl").read_text().splitlines()) == 2
    ET.fromstring((finished / "partition.svg").read_text())


def test_the_experiment_file_repeats_the_run(finished, tmp_path, crad_command):
    code, out, _ = crad_command("run", "-c", finished / "experiment.toml", "-o", tmp_path / "again", "--json")
    assert code == 0
    assert (
        json.loads(out)["global_accuracy_per_client"]
        == json.loads((finished / "summary.json").read_text())["global_accuracy_per_client"]
    )


def test_flags_win_over_the_file(quick_toml, tmp_path, crad_command):
    code, out, err = crad_command(
        "run", "-c", quick_toml, "--rounds", 1, "--method", "local", "-o", tmp_path / "run", "--json", "--quiet"
    )
    assert code == 0
    assert (json.loads(out)["rounds"], json.loads(out)["method"]) == (1, "local")
    assert err == ""


def test_quiet_prints_the_path_alone(quick_toml, tmp_path, crad_command):
    code, out, err = crad_command("run", "-c", quick_toml, "--rounds", 1, "-o", tmp_path / "run", "--quiet")
    assert (code, out.strip(), err) == (0, str(tmp_path / "run"), "")


def test_compare_shows_means_and_paired_differences_and_continues(quick_toml, tmp_path, crad_command):
    arguments = ("compare", "-c", quick_toml, "--methods", "local,crad", "--seeds", "1,2", "-o", tmp_path / "all")
    code, out, err = crad_command(*arguments)
    assert code == 0
    assert re.search(r"^\s+local\s+\d+\.\d\d ± \d+\.\d\d", out, re.MULTILINE)
    assert re.search(r"^\s+crad .* [+-]\d+\.\d\d ± \d+\.\d\d", out, re.MULTILINE)
    answer = json.loads((tmp_path / "all" / "comparison.json").read_text())
    said = answer["verdict"]["sentence"]
    assert " ".join(said.split()) in " ".join(out.split())
    assert said in (tmp_path / "all" / "comparison.md").read_text()
    assert answer["verdict"]["verdicts"][0]["seeds"] == [1, 2]
    assert "[4/4] crad, seed 2" in err
    rows = json.loads((tmp_path / "all" / "comparison.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["local", "crad"]
    assert rows[1]["difference"]["global_accuracy"]["values"] == pytest.approx(
        np.subtract(*[rows[i]["figures"]["global_accuracy"]["values"] for i in (1, 0)]).tolist()
    )
    partitions = {(tmp_path / "all" / f"{m}-seed1" / "partition.json").read_text() for m in ("local", "crad")}
    assert len(partitions) == 1, "identical partitions"
    before = (tmp_path / "all" / "crad-seed2" / "rounds.jsonl").stat().st_mtime_ns
    code, again, _ = crad_command(*arguments)
    assert (code, again) == (0, out)
    assert (tmp_path / "all" / "crad-seed2" / "rounds.jsonl").stat().st_mtime_ns == before


def test_compare_all_runs_the_rows_of_the_paper_and_marks_reconstructions(quick_toml, tmp_path, crad_command):
    small = "fedgd.generator_steps=1,fedgd.generator_batch=8,fedgd.transfer_size=12,fedmkd.mu=0.25"
    code, out, _ = crad_command(
        *("compare", "-c", quick_toml, "--methods", "all", "--rounds", 1, "--proxy-size", 24),
        *("--method-settings", small, "-o", tmp_path / "all"),
    )
    assert code == 0
    rows = [row["method"] for row in json.loads((tmp_path / "all" / "comparison.json").read_text())["rows"]]
    compared = ["fedmd", "fedgd", "msfkd", "dfml", "dfml (peak)", "fedmkd", "uniform", "uncertainty", "crad"]
    assert rows == ["local", *compared]
    verdicts = json.loads((tmp_path / "all" / "comparison.json").read_text())["verdict"]["verdicts"]
    assert [one["name"] for one in verdicts] == [name for name in compared if name != "dfml (peak)"]
    assert {one["kind"] for one in verdicts} == {"not shown"}, "one seed"
    assert re.search(r"^ *msfkd † ", out, re.MULTILINE)
    assert "†: our reconstruction, no public code" in " ".join(out.split())
    assert "mu = 0.25" in (tmp_path / "all" / "fedmkd-seed5" / "experiment.toml").read_text()
    assert "mu" not in (tmp_path / "all" / "crad-seed5" / "experiment.toml").read_text().split("[method_settings]")[-1]
    partitions = {path.read_text() for path in (tmp_path / "all").glob("*/partition.json")}
    assert len(partitions) == 1, "identical partitions"
    report = Page((tmp_path / "all" / "report.html").read_text()).text
    assert "--methods local,fedmd,fedgd,msfkd,dfml,fedmkd,uniform,uncertainty,crad" in report
    assert all(pair in report for pair in small.split(",")), "the line repeats it"


def test_a_run_held_against_training_alone_says_whether_joining_helped(quick_toml, tmp_path, crad_command):
    run = ("run", "-c", quick_toml, "--rounds", 1)
    assert crad_command(*run, "--method", "local", "-o", tmp_path / "alone", "-q")[0] == 0
    code, out, _ = crad_command(*run, "--method", "uniform", "-o", tmp_path / "a", "--against", tmp_path / "alone")
    assert code == 0
    words = " ".join(out.split())
    assert "In this run joining with uniform " in words
    assert "one seed shows no more than that." in words
    flags = ("--method", "uniform", "-o", tmp_path / "b", "--against", tmp_path / "alone", "--json", "-q")
    code, out, _ = crad_command(*run, *flags)
    assert (code, json.loads(out)["verdict"]["kind"]) == (0, "not shown")
    for other, path, words in (
        (("--seed", 99), "alone", "seed is 5 there and 99 here, so the clients differ"),
        ((), "a", "that is a run of 'uniform', expected one of 'local'"),
        ((), "none", "none"),
    ):
        code, out, err = crad_command(*run, *other, "-o", tmp_path / "c", "--against", tmp_path / path)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert words in err
        assert not (tmp_path / "c").exists()
    code, out, err = crad_command(
        *run, "-o", tmp_path / "c", "--train-limit", 60, "--against", tmp_path / "alone", "-q"
    )
    assert (code, out.strip()) == (0, str(tmp_path / "c")), "the run is kept"
    assert "crad: whether joining helped cannot be said:" in err


def test_compare_refuses_a_proxy_method_without_proxy_images_before_it_runs_another(quick_toml, tmp_path, crad_command):
    code, _, err = crad_command(
        *("compare", "-c", quick_toml, "--methods", "local,fedmd", "--proxy-size", 0, "-o", tmp_path / "all")
    )
    assert code == 2
    assert "method 'fedmd' learns on proxy samples: set proxy_size to at least 2" in err
    assert not (tmp_path / "all").exists()


def test_a_finished_run_with_an_older_summary_can_still_be_shown(finished, tmp_path, crad_command):
    shutil.copytree(finished, tmp_path / "old")
    summary = json.loads((tmp_path / "old" / "summary.json").read_text())
    for key in ("payload_counts", "is_reconstruction", "common_images", "published_bytes_per_client_round"):
        del summary[key]
    (tmp_path / "old" / "summary.json").write_text(json.dumps(summary))
    code, out, _ = crad_command("run", "--resume", tmp_path / "old")
    assert code == 0
    assert "sent per client and round" in out


def test_compare_wants_the_method_of_a_setting(quick_toml, tmp_path, crad_command):
    code, _, err = crad_command(
        *("compare", "-c", quick_toml, "--methods", "local,fedmkd", "--method-settings", "mu=0.3"),
        *("-o", tmp_path / "all"),
    )
    assert code == 2
    assert "'mu' names no compared method; write METHOD.mu=0.3 with one of local, fedmkd" in err
    assert not (tmp_path / "all").exists()


def test_explain_shows_every_teacher(finished, crad_command):
    code, out, _ = crad_command("explain", finished, "--student", 1, "--image", 3)
    assert code == 0
    assert "Student 1, test image 3" in out
    assert re.search(r"consensus \d+\.\d %, accepted", out)
    assert re.search(r"the target is \d+\.\d %, a uniform average would\s+say \d+\.\d %\. Of 3 teachers", out)
    assert len(re.findall(r"^ +[023] +cnn6@0.125", out, re.MULTILINE)) == 3
    code, out, _ = crad_command("explain", finished, "--json")
    success, failure = json.loads(out)
    assert code == 0
    assert success["target"] >= success["uniform"]
    for trace in (success, failure):
        assert sum(teacher["weight"] for teacher in trace["teachers"]) == pytest.approx(1, abs=1e-5)


def test_explain_agrees_with_the_public_function_on_the_stored_statistics(finished, crad_command):
    _, out, _ = crad_command("explain", finished, "--student", 0, "--image", 7, "--class", 2, "--json")
    (trace,) = json.loads(out)
    kept = [teacher for teacher in trace["teachers"] if teacher["state"] == "kept"]
    for teacher in kept:
        assert abs(teacher["probability"] - trace["consensus"]) <= trace["band"] + 1e-6


BAD_FLAGS = {
    "unknown data set": (["--dataset", "cifar11"], "unknown data set 'cifar11'. Did you mean 'cifar10'?"),
    "unknown method": (["--method", "crda"], "unknown method 'crda'. Did you mean 'crad'?"),
    "unknown preset": (["--preset", "minj"], "unknown preset 'minj'. Did you mean 'mini'?"),
    "unknown model": (["--models", "resnet-18"], "unknown model 'resnet-18'. Did you mean 'resnet18'"),
    "unknown flag": (["--alhpa", "1"], "--alhpa"),
    "alpha": (["--alpha", "0"], "alpha = '0'"),
    "alpha not a number": (["--alpha", "nan"], "alpha = 'nan'"),
    "rounds": (["--rounds", "0"], "rounds = '0'"),
    "active": (["--active", "9"], "active is 9, but there are only 4 clients"),
    "clients": (["--clients", "500"], "500 clients need at least 10 samples each"),
    "train limit": (["--train-limit", "100000"], "100000"),
    "width": (["--width", "-1"], "width = '-1'"),
    "unsupported": (["--unsupported", "maybe"], "unsupported = 'maybe'"),
    "device": (["--device", "cuda"], "device 'cuda' is not available"),
    "no data set": (["--dataset", ""], "dataset = ''"),
    "missing file": (["--dataset", "absent.npz"], "absent.npz"),
}


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS.values(), ids=BAD_FLAGS)
def test_bad_input_gets_one_line_exit_code_2_and_writes_nothing(quick_toml, tmp_path, crad_command, flags, message):
    import torch

    if flags == ["--device", "cuda"] and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    code, out, err = crad_command("run", "-c", quick_toml, "-o", tmp_path / "run", *flags)
    assert code == 2
    assert out == ""
    assert err.startswith("crad: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "run").exists()


def test_unknown_key_in_the_file_is_refused_with_the_nearest(tmp_path, crad_command):
    (tmp_path / "e.toml").write_text("alhpa = 1\n")
    code, _, err = crad_command("run", "-c", tmp_path / "e.toml")
    assert code == 2
    assert "unknown setting 'alhpa'. Did you mean 'alpha'?" in err


@pytest.mark.parametrize("fault", ["label", "shape", "corrupt", "keys"])
def test_bad_data_files_are_refused_by_name(quick_toml, tmp_path, tiny_npz, crad_command, fault):
    arrays = dict(np.load(tiny_npz))
    if fault == "label":
        arrays["train_labels"] = np.where(np.arange(240) == 17, -1, arrays["train_labels"])
    if fault == "shape":
        arrays["test_images"] = np.zeros((80, 9, 8), np.uint8)
    if fault == "keys":
        del arrays["test_labels"]
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    if fault == "corrupt":
        path.write_bytes(path.read_bytes()[:1000])
    code, _, err = crad_command("run", "-c", quick_toml, "--dataset", path, "-o", tmp_path / "run")
    assert code == 2
    assert err.count("\n") == 1
    assert "bad.npz" in err
    assert not (tmp_path / "run").exists()


def test_an_empty_class_folder_is_refused_by_name(quick_toml, tmp_path, crad_command):
    for name in ("cats", "dogs"):
        (tmp_path / "pets" / name).mkdir(parents=True)
    code, _, err = crad_command("run", "-c", quick_toml, "--dataset", tmp_path / "pets", "-o", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "cats" in err


def test_a_directory_of_another_experiment_is_never_touched(quick_toml, finished, crad_command):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    for flags, words in (
        ([], "this very experiment; continue it with crad run --resume"),
        (["--seed", "9"], "another experiment"),
    ):
        code, _, err = crad_command("run", "-c", quick_toml, "-o", finished, *flags)
        assert code == 2
        assert words in err
    code, _, err = crad_command("run", "--resume", finished, "--seed", "9")
    assert code == 2
    assert "leave out --seed" in err
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*")}


def test_resuming_what_is_no_run_says_so(tmp_path, crad_command):
    code, _, err = crad_command("run", "--resume", tmp_path)
    assert code == 2
    assert "is no run directory" in err


def test_explaining_a_run_without_a_rule_or_an_image_that_is_not_there(finished, quick_toml, tmp_path, crad_command):
    crad_command("run", "-c", quick_toml, "--method", "local", "--rounds", 1, "-o", tmp_path / "local", "--quiet")
    code, _, err = crad_command("explain", tmp_path / "local")
    assert code == 2
    assert "'local'" in err
    for flags, words in (
        (["--image", "80"], "image 80"),
        (["--student", "4"], "student 4"),
        (["--class", "1"], "--image"),
        (["--image", "1", "--class", "zebra"], "unknown class 'zebra'"),
        (["--image", "1", "--class", "99"], "class 99 does not exist"),
        (["--image", "one"], "unable to parse string as an integer. See crad --help."),
    ):
        code, _, err = crad_command("explain", finished, *flags)
        assert code == 2
        assert words in err
        assert err.count("\n") == 1


def test_explain_notices_changed_data_and_single_clients(quick, tmp_path, tiny_npz, crad_command, monkeypatch):
    monkeypatch.setattr("crad.api._check_peers", lambda *_: None)  # runs of one client were allowed before
    copy = tmp_path / "data.npz"
    copy.write_bytes(tiny_npz.read_bytes())
    for clients, words in ((2, "has changed since"), (1, "nothing to explain")):
        run = tmp_path / f"run{clients}"
        crad.run(change(quick, dataset=str(copy), rounds=1, clients=clients, seed=clients), output=run)
        if clients == 2:
            arrays = dict(np.load(copy))
            np.savez(copy, **{**arrays, "test_images": arrays["test_images"][::-1]})
        code, _, err = crad_command("explain", run)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err


@pytest.mark.parametrize("seeds", ["1,01", "1,x", ","])
def test_seeds_that_cannot_be_are_refused_before_any_training(quick_toml, tmp_path, crad_command, seeds):
    code, _, err = crad_command("compare", "-c", quick_toml, "--seeds", seeds, "-o", tmp_path / "all")
    assert (code, err.count("\n")) == (2, 1)
    assert f"--seeds {seeds!r}" in err
    assert not (tmp_path / "all").exists()


def test_a_path_the_system_refuses_gets_one_line(quick_toml, tmp_path, crad_command):
    code, _, err = crad_command("run", "-c", quick_toml, "-o", tmp_path / ("x" * 300))
    assert (code, err.count("\n")) == (2, 1)
    assert "too long" in err


def test_an_interrupted_comparison_says_how_to_continue_the_whole(quick_toml, tmp_path, monkeypatch, crad_command):
    def interrupt(*args, **kwargs):
        (tmp_path / "all" / "local-seed5").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("crad.api.run", interrupt)
    code, _, err = crad_command("compare", "-c", quick_toml, "-o", tmp_path / "all")
    assert code == 130
    assert f"continue with the same command and --output {tmp_path / 'all'}" in err


def test_own_model_and_own_method_by_import_path(quick_toml, tmp_path, monkeypatch, crad_command):
    (tmp_path / "my_parts.py").write_text(
        "from torch import nn\n"
        "from crad.methods.distillation import distillation_method\n"
        "def build(num_classes, in_channels):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_classes))\n"
        "METHOD = distillation_method('mine', 'uniform')\n"
    )
    monkeypatch.chdir(tmp_path)
    code, out, err = crad_command(
        "run", "-c", quick_toml, "--models", "my_parts:build,cnn6", "--method", "my_parts:METHOD", "-o", "run", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["architecture_per_client"][0] == "my_parts:build@0.125"
    code, out, err = crad_command("explain", "run", "--image", 0)
    assert (code, "Student 0, test image 0" in out) == (0, True), err


def test_a_faulty_model_of_ones_own_is_refused_before_anything_is_written(
    quick_toml, tmp_path, monkeypatch, crad_command
):
    (tmp_path / "faulty.py").write_text("from torch import nn\ndef build(n, c):\n    return nn.Flatten()\n")
    monkeypatch.chdir(tmp_path)
    code, _, err = crad_command("run", "-c", quick_toml, "--models", "faulty:build", "-o", "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "must give finite floats of shape [2, 4]" in err
    assert not (tmp_path / "run").exists()


def test_own_image_folder_runs_from_end_to_end(quick_toml, tmp_path, crad_command):
    from PIL import Image

    rng = np.random.default_rng(0)
    for label, name in enumerate(("benign", "malignant")):
        (tmp_path / "slides" / name).mkdir(parents=True)
        for i in range(40):
            pixels = rng.integers(0, 100, size=(12, 10, 3), dtype=np.uint8) + 120 * label
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "slides" / name / f"{i:02d}.png")
    code, out, err = crad_command(
        "run", "-c", quick_toml, "--dataset", tmp_path / "slides", "--clients", 2, "-o", tmp_path / "run", "--json"
    )
    assert code == 0, err
    assert [row["name"] for row in json.loads(out)["per_class"]] == ["benign", "malignant"]


def test_a_run_ends_with_its_page(finished):
    page = (finished / "report.html").read_text()
    assert "Accuracy over rounds" in page
    assert f"crad report {finished} LOCAL" in Page(page).text
    inspection = json.loads((finished / "inspection.json").read_text())
    assert inspection["images"][0]["png"] in page


def test_the_command_in_the_report_repeats_the_run(finished, tmp_path, crad_command):
    import html
    import shlex

    page = (finished / "report.html").read_text()
    *_, command = re.findall(r'<pre tabindex="0"><span>crad</span> (.*)</pre>', page)
    command = re.sub(r"</?span>", "", command)
    code, out, err = crad_command(*shlex.split(html.unescape(command)), "-o", tmp_path / "again", "--json")
    assert code == 0, err
    before, after = json.loads((finished / "summary.json").read_text()), json.loads(out)
    assert after["global_accuracy_per_client"] == before["global_accuracy_per_client"]
    assert (tmp_path / "again" / "experiment.toml").read_text() == (finished / "experiment.toml").read_text()
