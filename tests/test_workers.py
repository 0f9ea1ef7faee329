"""Worker processes: the same weights as one process, whatever happens to the workers, and none is left behind.

Most are forked here (tests/forked.py). They are started as users start them in the test of two workers, and in the one
that kills the command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import crad
from crad.config import Experiment, to_toml
from crad.engines import count_cores, count_workers, make_engine
from crad.engines.patient import START_SECONDS, PatientEngine
from crad.engines.processes import MAX_DEATHS, ProcessEngine, _Worker, kept_workers
from crad.engines.serial import SerialEngine
from crad.engines.task_json import outcome_from_bytes, outcome_to_bytes, task_from_bytes, task_to_bytes
from crad.errors import ConfigError, RunError
from crad.federation.context import build_run_context
from crad.federation.message import Message
from crad.federation.method import Learned
from crad.federation.peer_evaluation import ClassScore, Evaluation
from crad.federation.tasks import Task, TaskOutcome
from crad.methods import resolve_method
from crad.runs.callbacks import LambdaCallback
from tests.conftest import change, hearing_ctrl_c
from tests.forked import fork_or_start, templates
from tests.test_resume import assert_same_end


@pytest.fixture(scope="module")
def experiment(tiny) -> Experiment:
    return change(tiny, rounds=2, active=3, eval_every=2)


@pytest.fixture(scope="module")
def alone(experiment, tmp_path_factory) -> Path:
    """The run in one process."""
    path: Path = tmp_path_factory.mktemp("alone") / "run"
    crad.run(experiment, output=path)
    return path


@pytest.fixture(scope="module")
def small(shallow) -> Experiment:
    """The same with networks that are not deep, for what happens to workers whatever they compute."""
    return change(shallow, rounds=2, active=3, eval_every=2)


@pytest.fixture(scope="module")
def small_alone(small, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("small-alone") / "run"
    crad.run(small, output=path)
    return path


BEFORE: set[int] = set()  # what other tests have started and left, such as the server that members are forked from


@pytest.fixture(autouse=True)
def _nobody_elses_children() -> None:
    BEFORE.clear()
    BEFORE.update(children(os.getpid()))


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are still there, but for the template of others."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(status.parent.name))
    return [one for one in found if one not in templates() | BEFORE]


def wait_until(condition, *, seconds: float = 60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


FORKED = pytest.mark.usefixtures("forked_workers")


def test_two_workers_give_the_weights_and_records_of_one(experiment, alone, tmp_path):
    result = crad.run(change(experiment, workers=2), output=tmp_path / "run")
    assert_same_end(tmp_path / "run", alone)
    assert result.summary["hardware"]["workers"] == 2
    assert not children(os.getpid())


@FORKED
def test_killed_workers_are_replaced_and_their_clients_done_again(small, small_alone, tmp_path):
    """One while it works, one before it is asked; the run ends as if nothing had happened."""
    notices: list[str] = []
    killed: list[int] = []

    def kill(step):
        if len(killed) < 2 and step.stage == "learning":
            pid = children(os.getpid())[-len(killed)]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    crad.run(
        change(small, workers=2),
        output=tmp_path / "run",
        callbacks=[LambdaCallback(on_step=kill, on_notice=notices.append)],
    )
    assert len(killed) == 2
    assert_same_end(tmp_path / "run", small_alone)
    assert len(notices) == 2
    assert all("signal 9" in notice for notice in notices)
    assert not children(os.getpid())


@FORKED
def test_a_client_that_kills_every_worker_ends_the_run_with_a_clear_line(shallow, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(
        "import os\n"
        "from crad.federation.method import Method, Phase\n"
        "def learn(peer, messages, context):\n"
        "    os.kill(os.getpid(), 9)\n"
        "METHOD = Method('deadly', (Phase('alone', learn=learn),))\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=rf"a worker died .* \(signal 9\), {MAX_DEATHS} times .* use fewer workers"):
        crad.run(change(shallow, method="deadly:METHOD", clients=2, workers=2))
    assert not children(os.getpid())


@FORKED
def test_what_a_worker_raises_is_raised_here(shallow, tmp_path, monkeypatch):
    with pytest.raises(RunError, match=r"client \d .* diverged in round \d.*lower lr"):
        crad.run(change(shallow, method="local", lr=1e20, workers=2))
    (tmp_path / "faulty_worker.py").write_text(
        "from crad.federation.method import Method, Phase\n"
        "def learn(peer, messages, context):\n"
        "    raise LookupError('the cause of it')\n"
        "METHOD = Method('faulty_worker', (Phase('alone', learn=learn),))\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"(?s)a worker failed.*learn.*LookupError: the cause of it"):
        crad.run(change(shallow, method="faulty_worker:METHOD", clients=2, workers=2))
    (tmp_path / "full_worker.py").write_text(
        (tmp_path / "faulty_worker.py").read_text().replace("LookupError(", "OSError(28, ")
    )
    with pytest.raises(RunError, match=r"the cause of it.*crad run --resume"):
        crad.run(change(shallow, method="full_worker:METHOD", clients=2, workers=2), output=tmp_path / "run")
    assert not children(os.getpid())


@FORKED
@pytest.mark.parametrize(
    ("number", "start"),
    [(signal.SIGINT, fork_or_start), (signal.SIGTERM, fork_or_start), (signal.SIGKILL, subprocess.Popen)],
    ids=["ctrl-c", "term", "kill"],
)
def test_no_worker_outlives_the_command(small, tmp_path, number, start):
    (tmp_path / "experiment.toml").write_text(to_toml(change(small, workers=2, rounds=50)))
    command = [sys.executable, "-m", "crad", "run", "--config", "experiment.toml", "--output", "run"]
    with (tmp_path / "log").open("w") as log, hearing_ctrl_c():
        process = start(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        rounds = tmp_path / "run" / "rounds.jsonl"
        wait_until(lambda: rounds.is_file() and rounds.read_text().count("\n") >= 1)
        workers = children(process.pid)
        assert len(workers) == 2
        process.send_signal(number)
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), seconds=10)
    log_text = (tmp_path / "log").read_text()
    assert "Traceback" not in log_text, log_text


@FORKED
def test_a_run_begun_with_two_workers_is_continued_by_one(small, small_alone, tmp_path):
    def stop(step):
        if step.stage == "learning" and step.round_index == 2:
            raise KeyError

    with pytest.raises(KeyError):
        crad.run(change(small, workers=2), output=tmp_path / "run", callbacks=[LambdaCallback(on_step=stop)])
    crad.run(small, output=tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", small_alone)


@FORKED
def test_runs_of_one_comparison_share_their_workers(small, small_alone, tmp_path):
    """Another method and other data in between: what a worker did before must not show."""
    pids = []

    def note(step):
        pids.append(tuple(sorted(children(os.getpid()))))

    with kept_workers():
        for name, settings in (("other", {"method": "local", "seed": 6}), ("run", {})):
            again = change(small, workers=2, **settings)
            crad.run(again, output=tmp_path / name, callbacks=[LambdaCallback(on_step=note)])
    assert len(set(pids)) == 1
    assert_same_end(tmp_path / "run", small_alone)
    assert not children(os.getpid())


@FORKED
def test_the_longest_tasks_are_begun_first(shallow, tmp_path, monkeypatch):
    given: list[int] = []
    give = sys.modules["crad.engines.processes"]._Worker.give

    def spy(worker, task):
        given.append(task.peer)
        give(worker, task)

    monkeypatch.setattr("crad.engines.processes._Worker.give", spy)
    engine = ProcessEngine(build_run_context(shallow), workers=1)
    try:
        tasks = [Task("begin", peer, cost=cost) for peer, cost in enumerate([2.0, 9.0, 0.5, 4.0])]
        outcomes = list(engine.each(tasks))
    finally:
        engine.close()
    assert given == [1, 3, 0, 2]
    assert [outcome.peer for outcome in outcomes] == given


@FORKED
def test_an_engine_goes_on_after_its_user_lost_interest(shallow):
    """The outcomes that nobody wanted must not be taken for those of the next tasks."""
    engine = ProcessEngine(build_run_context(shallow), workers=2)
    try:
        next(engine.each([Task("begin", peer) for peer in range(4)]))
        outcomes = list(engine.each([Task("begin", peer) for peer in (3, 2)]))
    finally:
        engine.close()
    assert sorted(outcome.peer for outcome in outcomes) == [2, 3]


def test_tasks_and_outcomes_survive_the_wire_exactly(tmp_path):
    score = ClassScore((3, 0), (1, 0), (0.1 + 0.2, 1e-300))
    evaluation = Evaluation((score,), None, score, {"peak": Evaluation((score,))})
    body = tmp_path / "body"
    body.write_bytes(b"abc")
    message = Message(b'{"\xff\x00', b"abc", body)
    task = Task("learn", 3, evaluation, tmp_path / "s", 7, 1, {2: message}, True, tmp_path / "to", receiver=5)
    again = task_from_bytes(task_to_bytes(task))
    assert (again.messages[2].manifest, bytes(again.messages[2].body)) == (message.manifest, b"abc")
    assert {**vars(again), "messages": None} == {**vars(task), "messages": None}
    learned = Learned({"total": 1 / 3}, {2: [0.5, 0.25]}, {"refused": {"1": "why"}}, {"a.png": b"\x89\xff"})
    outcome = TaskOutcome("learn", 3, evaluation, learned, b"\xfe{", None, 0.25, 12345, receiver=4)
    assert outcome_from_bytes(outcome_to_bytes(outcome)) == outcome


def test_how_many_workers_a_run_gets(tiny, monkeypatch):
    def workers(**settings):
        return count_workers(build_run_context(change(tiny, **settings)))

    monkeypatch.setattr("crad.engines.count_cores", lambda: 3)
    assert count_cores() >= 1
    assert workers(workers="auto") == 3
    assert workers(workers="auto", clients=2) == 2
    assert workers(workers="auto", active=1) == 1
    assert workers(workers=8) == 4
    assert workers(workers="auto", engine="serial") == 1
    context = build_run_context(tiny)
    assert isinstance(make_engine(context, resolve_method("crad")), SerialEngine)


# --- workers only where they pay for themselves


class Clock:
    """Every look at it is so many seconds later."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def patient_run(shallow, monkeypatch, *, seconds, **settings):
    """A run whose every task takes so many seconds; the result, and how many workers were started."""
    started = []
    monkeypatch.setattr("crad.engines.count_cores", lambda: 2)
    monkeypatch.setattr(PatientEngine.__init__, "__kwdefaults__", {"clock": Clock(seconds)})
    begin = _Worker.__init__

    def counted(worker, gpu=None):
        started.append(worker)
        begin(worker)

    monkeypatch.setattr(_Worker, "__init__", counted)
    return crad.run(change(shallow, workers="auto", rounds=2, **settings)), len(started)


