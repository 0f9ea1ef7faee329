"""Clients on Ray: the same weights as in one process, also when a node is lost; and what goes wrong is said clearly."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import crad
from crad.config import Experiment
from crad.engines.serial import SerialEngine
from crad.errors import ConfigError, RunError, install_hint
from crad.federation.context import RunContext, build_run_context
from crad.federation.tasks import Task
from crad.methods import resolve_method
from crad.runs.callbacks import LambdaCallback
from tests.conftest import change
from tests.test_recordings import people, plants, pumps, whistles  # noqa: F401  # fixtures
from tests.test_tables import clinics, wards  # noqa: F401  # fixtures
from tests.test_texts import news, papers  # noqa: F401  # fixtures

if TYPE_CHECKING:
    from crad.engines.ray_cluster import RayEngine

TEST_SECONDS = 400


@pytest.fixture(scope="module", autouse=True)
def ray() -> Any:
    """Ray, imported late: every worker of pytest imports this file, and one of them runs it."""
    return pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")


def ray_engine(context: RunContext, **settings: Any) -> RayEngine:
    from crad.engines.ray_cluster import RayEngine

    return RayEngine(context, **settings)


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """A cluster that hangs must not hang the tests."""

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError(f"not done after {TEST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TEST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def short(tiny: Experiment) -> Experiment:
    return change(tiny, rounds=2, committee=True)


@pytest.fixture(scope="module")
def serial(short: Experiment, tmp_path_factory: pytest.TempPathFactory) -> crad.Result:
    return crad.run(change(short, engine="serial"), output=tmp_path_factory.mktemp("serial") / "run")


def outcome(result: crad.Result) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Everything of a run that must not depend on where it was run: its records and its weights."""
    records = [{key: value for key, value in record.items() if key != "timing"} for record in result.rounds]
    assert result.directory is not None
    files = sorted(result.directory.glob("checkpoint/**/*.safetensors"))
    assert files
    return records, {file.name: file.read_bytes() for file in files}


def test_a_run_on_ray_equals_the_serial_run(short, serial, tmp_path, ray):
    on_sigterm = signal.getsignal(signal.SIGTERM)
    result = crad.run(change(short, engine="ray", workers=2), output=tmp_path / "run")
    assert outcome(result) == outcome(serial)
    assert result.summary["hardware"]["workers"] == 2
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is on_sigterm


def test_two_nodes_of_which_one_is_lost_in_the_middle(short, serial, tmp_path):
    from ray.cluster_utils import Cluster

    from crad.engines.ray_session import check_answer

    quick = {"health_check_period_ms": 300, "health_check_failure_threshold": 2, "health_check_initial_delay_ms": 0}
    cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": quick})
    try:
        second = cluster.add_node(num_cpus=1)
        notices: list[str] = []

        def lose_a_node(step):
            if step.stage == "learning" and second in cluster.worker_nodes:
                cluster.remove_node(second, allow_graceful=False)

        experiment = change(short, engine="ray", ray_address=cluster.address, workers="auto")
        callback = LambdaCallback(on_step=lose_a_node, on_notice=notices.append)
        result = crad.run(experiment, output=tmp_path / "run", callbacks=[callback])
        assert outcome(result) == outcome(serial)
        assert result.summary["hardware"]["workers"] == 2
        assert notices
        assert all("died" in notice and "\n" not in notice for notice in notices)
        check_answer(cluster.address)  # a cluster that was joined goes on
    finally:
        cluster.shutdown()


