"""A toy of each kind through its public seam, all in this one file: the table "How to add" in ARCHITECTURE.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import PositiveInt
from torch import Tensor, nn

import crad
from crad.aggregation import RULES, Evidence, Rule, Selection
from crad.aggregation.filters import keep_all
from crad.data.kinds import KINDS, Kind, Words
from crad.data.kinds.series import SignalPreprocessor
from crad.engines.serial import SerialEngine
from crad.errors import ConfigError, DataError
from crad.federation.context import build_run_context
from crad.federation.exchange import MemoryExchange
from crad.federation.message import Message
from crad.federation.method import MethodSpec, Phase
from crad.federation.roster import Roster
from crad.federation.topology import RoundParticipants, Routes
from crad.methods import check_recipe, resolve_method
from crad.methods.distillation import distillation_method
from crad.models import ARCHITECTURES, FAMILIES, networks
from crad.models.families import find_networks
from crad.report import charts
from crad.report.charts.chart import CHARTS, ReportChart, on_page
from crad.runs.callbacks import Callback, LambdaCallback
from crad.runs.loop import RunLoop
from crad.runs.resolution import resolve_experiment
from tests.conftest import change
from tests.records import made_run


def lowest_number(evidence: Evidence, selection: Selection) -> Tensor:
    """Believe teacher 0 alone."""
    return torch.arange(len(evidence.q_KBC)).eq(0).double()[:, None, None]


FIRST = Rule(keep=keep_all, weigh=lowest_number)
FIRST_METHOD = distillation_method("first", FIRST)


def test_a_rule_is_a_filter_and_a_weight():
    q = torch.softmax(torch.randn(3, 5, 4, dtype=torch.float64), dim=-1)
    target = crad.aggregate(q, torch.ones(3, 4), torch.full((3, 4), 0.5), rule=FIRST)
    assert torch.allclose(target, q[0])


def ring(participants: RoundParticipants) -> Routes:
    """Let every client learn from the one before it."""
    clients = participants.clients
    return {one: (clients[place - 1],) for place, one in enumerate(clients)}


CRAD_RING = distillation_method("crad-ring", "crad", routes=ring)


class WiderRing(MethodSpec):
    """CRAD over a ring, with a setting: from how many before oneself everybody learns."""

    is_private: ClassVar[bool] = True

    before: PositiveInt = 2

    def teaching_rule(self) -> Rule | None:
        return RULES["crad"]

    def phases(self) -> Sequence[Phase]:
        return distillation_method("wider-ring", "crad", routes=self._routes).phases

    def _routes(self, participants: RoundParticipants) -> Routes:
        clients = participants.clients
        far = range(1, self.before + 1)
        return {one: tuple(clients[place - step] for step in far) for place, one in enumerate(clients)}


def taught_by(result: crad.Result) -> dict[int, set[str]]:
    return {client["client"]: set(client["trust"]) for client in result.rounds[-1]["clients"]}


def test_a_topology_is_one_function(tiny):
    result = crad.run(change(tiny, method="tests.test_seams:CRAD_RING", rounds=1))
    assert taught_by(result) == {0: {"3"}, 1: {"0"}, 2: {"1"}, 3: {"2"}}


def test_a_method_is_one_class_which_says_what_it_supports(tiny, tmp_path):
    """Settings of its rule, attackers and private training are taken, and the inspector goes by its routes."""
    ring = change(tiny, method="tests.test_seams:WiderRing", filter="support", attack="noise", attackers=1, rounds=1)
    result = crad.run(ring, output=tmp_path / "run")
    assert taught_by(result) == {0: {"2", "3"}, 1: {"0", "3"}, 2: {"0", "1"}, 3: {"1", "2"}}
    students = json.loads((tmp_path / "run" / "inspection.json").read_text())["students"]
    assert {one["client"]: one["teachers"] for one in students}[0] == [2, 3]
    private = change(tiny, method="tests.test_seams:WiderRing", private_training=8.0)
    check_recipe(private, resolve_method(private.method))


class Silent(WiderRing):
    """The same, which says nothing of itself."""

    is_private: ClassVar[bool] = False

    def teaching_rule(self) -> None:
        return None


def test_a_method_is_refused_what_it_does_not_say_of_itself(tiny):
    method = resolve_method("tests.test_seams:Silent")
    for setting in ({"filter": "support"}, {"attack": "noise", "attackers": 1}, {"private_training": 8.0}):
        with pytest.raises(ConfigError, match=r"Silent' (does not|is not known to)"):
            check_recipe(change(tiny, method=method.name, **setting), method)


class Flat(nn.Module):
    """A linear model on the mean of every channel's quarters."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.pool, self.last = nn.AdaptiveAvgPool2d(2), nn.Linear(4 * in_channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.last(self.pool(images).flatten(1))
        return scores