def test_a_short_run_starts_no_worker(shallow, monkeypatch):
    result, started = patient_run(shallow, monkeypatch, seconds=0.01)
    assert (started, result.summary["hardware"]["workers"]) == (0, 1)


@FORKED
def test_a_longer_run_starts_workers_in_its_midst_and_ends_with_the_same_figures(shallow, monkeypatch):
    result, started = patient_run(shallow, monkeypatch, seconds=START_SECONDS / 5.5)
    assert (started, result.summary["hardware"]["workers"]) == (2, 2)
    alone = crad.run(change(shallow, workers=1, rounds=2))
    assert result.summary["global_accuracy_per_client"] == alone.summary["global_accuracy_per_client"]
    assert [line["clients"][0]["losses"] for line in result.rounds] == [
        line["clients"][0]["losses"] for line in alone.rounds
    ]


@FORKED
def test_short_runs_that_share_their_workers_share_what_was_paid(shallow, monkeypatch):
    with kept_workers():
        _, first = patient_run(shallow, monkeypatch, seconds=START_SECONDS / 30)
        _, second = patient_run(shallow, monkeypatch, seconds=START_SECONDS / 30)
        _, third = patient_run(shallow, monkeypatch, seconds=START_SECONDS / 30)
    assert (first, second, third) == (0, 2, 0)  # the third takes those of the second
    _, after = patient_run(shallow, monkeypatch, seconds=START_SECONDS / 30)
    assert after == 0


