"""A toy of each kind through its public seam, all in this one file: the table "How to add" in ARCHITECTURE.md."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import crad
from crad.aggregation import RULES, Evidence, Rule, Selection
from crad.aggregation.filters import keep_all
from crad.data.kinds import KINDS, Words
from crad.data.kinds.table import TableKind
from crad.engines.serial import SerialEngine
from crad.federation.context import build_run_context
from crad.federation.exchange import MemoryExchange
from crad.federation.message import Message
from crad.federation.method import MethodSpec, Phase
from crad.federation.peer import SNAPSHOT
from crad.federation.roster import Roster
from crad.federation.topology import RoundParticipants, Routes
from crad.methods import resolve_method
from crad.methods.distillation import distil, distillation_method
from crad.models import ARCHITECTURES, FAMILIES, InputShape
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


class Ring(MethodSpec):
    """The plain mean over a ring."""

    def phases(self) -> list[Phase]:
        return [
            Phase(
                SNAPSHOT,
                publish=lambda peer, context: peer.snapshot(context.round_index),
                learn=lambda peer, messages, context: distil(peer, messages, context, rule=RULES["uniform"]),
                routes=ring,
            )
        ]


def test_a_topology_is_one_function_and_a_method_one_class(tiny):
    result = crad.run(change(tiny, method="tests.test_seams:Ring", rounds=1))
    taught = {client["client"]: set(client["trust"]) for client in result.rounds[0]["clients"]}
    assert taught == {0: {"3"}, 1: {"0"}, 2: {"1"}, 3: {"2"}}


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


class Signals(TableKind):
    """Recordings [N, T, channels]: what a kind says of itself, as far as it is not said for rows already."""

    name = "signal"
    words = Words("signal", "signals")
    models = ("wave",)

    def is_source(self, name_or_path: str) -> bool:
        return False

    def check(self, samples, dataset, *, where):
        assert samples.ndim == 3

    def to_tensor(self, samples, form):
        return torch.from_numpy(samples).transpose(1, 2).contiguous()

    def batch(self, x, form):
        return np.asarray(x, dtype=np.float32)

    def picture(self, dataset, sample):
        return {"row": [["loudest", f"{sample.max():.1f}"]]}


def wave(shape: InputShape, *, width: float) -> nn.Module:
    """One convolution in time."""
    assert shape.image_size == (20,)
    conv = nn.Conv1d(shape.in_channels, 4, kernel_size=5)
    return nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, shape.num_classes))


def test_a_kind_of_data_is_an_entry_with_its_families(monkeypatch, tmp_path):
    monkeypatch.setitem(KINDS, "signal", Signals())
    monkeypatch.setitem(FAMILIES, "signal", {"wave": wave})
    monkeypatch.setitem(ARCHITECTURES, "wave", wave)
    labels = np.arange(60) % 2
    samples = np.random.default_rng(0).normal(size=(60, 20, 2)).astype(np.float32)
    samples[labels == 1] += 2
    data = crad.Dataset("noises", samples, labels, samples, labels, ("soft", "loud"), kind="signal")
    common = {"clients": 2, "partition": "iid", "batch_size": 8, "workers": 1, "proxy_size": 0}
    experiment = crad.Experiment(rounds=8, optimizer="adamw", lr=0.03, **common)
    result = crad.run(experiment, data=data, output=tmp_path / "run")
    assert result.experiment.models == ("wave",)
    assert result.summary["global_accuracy"] > 80
    assert result.models[0].predict(samples[:2]).shape == (2,)
    assert "test signals" in (tmp_path / "run" / "report.html").read_text()