def test_a_model_is_one_function_of_classes_and_channels(tiny):
    result = crad.run(change(tiny, models=("tests.test_seams:Flat", "cnn6"), rounds=1))
    assert result.rounds[0]["clients"][0]["architecture"].startswith("tests.test_seams:Flat")


def test_a_chart_is_one_function():
    before = [chart.name for chart in charts.make_charts([made_run()])]

    @on_page(1)
    def toy_chart(methods: object) -> ReportChart:
        return ReportChart("toy", "Toy", "nothing", "nothing to see", {"mark": "point"}, [])

    try:
        after = [chart.name for chart in charts.make_charts([made_run()])]
    finally:
        del CHARTS[1]
    assert after == ["toy", *before], "before the first, whose place is 5"


class Counter(Callback):
    """Counts what it hears."""

    wants_records = True

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_run_begin(self, experiment: object, directory: object) -> None:
        self.heard.append("begin")

    def on_partition(self, partition: object) -> None:
        self.heard.append("partition")

    def on_round(self, record: object) -> None:
        self.heard.append("round")

    def on_records(self, records: object) -> None:
        self.heard.append("records")

    def on_run_end(self, result: object) -> None:
        self.heard.append("end")


def test_a_callback_is_one_class_and_several_hear_the_same(tiny):
    counter, rounds = Counter(), list[int]()
    other = LambdaCallback(on_round=lambda record: rounds.append(record["round"]))
    crad.run(change(tiny, method="local", rounds=2), callbacks=[counter, other])
    assert counter.heard == ["begin", "partition", "round", "records", "round", "records", "end"]
    assert rounds == [1, 2]