class KeptHosts:
    """Ray, but for actors: who would be ended waits for the next engine."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.free: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def remote(self, kind: type) -> Any:
        genuine = self._ray.remote(kind)

        def options(**wanted: object) -> SimpleNamespace:
            return SimpleNamespace(remote=lambda: self.free.pop() if self.free else genuine.options(**wanted).remote())

        return SimpleNamespace(options=options)

    def kill(self, actor: Any, *, no_restart: bool) -> None:
        self.free.append(actor)


class TestOnTheCallersRay:
    """Engines in a process that has joined Ray already."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _joined(cls, ray: Any) -> Iterator[None]:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        assert ray.is_initialized()  # left alone by every engine
        ray.shutdown()

    def test_errors_of_the_work_come_out_as_they_are_and_the_engine_goes_on(self, short):
        """Also: more workers than the cluster has CPUs are cut down."""
        context = build_run_context(change(short, lr=1e30))
        reference = SerialEngine(context, resolve_method(short.method))
        [begun] = reference.each([Task("begin", 0)])
        diverging = Task("learn", 0, begun.evaluation, round_index=1)
        with pytest.raises(RunError) as expected:
            list(reference.each([diverging]))
        notices: list[str] = []
        engine = ray_engine(context, workers=4, notice=notices.append)
        try:
            assert engine.workers == 2
            assert notices == ["the Ray cluster has 2 CPUs: 2 workers instead of 4"]
            with pytest.raises(RunError) as raised:
                list(engine.each([diverging]))
            assert str(raised.value) == str(expected.value)
            with pytest.raises(RuntimeError, match=r"(?s)a Ray worker failed.*KeyError"):
                list(engine.each([Task("begin", 99)]))
            tasks = [Task("begin", 0), Task("publish", 0, begun.evaluation, round_index=1)]
            outcomes = {outcome.verb: outcome for outcome in engine.each(tasks)}
        finally:
            engine.close()
        assert outcomes["begin"].evaluation == begun.evaluation
        assert outcomes["publish"].content

    def test_a_task_that_kills_every_worker_is_given_up(self, short, tmp_path, monkeypatch):
        deadly = "import os\ndef build(num_classes, in_channels):\n    os._exit(7)\n"
        (tmp_path / "deadly_model.py").write_text(deadly)
        monkeypatch.syspath_prepend(tmp_path)
        notices: list[str] = []
        context = build_run_context(change(short, models=("deadly_model:build",)))
        engine = ray_engine(context, workers=1, notice=notices.append)
        try:
            with pytest.raises(RunError, match=r"while it worked for client 0, 3 times in a row") as raised:
                list(engine.each([Task("begin", 0)]))
        finally:
            engine.close()
        assert "\n" not in str(raised.value)
        assert len(notices) == 2

    @pytest.fixture(scope="class")
    @classmethod
    def kept_hosts(cls, ray: Any) -> Iterator[None]:
        """Keep actors from one run to the next, which sets them up anew: it takes seconds to start one.

        They hold the CPUs of this Ray, so what starts its own stands above.
        """
        with pytest.MonkeyPatch.context() as patch:
            hosts = KeptHosts(ray)
            patch.setattr("crad.engines.ray_cluster.ray", hosts)
            yield
            assert len(hosts.free) == 2

    @pytest.mark.usefixtures("kept_hosts")
    @pytest.mark.parametrize(
        ("settings", "num_pictures"),
        [
            ({"method": "dfml"}, 0),
            (
                {
                    "method": "fedgd",
                    "method_settings": {"generator_steps": 1, "generator_batch": 8, "transfer_size": 12},
                },
                2,
            ),
            ({"method": "crad-plus", "matching": "mixup", "liars": 1}, 0),
            ({"method": "crad", "attack": "backdoor", "attackers": 2}, 0),
            ({"method": "uniform", "attack": "collude", "attackers": 2}, 0),
            ({"method": "experts", "method_settings": {"student_epochs": 1}}, 0),
            ({"private_training": 8.0, "delta": 1e-3, "noise_multiplier": 1.0, "sampling_rate": 0.5, "rounds": 1}, 0),
        ],
        ids=lambda one: one.get("method", "private") if isinstance(one, dict) else "",
    )
    def test_methods_that_need_more_run_on_ray(self, shallow, settings, num_pictures, tmp_path):
        """DFML sends a message for each receiver and keeps other weights; FedGD has a member without data and pictures;
        crad-plus counts on the student's own samples, here with mixed inputs and a liar; other attackers change
        their data or act as one; experts are kept in a state; private training draws noise and accounts for it.
        """
        experiment = change(shallow, **{"rounds": 2, **settings})
        results = [
            crad.run(change(experiment, engine=engine, workers=count), output=tmp_path / engine)
            for engine, count in (("serial", "auto"), ("ray", 2))
        ]
        assert outcome(results[0]) == outcome(results[1])
        sheets = [sorted((tmp_path / engine).glob("artifacts/*")) for engine in ("serial", "ray")]
        assert len(sheets[0]) == num_pictures
        assert [path.read_bytes() for path in sheets[0]] == [path.read_bytes() for path in sheets[1]]

    @pytest.mark.usefixtures("kept_hosts")
    @pytest.mark.parametrize(
        ("kind", "models"),
        [
            ("wards", ("mlp", "gradient-boosting", "random-forest")),
            ("papers", ("bag", "text-cnn")),
            ("people", ("cnn1d", "mel-cnn6")),
            ("pumps", ("cnn1d", "transformer1d")),
        ],
        ids=["rows and trees", "texts", "recordings", "series"],
    )
    def test_every_kind_of_data_runs_on_ray(self, kind, models, request, tmp_path):
        found = request.getfixturevalue(kind)
        experiment, data = (plants(), found) if isinstance(found, crad.Dataset) else (found, None)
        quick = {"committee": False, "metrics": False, "width": 0.125, "rounds": 1}
        experiment = change(experiment, models=models, method="crad-plus", **quick)
        results = [
            crad.run(change(experiment, engine=engine, workers=count), data=data, output=tmp_path / engine)
            for engine, count in (("serial", 1), ("ray", 2))
        ]
        assert outcome(results[0]) == outcome(results[1])


