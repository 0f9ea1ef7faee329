"""`crad data` as a person and as a program sees it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from crad.cli.data import app
from crad.data.catalog import DATASETS, Archive
from crad.errors import DataError


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("CRAD_DATA", str(tmp_path))
    images, labels = np.zeros((4, 28, 28, 3), np.uint8), np.arange(4)
    path = tmp_path / "pathmnist.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return tmp_path


def run(*arguments, fails=False):
    result = CliRunner().invoke(app, list(arguments))
    if not fails:
        assert result.exit_code == 0, result.output
    return result


def test_list_shows_what_is_here_and_how_to_get_the_rest(data_dir):
    lines = run("list").stdout.splitlines()
    by_name = {line.split()[0]: line for line in lines if line.split()}
    assert "here: pathmnist.npz" in by_name["pathmnist"]
    assert "crad data fetch cifar10" in by_name["cifar10"]
    assert by_name["digits"].rstrip().endswith("here")
    assert str(data_dir) in lines[-1].replace("\n", "")


def test_the_columns_of_the_list_line_up(data_dir):
    rows = [line for line in run("list").stdout.splitlines() if "crad data fetch" in line or "here" in line]
    states = [max(line.find("here"), line.find("crad data fetch")) for line in rows]
    assert len(rows) == len(DATASETS)
    assert len(set(states)) == 1


def test_a_missing_package_is_named_in_the_list_with_its_brackets(data_dir, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install '.[demo]'" in run("list").stdout
    assert "pip install '.[mnist5k]'" in run("list").stdout


def test_list_as_json_is_complete(data_dir):
    answer = json.loads(run("list", "--json").stdout)
    assert answer["data_dir"] == str(data_dir)
    states = {row["name"]: row["available"] for row in answer["datasets"]}
    embedded = {"digits": True, "mnist5k": True, "breast-cancer": True}
    files = dict.fromkeys(("heart", "agnews", "fsdd"), False)
    assert states == {"cifar10": False, "cifar100": False, "pathmnist": True, **embedded, **files}


def test_check_says_which_file_and_what_it_holds(data_dir):
    output = run("check", "pathmnist").stdout
    for part in (data_dir / "pathmnist.npz", "not the official file", "28x28x3", "train images"):
        assert str(part) in output


def test_check_as_json_can_be_read_by_a_program(data_dir):
    answer = json.loads(run("check", "pathmnist", "--json").stdout)
    assert (answer["official"], answer["num_classes"], answer["shape"]) == (False, 9, [28, 28, 3])


def test_check_reads_labels_as_a_run_does(tmp_path):
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array(["cat", "dog", "cat", "dog"])
    np.savez(tmp_path / "pets.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    assert json.loads(run("check", str(tmp_path / "pets.npz"), "--json").stdout)["num_classes"] == 2


def test_check_warns_of_a_class_that_only_the_test_images_have(tmp_path):
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array(["cat", "dog", "cat", "dog"])
    arrays: dict[str, Any] = {"train_images": images, "train_labels": labels, "test_images": images}
    np.savez(tmp_path / "pets.npz", **arrays, test_labels=np.array(["cat", "dgo", "cat", "dog"]))
    warning = "pets: class 'dgo' occurs only in the test set, so no client can learn it: is a label misspelt?"
    done = run("check", str(tmp_path / "pets.npz"))
    assert done.stderr == f"crad: {warning}\n"
    assert "warning" not in done.stdout
    assert json.loads(run("check", str(tmp_path / "pets.npz"), "--json").stdout)["warning"] == warning
    np.savez(tmp_path / "five.npz", **arrays | {"train_labels": np.zeros(4, int)}, test_labels=np.array([1, 2, 3, 4]))
    said = run("check", str(tmp_path / "five.npz")).stderr
    assert said.startswith("crad: five: classes '1', '2', '3' and 1 more occur only in the test set")
    np.savez(tmp_path / "fine.npz", **arrays, test_labels=labels)
    assert run("check", str(tmp_path / "fine.npz")).stderr == ""


def test_the_data_directory_can_be_named(data_dir, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    result = run("check", "pathmnist", "--data-dir", str(elsewhere), fails=True)
    assert isinstance(result.exception, DataError)
    assert str(elsewhere) in str(result.exception)


@pytest.fixture
def toy(data_dir, monkeypatch):
    """An archive that is already there, so that no server is needed."""
    (data_dir / "toy.tar.gz").write_bytes(b"content")
    archive = Archive("toy.tar.gz", "http://127.0.0.1:1/", md5=hashlib.md5(b"content").hexdigest(), size_bytes=7)
    monkeypatch.setitem(DATASETS, "toy", replace(DATASETS["cifar10"], name="toy", archives=(archive,)))
    return data_dir / "toy.tar.gz"


def test_fetch_says_where_the_file_is(toy):
    assert f"toy is in {toy}" in run("fetch", "toy").stdout
    assert json.loads(run("fetch", "toy", "--json").stdout) == {"name": "toy", "path": str(toy)}


@pytest.mark.parametrize("total", [50_000_000, None])
def test_progress_off_a_terminal_is_a_few_plain_lines_on_stderr(toy, monkeypatch, total):
    def pretend(name, *, data_dir, url, on_progress):
        for done in range(0, 50_000_001, 100_000):
            on_progress(done, total)
        return toy

    monkeypatch.setattr("crad.data.fetch.fetch", pretend)
    result = run("fetch", "toy", "--json")
    assert json.loads(result.stdout)["name"] == "toy"
    lines = result.stderr.splitlines()
    assert 5 <= len(lines) <= 12
    assert lines[-1] == ("toy: 50.0 of 50.0 MB" if total else "toy: 50.0 MB")


def test_progress_on_a_terminal_is_a_bar_with_the_time_left(toy, monkeypatch):
    def pretend(name, *, data_dir, url, on_progress):
        on_progress(7, 7)
        return toy

    monkeypatch.setattr("crad.data.fetch.fetch", pretend)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "0:00:00" in run("fetch", "toy").stderr


@pytest.mark.parametrize("command", ["list", "fetch", "check"])
def test_every_command_has_help_with_an_example(command):
    output = run(command, "--help").output
    assert f"Example: crad data {command}" in output
    assert "--json" in output