class CountingExchange(MemoryExchange):
    """Messages in memory, with a tally: what a transport of one's own is to the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.published = 0

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        self.published += 1
        super().publish(round_index, sender=sender, kind=kind, message=message)


def test_an_exchange_is_all_that_the_loop_knows_of_a_transport(tiny, tmp_path):
    experiment = resolve_experiment(change(tiny, rounds=2))
    method, context = resolve_method("crad"), build_run_context(experiment)
    exchange, roster = CountingExchange(), Roster(context, method.roster(context), tmp_path)
    engine = SerialEngine(context, method)
    records: list[dict[str, object]] = []
    RunLoop(method, roster, exchange=exchange, engine=engine, directory=None).run(records, callback=Callback())
    assert (len(records), exchange.published) == (2, 2 * experiment.clients)
    usual = crad.run(experiment).rounds
    assert [one["validation_accuracy"] for one in records] == [one["validation_accuracy"] for one in usual]


class Signals(Kind):
    """Recordings [N, T, channels]: all that a kind must say of itself."""

    name = "signal"
    words = Words("signal", "signals")
    models = ("wave",)
    input_name = "signals"
    dtype = np.dtype(np.float32)
    channel_axis = -1
    takes_arrays = True

    def is_source(self, name_or_path):
        return name_or_path.endswith(".signals")

    def read(self, name_or_path, options):
        with np.load(name_or_path) as arrays:
            samples, labels = arrays["samples"], arrays["labels"]
        return crad.Dataset("noises", samples, labels, samples, labels, ("soft", "loud"), kind=self.name)

    def from_arrays(self, given, *, rate, augmentation):
        return crad.Dataset(
            given.name,
            *(given.x_train, given.train_labels, given.x_test, given.test_labels),
            given.class_names,
            kind=self.name,
        )

    def check(self, samples, dataset, *, where):
        if samples.ndim != 3:
            raise DataError(f"{where} is of shape {samples.shape}, expected [N, T, channels]")

    def to_tensor(self, samples, form):
        return torch.from_numpy(samples).transpose(1, 2).contiguous()

    def preprocessor(self, dataset, *, is_augmented, device):
        return SignalPreprocessor(torch.device(device))

    def batch(self, x, form):
        return np.asarray(x, dtype=np.float32)

    def read_inputs(self, path, form, *, key):
        with np.load(path) as arrays:
            return [], arrays["samples"]

    def preprocessor_of(self, form):
        return SignalPreprocessor(torch.device("cpu"))

    def picture(self, dataset, sample):
        return {"row": [["loudest", f"{sample.max():.1f}"]]}

    def features(self, dataset, samples):
        return {"mean": samples.mean(axis=(1, 2), dtype=np.float64)}

    def schema(self, dataset):
        return {"length": dataset.train_samples.shape[1]}


WAVE_MODULE = """
from torch import nn

def wave(shape, *, width):
    first, last = nn.Conv1d(shape.in_channels, 4, kernel_size=5), nn.Linear(4, shape.num_classes)
    return nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), last)

FAMILIES = {"signal": {"wave": wave}}
"""


@pytest.fixture
def signals(monkeypatch, tmp_path):
    """A kind of data in three places: its class, its line among the kinds, and a module of networks in the folder."""
    folder = tmp_path / "networks"
    folder.mkdir()
    (folder / "wave.py").write_text(WAVE_MODULE)
    monkeypatch.setattr(networks, "__path__", [*networks.__path__, str(folder)])
    registries: tuple[dict[str, Any], ...] = (KINDS, FAMILIES, ARCHITECTURES)
    before = [(known, dict(known)) for known in registries]
    KINDS.clear()
    KINDS.update({"signal": Signals(), **before[0][1]})  # images come last
    find_networks()
    yield
    for known, then in before:
        known.clear()
        known.update(then)
    del sys.modules[f"{networks.__name__}.wave"]


def test_a_kind_of_data_is_its_class_a_line_and_its_networks(signals, tmp_path):
    labels = np.arange(60) % 2
    samples = np.random.default_rng(0).normal(size=(60, 20, 2)).astype(np.float32)
    samples[labels == 1] += 2
    path = tmp_path / "noises.signals"
    with path.open("wb") as file:
        np.savez(file, samples=samples, labels=labels)
    common = {"clients": 2, "partition": "iid", "batch_size": 8, "workers": 1, "proxy_size": 0}
    experiment = crad.Experiment(dataset=str(path), rounds=8, optimizer="adamw", lr=0.03, **common)
    result = crad.run(experiment, output=tmp_path / "run")
    assert result.experiment.models == ("wave",)
    assert result.summary["global_accuracy"] > 80
    assert "test signals" in (tmp_path / "run" / "report.html").read_text()
    said = result.models[0].predict_proba(samples[:2])
    read = crad.load_model(result.export("safetensors", client=0, path=tmp_path / "model.safetensors"))
    assert read.card.kind == "signal"
    assert np.allclose(read.predict_proba(samples[:2]), said, atol=1e-6)
    named = crad.Dataset.from_arrays(samples, labels, samples, labels, kind="signal")
    assert (named.kind, named.train_samples.shape) == ("signal", samples.shape)
    names, inputs = KINDS["signal"].read_inputs(path, read.card, key=None)
    assert (names, inputs.shape) == ([], samples.shape)