@FORKED
def test_a_number_of_workers_is_taken_as_it_is_said(shallow):
    with closing(make_engine(build_run_context(change(shallow, workers=2)), resolve_method("crad"))) as engine:
        assert isinstance(engine, ProcessEngine)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, "workers = 0: expected auto or a whole number of at least 1"),
        ({"workers": "many"}, "workers = 'many': expected auto or a whole number"),
        ({"engine": "serial", "workers": 2}, "engine serial is one process, but workers is 2"),
        ({"engine": "thread"}, "engine = 'thread'"),
        ({"ray_address": "10.0.0.1:6379"}, "ray_address is for engine ray, but engine is auto"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ConfigError) as refusal:
        Experiment(**settings)
    assert words in str(refusal.value)


def test_rounds_list_only_clients_whose_figures_are_new(shallow):
    """Records must not grow with the clients that do nothing, and still tell how everybody stood."""
    from crad.runs.selection import clients_at

    result = crad.run(change(shallow, active=2, rounds=4, eval_every=2))
    listed = [[client["client"] for client in line["clients"]] for line in result.rounds]
    assert listed[0] == [0, 1, 2, 3]
    assert listed[2] == result.rounds[2]["active"]
    for line in result.rounds:
        everybody = clients_at(result.rounds, line["round"])
        assert [client["client"] for client in everybody] == [0, 1, 2, 3]
        mean = sum(client["validation_accuracy"] for client in everybody) / 4
        assert line["validation_accuracy"] == pytest.approx(mean)
        if line["global_accuracy"] is not None:
            assert line["global_accuracy"] == pytest.approx(sum(c["global_accuracy"] for c in everybody) / 4)
    assert json.loads(json.dumps(result.summary))["global_accuracy_per_client"] == [
        client["global_accuracy"] for client in clients_at(result.rounds, result.summary["best_round"])
    ]