def test_without_the_package_a_line_says_what_to_install(tiny_npz, tmp_path):
    code = "import sys; sys.modules['ray'] = None; from crad.cli import main; sys.argv[0] = 'crad'; main()"
    flags = ["run", "--dataset", str(tiny_npz), "--clients", "2", "--width", "0.125", "--proxy-size", "0"]
    command = [sys.executable, "-c", code, *flags, "--engine", "ray", "--output", str(tmp_path / "run"), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(f"crad: engine ray needs the package ray: {install_hint('ray')}")


def test_an_address_that_nobody_answers_at_is_refused(short, ray):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"no Ray cluster answers at '{free}'"):
        crad.run(change(short, engine="ray", ray_address=free))
    assert not ray.is_initialized()


def test_somebody_else_at_the_address_is_refused(monkeypatch):
    from crad.engines.ray_session import check_answer

    monkeypatch.setattr("crad.engines.ray_session.ANSWER_SECONDS", 0.2)
    refused = pytest.raises(ConfigError, match="whoever listens there is not Ray")
    with socket.create_server(("127.0.0.1", 0)) as silent, refused:
        check_answer(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize("address", ["somewhere", "host:port", ":6379", "host:", "ray://host:10001"])
def test_an_address_of_the_wrong_form_is_refused(short, address, ray):
    with pytest.raises(ConfigError, match=f"ray_address '{address}'"):
        ray_engine(build_run_context(short), address=address)
    assert not ray.is_initialized()


def test_a_node_with_another_version_is_refused():
    from crad.engines.ray_actor import check_same_versions, own_versions

    check_same_versions(own_versions())
    with pytest.raises(ConfigError, match=r"has torch 2\.\S+ instead of 1\.0: install the same versions"):
        check_same_versions({**own_versions(), "torch": "1.0"})


def test_no_cluster_on_this_machine_is_one_line(short, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", _nobody)
    with pytest.raises(ConfigError, match="cannot join the Ray cluster at 'auto': nobody is here"):
        ray_engine(build_run_context(short), address="auto")


def _nobody(**settings: object) -> None:
    raise ConnectionError("nobody\nis here")
