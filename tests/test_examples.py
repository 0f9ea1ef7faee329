"""The examples do what they promise: they run as they are shown, in other processes too, and stay short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

import crad
from crad.config import to_toml
from crad.data import data_directory
from crad.errors import ConfigError, CradError
from crad.federation.context import build_run_context
from crad.network.agreement import read_agreement
from crad.site.local_peer import prepare_local_peer
from crad.site.settings import read_site
from examples.four_hospitals import run as four
from examples.hospitals import Hospitals
from examples.own_callback import LastOnes
from examples.three_hospitals.run import HOSPITALS, found_or_take_up
from tests.conftest import ROOT, change, hearing_ctrl_c
from tests.forked import WITHOUT, fork_or_start
from tests.test_golden import without_timing

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
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with fork_or_start(command, cwd=EXAMPLES, **pipes) as process:
        _, err = process.communicate(timeout=120)
    return process.returncode, err


def test_a_method_of_ones_own_takes_less_than_forty_lines():
    assert len((EXAMPLES / "own_method.py").read_text().splitlines()) < 40


def test_three_peers_in_memory_in_less_than_thirty_lines(tmp_path):
    pytest.importorskip("onnxscript")
    assert len((EXAMPLES / "in_memory.py").read_text().splitlines()) < 30
    model = tmp_path / "peer-0.onnx"
    command = [sys.executable, "examples/in_memory.py", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    result, predicted, path = done.stdout.splitlines()
    assert result.startswith("<Result crad, seed 1024 on object:arrays@")
    said, _, true = predicted.partition(" are ")
    assert said == true == "['left' 'right' 'left' 'right']"
    assert path == str(model)
    bright = np.full((1, 16, 16, 3), 60, np.uint8)
    bright[:, :, :8] += 90
    assert crad.load_model(model).predict(bright).tolist() == ["left"]


@pytest.mark.parametrize("method", ["examples.own_rule:METHOD", OWN_METHOD])
def test_an_example_runs_by_its_import_path(method, short, tmp_path):
    summary = crad.run(change(short, method=method), output=tmp_path / "run").summary
    assert summary["method"] == method
    assert summary["payload_bytes_per_client_round"] > 0


def test_a_callback_of_ones_own_says_who_is_last_and_changes_nothing(short, capsys):
    experiment = change(short, method="local")
    heard = crad.run(experiment, callbacks=[LastOnes()])
    assert heard.partition is not None
    lines = capsys.readouterr().out.splitlines()
    last = [min(record["clients"], key=lambda one: one["validation_accuracy"]) for record in heard.rounds]
    assert lines[:2] == [
        f"round {number}: client {one['client']} is last with {one['validation_accuracy']:.1f} %"
        for number, one in enumerate(last, start=1)
    ]
    counted = Counter(one["client"] for one in last)
    sizes = heard.partition["train"]
    assert lines[2:] == [
        f"client {client}, {sizes[client]} images to train on: last in {times} of 2"
        for client, times in counted.most_common()
    ]
    assert without_timing(crad.run(experiment).rounds) == without_timing(heard.rounds)


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
    for workers in (1, 2):  # two that the command starts; it is forked itself
        output = tmp_path / f"workers-{workers}"
        code, err = run_crad_in_examples(
            *("--config", tmp_path / "short.toml", "--method", "own_method:BestPeers", "--method-settings", "k=2"),
            *("--workers", workers, "--output", output, "--quiet"),
        )
        assert code == 0, err
        summaries.append(json.loads((output / "summary.json").read_text()))
    alone, together = (summary["global_accuracy_per_client"] for summary in summaries)
    assert alone == together
    assert summaries[1]["hardware"]["workers"] == 2


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("kk=2", "unknown setting of method 'own_method:BestPeers' 'kk'. Did you mean 'k'? Known: k"),
        ("k=0", "method 'own_method:BestPeers': k = 0: input should be greater than 0"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(setting, reason):
    done = run_crad_in_examples("--preset", "demo", "--method", "own_method:BestPeers", "--method-settings", setting)
    assert done == (2, f"crad: {reason}\n")


@contextmanager
def three_hospitals(folder, *words):
    command = [
        sys.executable,
        "examples/three_hospitals/run.py",
        "--dataset",
        "digits",
        "--folder",
        str(folder),
        *words,
    ]
    # As on a machine without the extra `onnx`: that export takes longer than all the rest.
    without = folder.parent / "without"
    without.mkdir(exist_ok=True)
    (without / "sitecustomize.py").write_text("import sys\nsys.modules['onnx'] = None\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(without), os.environ.get("PYTHONPATH", "")])}
    with hearing_ctrl_c():
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    with ended(started) as process:
        yield process


@contextmanager
def three_hospitals_forked(folder, *words):
    """The same in a process that is forked, as its hospitals are."""
    code = (
        "import subprocess, sys, types; from tests.forked import fork_or_start; "
        "from examples import hospitals; from examples.three_hospitals import run; "
        "hospitals.subprocess = types.SimpleNamespace(**{**vars(subprocess), 'Popen': fork_or_start}); "
        f"sys.argv = ['run.py', '--dataset', 'digits', '--folder', {str(folder)!r}, *{words!r}]; sys.exit(run.main())"
    )
    env = {**os.environ, WITHOUT: "onnx"}
    started = fork_or_start(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=env
    )
    with ended(started) as process:
        yield process


@contextmanager
def ended(started):
    with started as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # it ends its hospitals first


def participants(folder):
    return {path.parts[-4]: json.loads(path.read_text()) for path in folder.glob("*/state/*/participant.json")}


def test_three_hospitals_end_with_one_ctrl_c_and_go_on_with_the_same_command(tmp_path):
    folder = tmp_path / "hospitals"
    with three_hospitals(folder, "--rounds", "2") as first:
        assert any("| round 1/2" in line for line in iter(first.stdout.readline, ""))
        running = [json.loads(path.read_text())["process"] for path in folder.glob("*/state/*/status.json")]
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=60)
    assert (first.returncode, err) == (130, "Stopped. The same command continues.\n")
    assert len(running) == 3
    for process in running:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)

    with three_hospitals_forked(folder, "--rounds", "2") as again:
        out, err = again.communicate(timeout=200)  # less than the agreed deadline: nobody waits for it in vain
    assert (again.returncode, err) == (0, "")
    assert "crad data split" not in out, "what was founded is taken up"
    assert out.count("Report of ") == 3
    for name, outcome in participants(folder).items():
        assert outcome["last_round"] == 2  # one that was behind may have gone on where the others were
        row = next(line for line in out.splitlines() if line.split()[:1] == [name] and "|" not in line)
        assert f"{name:<5} | no model.onnx: " in out
        shown = [f"{outcome[which]['local_accuracy']:.2f}" for which in ("alone", "federated")]
        assert row.split()[-3:] == [*shown, f"{outcome['difference']:+.2f}"]


def test_three_hospitals_with_a_bucket_agree_on_it_and_other_wishes_are_refused(tmp_path):
    folder = tmp_path / "hospitals"
    agreement = found_or_take_up(folder, rounds=1, is_bucket=True, dataset="digits")
    assert agreement.exchange == f"file://{folder}/bucket"
    assert [member.architecture for member in agreement.members] == list(HOSPITALS.values())
    assert found_or_take_up(folder, rounds=1, is_bucket=True, dataset="digits") == agreement
    for rounds, is_bucket in ((1, False), (2, True)):
        with pytest.raises(ConfigError, match="has a federation of 1 rounds over a bucket: choose another --folder"):
            found_or_take_up(folder, rounds=rounds, is_bucket=is_bucket, dataset="digits")


def test_three_hospitals_leave_nothing_half_made_and_touch_nothing_of_others(tmp_path):
    with pytest.raises(CradError):
        found_or_take_up(tmp_path / "new", rounds=0, is_bucket=False, dataset="digits")
    assert not (tmp_path / "new").exists()
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty and holds no federation"):
        found_or_take_up(tmp_path, rounds=1, is_bucket=False, dataset="digits")
    assert (tmp_path / "letter.txt").read_text() == "mine"


def four_hospitals(folder):
    return Hospitals(four.FEDERATION, four.HOSPITALS, folder / "four")


def test_four_hospitals_have_the_rows_of_the_simulation_whatever_their_files_look_like(tmp_path):
    heart = data_directory() / "heart.csv"
    if not heart.is_file():
        pytest.skip(f"{heart} is not here: set CRAD_DATA")
    hospitals = four_hospitals(tmp_path)
    four.found(hospitals, heart=heart, rounds=2, is_bucket=False)
    agreement = read_agreement(hospitals.agreement_file)
    assert (agreement.committee, agreement.rounds) == (True, 2)
    header = (hospitals.folder / "hungarian" / "hungarian.csv").read_text().partition("\n")[0]
    assert header.startswith("kor,RR,")
    simulated = build_run_context(four.simulation_of(agreement, heart)).data
    for number, name in enumerate(four.HOSPITALS):
        own = prepare_local_peer(agreement, read_site(hospitals.folder / name / "peer.toml")).context.data
        assert own.dataset.columns[0].name == simulated.dataset.columns[0].name == "age"
        for half in ("train", "validation", "test"):
            rows, expected = (
                (one.dataset.train_samples[where], one.dataset.train_labels[where])
                for one, where in ((one, getattr(one.shards[number], half)) for one in (own, simulated))
            )
            np.testing.assert_array_equal(rows[0], expected[0])
            np.testing.assert_array_equal(rows[1], expected[1])


def test_four_hospitals_say_where_the_data_should_be(tmp_path, capsys, monkeypatch):
    words = ["run.py", "--folder", str(tmp_path / "four"), "--data", str(tmp_path / "heart.csv")]
    monkeypatch.setattr(sys, "argv", words)
    assert four.main() == 2
    assert capsys.readouterr().err.startswith(f"four_hospitals: {tmp_path}/heart.csv is not here: set CRAD_DATA to the")
    assert not (tmp_path / "four").exists()