TWO_PHASES = """
from crad.federation.method import Method, Phase, one_peer_per_client
from crad.federation.peer import PeerSpec
from crad.methods.alone import train_alone
from crad.methods.distillation import distillation_method

crad = distillation_method("crad").phases[0]

def roster(context):
    members = one_peer_per_client(context)
    return [*members, PeerSpec(len(members), clients=(), architecture=members[0].architecture)]

METHOD = Method("two-phases", (Phase("alone", learn=train_alone), crad), roster=roster)
"""


@FORKED
def test_two_phases_and_a_member_without_data_go_through_workers_unchanged(shallow, tmp_path, monkeypatch):
    (tmp_path / "phases.py").write_text(TWO_PHASES)
    monkeypatch.chdir(tmp_path)
    experiment = change(shallow, method="phases:METHOD", rounds=2)
    crad.run(experiment, output=tmp_path / "one")
    crad.run(change(experiment, workers=2), output=tmp_path / "two")
    assert_same_end(tmp_path / "two", tmp_path / "one")


OWN_MODEL = """
import torch
from torch import nn

class Odd(nn.Module):
    # Counts its calls, keeps a tensor of its last one, and has a buffer outside its state.
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.conv, self.head = nn.Conv2d(in_channels, 4, 3), nn.Linear(4, num_classes)
        self.register_buffer("shift", torch.randn(4), persistent=False)
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        maps = self.conv(input=images).relu().mean(dim=(2, 3)) + self.shift
        self.kept = maps
        return self.head(maps) + 1e-3 * (self.calls % 5)

def build(num_classes, in_channels):
    return Odd(num_classes, in_channels)
"""


@FORKED
def test_a_model_that_keeps_things_outside_its_state_gives_the_same_with_any_engine(tiny, tmp_path, monkeypatch):
    (tmp_path / "odd_models.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    experiment = change(tiny, models=("odd_models:build", "cnn6"), method="local", rounds=2)
    with monkeypatch.context() as patched:  # as if there were so many images that ours would be prepared for them
        patched.setattr("crad.training.evaluation.PREPARED_FROM", 8)
        crad.run(experiment)
    crad.run(experiment, output=tmp_path / "one")
    crad.run(change(experiment, workers=2), output=tmp_path / "two")
    assert_same_end(tmp_path / "two", tmp_path / "one")


def test_a_model_whose_first_weights_do_not_follow_from_the_seed_is_refused(tiny, tmp_path, monkeypatch):
    (tmp_path / "unseeded.py").write_text(
        "import numpy as np, torch\n"
        "from torch import nn\n"
        "def build(num_classes, in_channels):\n"
        "    model = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
        "    nn.init.constant_(model[1].bias, float(np.random.default_rng().random()))\n"
        "    return model\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"'unseeded:build': two built with the same seed differ in '1\.bias'"):
        crad.run(change(tiny, models=("unseeded:build",)), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_only_this_process_knows_is_run_here_or_refused(shallow, monkeypatch):
    import __main__
    from crad.methods.alone import LOCAL

    monkeypatch.setattr(__main__, "OWN_METHOD", LOCAL, raising=False)
    notices: list[str] = []
    own = change(shallow, method="__main__:OWN_METHOD", rounds=1)
    monkeypatch.setattr("crad.engines.count_cores", lambda: 2)
    result = crad.run(change(own, workers="auto"), callbacks=[LambdaCallback(on_notice=notices.append)])
    assert result.summary["hardware"]["workers"] == 1
    assert "known to this process alone" in notices[0]
    with pytest.raises(ConfigError, match=r"'__main__:OWN_METHOD' is known to this process alone"):
        crad.run(change(own, engine="processes"))


def test_an_optimiser_whose_state_would_be_lost_is_named(tiny):
    from tests.federation import Federation

    peer = Federation(tiny).peer(0)
    parameter = next(peer.model.parameters())
    peer.optimizer.state[parameter]["exp_avg"] = parameter.detach().clone()
    with pytest.raises(RunError, match=r"client 0 keeps 'exp_avg', which would be lost"):
        peer.state()


def test_a_precision_the_device_has_not_leaves_no_directory(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"precision 'bf16' is not available on 'cpu'"):
        crad.run(change(tiny, teacher_precision="bf16", workers=2), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
