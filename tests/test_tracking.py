"""TensorBoard and MLflow hold the numbers of `rounds.jsonl`, each round once, whatever happens in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import crad
from crad.cli import main
from crad.config import Experiment, to_toml
from crad.errors import install_hint
from crad.results.result import Result
from crad.runs.callbacks import Callback, LambdaCallback
from crad.runs.directory import RunDirectory
from crad.runs.records import Record
from crad.runs.tracking.mlflow import MLflowLog
from crad.runs.tracking.scalars import hyperparameters, round_scalars, summary_scalars
from crad.runs.tracking.tensorboard import TensorBoardLog
from crad.runs.tracking.tracker import LogError, Tracker
from tests.conftest import change

Steps = dict[str, dict[int, float]]  # by name and step


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


@pytest.fixture(scope="module")
def quick(tiny) -> Experiment:
    return change(tiny, rounds=3, eval_every=2, models=("cnn6",), clients=3, committee=True)


@pytest.fixture(scope="module")
def quick_toml(quick, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("toml") / "experiment.toml"
    path.write_text(to_toml(quick))
    return path


@pytest.fixture(scope="module")
def tracked(quick_toml, tmp_path_factory) -> Path:
    """A run that the real command has logged in both ways."""
    path: Path = tmp_path_factory.mktemp("tracked") / "a run #1"
    command = [sys.executable, "-m", "crad", "run", "-c", str(quick_toml), "-o", str(path), "--quiet"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    done = subprocess.run(
        [*command, "--tensorboard", "--mlflow"], capture_output=True, text=True, timeout=300, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}\n", ""), "quiet, also what the packages say"
    return path


def in_tensorboard(path: Path) -> Steps:
    """Every scalar in the event files; a step that stands there twice is an error."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(path / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: once([(one.step, one.value) for one in found.Scalars(tag)]) for tag in found.Tags()["scalars"]}


def client_of(store: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{store / 'mlruns' / 'mlflow.db'}")


def in_mlflow(path: Path, store: Path) -> Steps:
    client = client_of(store)
    run_id = json.loads((path / "mlflow.json").read_text())["run_id"]
    names = client.get_run(run_id).data.metrics
    return {name: once([(one.step, one.value) for one in client.get_metric_history(run_id, name)]) for name in names}


def once(pairs: list[tuple[int, float]]) -> dict[int, float]:
    assert len({step for step, _ in pairs}) == len(pairs), "no round twice"
    return dict(pairs)


def expected(path: Path) -> Steps:
    """What a log of the run must hold, from its own files."""
    found: Steps = {}
    for record in RunDirectory(path).rounds():
        for name, value in round_scalars(record).items():
            found.setdefault(name, {})[record["round"]] = value
    summary = RunDirectory(path).summary()
    return found | {name: {summary["best_round"]: value} for name, value in summary_scalars(summary).items()}


def assert_equal(found: Steps, wanted: Steps, *, digits: float) -> None:
    assert set(found) == set(wanted)
    for name, steps in wanted.items():
        assert found[name] == pytest.approx(steps, rel=digits), name


def test_tensorboard_holds_every_number_of_the_rounds_and_the_summary(tracked):
    assert_equal(in_tensorboard(tracked), expected(tracked), digits=1e-6)  # it keeps 32 bits


def test_mlflow_holds_every_number_of_the_rounds_and_the_summary(tracked):
    assert_equal(in_mlflow(tracked, tracked), expected(tracked), digits=0)


def test_mlflow_holds_the_settings_and_the_files(tracked):
    client = client_of(tracked)
    run = client.get_run(json.loads((tracked / "mlflow.json").read_text())["run_id"])
    assert client.get_experiment(run.info.experiment_id).name == "crad"
    settings = RunDirectory(tracked).experiment()
    assert run.data.params == {name: str(value) for name, value in hyperparameters(settings).items()}
    assert (run.info.status, run.info.run_name) == ("FINISHED", "a run #1")
    names = {"experiment.toml", "report.html", "summary.json"}
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == names
    folder = tracked / "mlruns" / "artifacts" / run.info.run_id / "artifacts"
    for name in names:
        assert (folder / name).read_bytes() == (tracked / name).read_bytes()


def test_tensorboard_holds_the_settings(tracked):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    found = EventAccumulator(str(tracked / "tensorboard"))
    found.Reload()
    content = found.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    settings = parse_session_start_info_plugin_data(content).hparams
    assert settings["lr"].number_value == 0.01
    assert settings["method"].string_value == "crad"
    assert settings["augment"].bool_value is True
    assert settings["active"].string_value == "none"


def test_logging_changes_no_figure(tracked, quick, tmp_path):
    plain = crad.run(quick, output=tmp_path / "plain")
    without_clock = [{**record, "timing": None} for record in plain.rounds]
    assert [{**record, "timing": None} for record in RunDirectory(tracked).rounds()] == without_clock


def test_scalars_of_a_round_are_named_by_their_place_in_the_record():
    clients = [
        {"client": 0, **accuracies(10.0, None, None), "losses": {"total": 1.0, "distillation": 4.0}},
        {"client": 7, **accuracies(30.0, None, None), "losses": {"total": 2.0}},
    ]
    record = {
        "round": 3,
        **accuracies(20.0, None, None),
        "variants": {"peak": accuracies(21.0, 22.0, None)},
        "clients": clients,
        "payload_bytes": 12,
        "timing": {"seconds": 0.5, "peak_memory_bytes": 99},
    }
    assert round_scalars(record) == {
        "validation_accuracy": 20.0,
        "losses/total": 1.5,
        "losses/distillation": 4.0,
        "payload_bytes": 12,
        "timing/seconds": 0.5,
        "timing/peak_memory_bytes": 99,
        "variants/peak/validation_accuracy": 21.0,
        "variants/peak/global_accuracy": 22.0,
        "client/0/validation_accuracy": 10.0,
        "client/7/validation_accuracy": 30.0,
    }


def accuracies(validation: float, overall: float | None, local: float | None) -> Record:
    return {"validation_accuracy": validation, "global_accuracy": overall, "local_accuracy": local}


def test_settings_are_one_value_each():
    found = hyperparameters(Experiment(method="fedmkd", method_settings={"mu": 0.3}, models=("cnn6", "resnet18")))
    assert (found["method_settings.mu"], found["models"], found["train_limit"]) == (0.3, "cnn6,resnet18", "none")


def run_followed(
    experiment: Experiment, path: Path, followers: list[Callback], *extra: Callback, resume: bool
) -> Result:
    """As the command does it."""
    try:
        return crad.run(experiment, output=path, resume=resume, callbacks=[*followers, *extra])
    finally:
        for follower in followers:
            follower.close()


def trackers(store: Path, notices: list[str]) -> list[Callback]:
    return [Tracker(log, notice=notices.append) for log in (TensorBoardLog(), MLflowLog(store))]


class StoppedError(Exception):
    pass


def stop_at(round_index: int) -> Callback:
    def stop(record: Record) -> None:
        if record["round"] == round_index:
            raise StoppedError

    return LambdaCallback(on_round=stop)


def test_a_resumed_run_is_logged_without_a_gap_and_without_a_round_twice(quick, tracked, tmp_path):
    path, notices = tmp_path / "run", list[str]()
    store = tracked  # several runs share one, as those of a comparison do
    with pytest.raises(StoppedError):  # round 1 is complete, and nobody was following
        run_followed(quick, path, [], stop_at(1), resume=False)
    with pytest.raises(StoppedError):
        run_followed(quick, path, trackers(store, notices), stop_at(2), resume=True)
    run_id = json.loads((path / "mlflow.json").read_text())["run_id"]
    assert client_of(store).get_run(run_id).info.status == "KILLED"
    assert list(in_tensorboard(path)["payload_bytes"]) == [1, 2]
    for _ in range(2):  # the second time the run is complete, and its log too
        run_followed(quick, path, trackers(store, notices), resume=True)
    assert_equal(in_tensorboard(path), expected(path), digits=1e-6)
    assert_equal(in_mlflow(path, store), expected(path), digits=0)
    assert client_of(store).get_run(run_id).info.status == "FINISHED"
    assert notices == []


class ShakyLog:
    """A log on a server that is away for some calls."""

    name = "shaky"

    def __init__(self, failing: set[int]) -> None:
        self.failing, self.calls = failing, 0
        self.rounds: list[int] = []
        self.outcomes = 0

    def _call(self) -> None:
        self.calls += 1
        if self.calls in self.failing:
            raise LogError("no route")

    def open(self, directory: RunDirectory) -> set[int]:
        self._call()
        return set(self.rounds)

    def log_round(self, record: Record) -> None:
        self._call()
        self.rounds.append(record["round"])

    def end(self, directory: RunDirectory, summary: Record) -> None:
        self._call()
        self.outcomes += 1

    def close(self) -> None:
        pass


@pytest.mark.parametrize("failing", [{1}, {2}, {3}, {1, 2}, {4}, {1, 3}])
def test_a_log_that_was_away_misses_nothing(failing, tracked):
    log, notices = ShakyLog(failing), list[str]()
    follow_again(tracked, log, notices)
    assert (log.rounds, log.outcomes) == ([1, 2, 3], 1)
    assert notices[0] == "shaky: a round could not be logged (no route); the run goes on and tries again"
    assert notices[-1] == "shaky: logging again, nothing is missing"


def test_a_log_that_stays_away_is_said_once_and_at_the_end_with_what_to_do(tracked):
    log, notices = ShakyLog(set(range(99))), list[str]()
    follow_again(tracked, log, notices)
    assert len(notices) == 2
    assert notices[1].startswith("shaky: the log is not complete (no route); crad run --resume ")


def follow_again(path: Path, log: ShakyLog, notices: list[str]) -> None:
    """Tell a tracker of a complete run round by round, as if it went on now."""
    directory = RunDirectory(path)
    rounds, tracker = directory.rounds(), Tracker(log, notice=notices.append)
    tracker.on_run_begin(directory.experiment(), path)
    for record in rounds:
        tracker.on_round(record)
    tracker.on_run_end(Result(directory.experiment(), directory.summary(), rounds, path))


@pytest.mark.parametrize(("flag", "package"), [("--tensorboard", "tensorboard"), ("--mlflow", "mlflow")])
def test_a_missing_package_is_one_line_before_anything_is_written(
    flag, package, quick_toml, tmp_path, monkeypatch, capsys
):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    said = refused(quick_toml, tmp_path / "run", flag, monkeypatch, capsys)
    assert said.endswith(f": {install_hint('tracking')}\n")


def test_a_server_that_does_not_answer_is_one_line_before_anything_is_written(
    quick_toml, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    line = refused(quick_toml, tmp_path / "run", "--mlflow", monkeypatch, capsys)
    assert line.startswith("crad: --mlflow: MLFLOW_TRACKING_URI cannot be used (")
    assert line.endswith("; fix it, or unset it for one in the output\n")


def refused(toml: Path, path: Path, flag: str, monkeypatch: Any, capsys: Any) -> str:
    """The one line that the command ends with, having written nothing."""
    monkeypatch.setattr(sys, "argv", ["crad", "run", "-c", str(toml), "-o", str(path), flag])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
    assert not path.exists()
    return str(err)
