"""Every method under the same conditions: data, first weights, who takes part, batches; and what it sends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import crad
from crad.config import Experiment
from crad.errors import ConfigError
from crad.federation.context import RunContext, build_run_context
from crad.methods import METHODS, PAPER_METHODS, resolve_method
from crad.training.epoch import epoch_blocks
from tests.conftest import change
from tests.federation import Federation
from tests.test_golden import without_timing

EVERY = sorted(METHODS.keys() - {"centralized"})  # which has one member for all clients
PROXY_METHODS = ("fedmd", "msfkd")
QUICK_FEDGD = {"generator_steps": 1, "generator_batch": 8, "transfer_size": 12, "generator_warmup": 1}


def with_method(experiment: Experiment, method: str, **settings: object) -> Experiment:
    own = QUICK_FEDGD if method == "fedgd" else {}
    return change(experiment, method=method, method_settings=own, **settings)


@pytest.fixture(scope="module")
def short(tiny) -> Experiment:
    return change(tiny, rounds=2, active=3, proxy_size=24)


@pytest.fixture(scope="module")
def shallow(short) -> Experiment:
    """Two architectures of which none is deep, for what every method is run for."""
    return change(short, models=("cnn6", "cnn6-wide"))


def test_the_paper_has_eight_rows_and_all_of_them_are_here():
    assert len(PAPER_METHODS) == 8
    assert set(PAPER_METHODS) <= METHODS.keys()


def test_the_world_is_the_same_for_every_method(short):
    contexts = [build_run_context(with_method(short, method)) for method in EVERY]
    for context in contexts[1:]:
        assert np.array_equal(context.data.proxy, contexts[0].data.proxy)
        for shard, first in zip(context.data.shards, contexts[0].data.shards, strict=True):
            assert all(np.array_equal(getattr(shard, part), getattr(first, part)) for part in vars(shard))
    held = np.concatenate([shard.indices for shard in contexts[0].data.shards])
    assert len(contexts[0].data.proxy) == 24
    assert not set(contexts[0].data.proxy) & set(held), "nobody holds a proxy image"


def test_first_weights_are_the_same_for_every_method(short):
    first = [peer.model.state_dict() for peer in Federation(with_method(short, "crad")).peers()]
    for method in EVERY:
        clients = [peer for peer in Federation(with_method(short, method)).peers() if peer.clients]
        for peer, expected in zip(clients, first, strict=True):
            state = peer.model.state_dict()
            assert all(torch.equal(state[name], expected[name]) for name in expected), method


@dataclass(frozen=True)
class Seen:
    """A run's records, and what each of its private epochs was given."""

    rounds: list[Any]
    epochs: dict[tuple[str | int, ...], str]  # by (peer, round, epoch) a digest of inputs and labels in order


@pytest.fixture(scope="module")
def seen(shallow) -> Callable[[str], Seen]:
    """The run of a method, done once."""
    return cache(lambda method: run_seen(with_method(shallow, method)))


def run_seen(experiment: Experiment) -> Seen:
    epochs: dict[tuple[str | int, ...], str] = {}

    def spy(*arguments, purpose, **options):
        digest = hashlib.sha256()
        for block in epoch_blocks(*arguments, purpose=purpose, **options):
            digest.update(block.inputs.numpy().tobytes() + block.labels.numpy().tobytes())
            yield block
        assert purpose not in epochs, "an epoch is gone through once"
        epochs[purpose] = digest.hexdigest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crad.methods.local_training.epoch_blocks", spy)
        return Seen(without_timing(crad.run(experiment).rounds), epochs)


def test_participation_and_batches_are_the_same_for_every_method(seen):
    first = seen(EVERY[0])
    assert len(first.epochs) == 3 * 2
    for method in EVERY:
        epochs = seen(method).epochs
        assert {purpose: epochs.get(purpose) for purpose in first.epochs} == first.epochs, method
        # The one exception, said in docs/methods/experts.md: students of experts go on with more epochs of their round.
        further = epochs.keys() - first.epochs.keys()
        assert {purpose[-1] for purpose in further} == ({1, 2, 3} if method == "experts" else set()), method
        assert [line["active"] for line in seen(method).rounds] == [line["active"] for line in first.rounds], method


@pytest.mark.parametrize("method", EVERY)
def test_labels_of_proxy_images_are_never_read(shallow, seen, method, monkeypatch):
    """They are poisoned once the images are set apart: no number may change, and nothing may stumble."""

    def poisoned(experiment: Experiment) -> RunContext:
        context = build_run_context(experiment)
        labels = context.data.dataset.train_labels.copy()
        labels[context.data.proxy] = -(2**40)
        return replace(context, data=replace(context.data, dataset=replace(context.data.dataset, train_labels=labels)))

    clean = seen(method).rounds
    monkeypatch.setattr("crad.api.build_run_context", poisoned)
    assert without_timing(crad.run(with_method(shallow, method)).rounds) == clean


def test_poison_would_be_noticed(shallow, monkeypatch):
    """The test above can fail: the same poison on images that somebody holds does."""

    def poisoned(experiment: Experiment) -> RunContext:
        context = build_run_context(experiment)
        labels = context.data.dataset.train_labels.copy()
        labels[context.data.shards[0].train] = -(2**40)
        return replace(context, data=replace(context.data, dataset=replace(context.data.dataset, train_labels=labels)))

    monkeypatch.setattr("crad.api.build_run_context", poisoned)
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        crad.run(with_method(shallow, "local"))


# --- payload


@pytest.fixture(scope="module")
def many_npz(tmp_path_factory) -> Path:
    """Ten classes of 8x8 images, enough for 500 proxy images."""
    rng = np.random.default_rng(3)
    path: Path = tmp_path_factory.mktemp("many") / "many.npz"
    arrays: dict[str, Any] = {}
    for split, count in (("train", 5000), ("test", 20)):
        arrays[f"{split}_images"] = rng.integers(0, 256, size=(count, 8, 8), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % 10
    np.savez(path, **arrays)
    return path


def ten_clients(dataset: Path, last_model: str, **settings: object) -> Experiment:
    """The paper's number of clients and its pool, thin, for one round."""
    models = ("resnet18", "resnet18-half", last_model)
    return Experiment(
        **{"dataset": str(dataset), "clients": 10, "rounds": 1, "models": models, "width": 0.0625, "alpha": 1.0}
        | {"device": "cpu", "workers": 1, "batch_size": 64, "proxy_size": 8, "committee": False, "metrics": False}
        | settings
    )


def state_bytes(experiment: Experiment) -> list[int]:
    """Bytes of parameters and buffers by client."""
    peers = Federation(change(experiment, method="local", method_settings={})).peers()
    return [sum(tensor.nbytes for tensor in peer.model.state_dict().values()) for peer in peers]


ENVELOPE = 16_000  # header, manifest and statistics of one message, at most


@pytest.mark.parametrize("last_model", ["cnn6", "cnn6-wide"])
@pytest.mark.parametrize("method", ["crad", "uniform", "uncertainty", "fedmkd"])
def test_a_snapshot_method_sends_nine_times_the_mean_snapshot(tiny_npz, method, last_model):
    experiment = ten_clients(tiny_npz, last_model, method=method)
    summary = crad.run(experiment).summary
    mean = sum(state_bytes(experiment)) / 10
    assert 9 * mean < summary["payload_bytes_per_client_round"] < 9 * (mean + ENVELOPE)
    assert summary["payload_bytes_per_client_round"] == pytest.approx(9 * summary["published_bytes_per_client_round"])
    assert summary["payload_counts"] == "sent"


@pytest.mark.parametrize("last_model", ["cnn6", "cnn6-wide"])
def test_dfml_sends_every_model_to_the_aggregator_and_back(tiny_npz, last_model):
    experiment = ten_clients(tiny_npz, last_model, method="dfml")
    result = crad.run(experiment)
    sizes = state_bytes(experiment)
    [record] = result.rounds
    [aggregator] = [client["client"] for client in record["clients"] if client["notes"].get("aggregator")]
    others = sum(sizes) - sizes[aggregator]
    assert 2 * others < record["payload_bytes"] < 2 * (others + 9 * ENVELOPE)
    sent = {client["client"]: client["sent_bytes"] for client in record["clients"]}
    received = {client["client"]: client["received_bytes"] for client in record["clients"]}
    assert others < sent[aggregator] < others + 9 * ENVELOPE
    assert others < received[aggregator] < others + 9 * ENVELOPE
    for client in set(sent) - {aggregator}:
        assert sizes[client] < sent[client] < sizes[client] + ENVELOPE
        assert sizes[client] < received[client] < sizes[client] + ENVELOPE


def test_over_the_draws_of_an_aggregator_dfml_sends_two_times_nine_tenths_of_the_mean_snapshot(tiny):
    """Every client is drawn sooner or later, so that on average a tenth of the models stays where it is."""
    method = resolve_method("dfml")
    federation = Federation(change(tiny, method="dfml", clients=10, rounds=400))
    drawn = [next(iter(method.phases[1].routes(federation.rounds._participants(r)))) for r in range(1, 401)]
    counts = np.bincount(drawn, minlength=10)
    assert counts.min() > 20
    for r, aggregator in enumerate(drawn[:5], start=1):
        routes = method.phases[2].routes(federation.rounds._participants(r))
        assert routes == {i: () if i == aggregator else (aggregator,) for i in range(10)}


@pytest.mark.parametrize("last_model", ["cnn6", "cnn6-wide"])
@pytest.mark.parametrize("method", PROXY_METHODS)
def test_a_proxy_method_sends_500_outputs_to_each_of_nine_and_gets_as_many(many_npz, method, last_model):
    """Whatever the networks: here one for all."""
    own = {"models": (last_model,), "proxy_size": 500, "train_limit": None, "batch_size": 256}
    experiment = ten_clients(many_npz, last_model, method=method, **own)
    result = crad.run(experiment)
    floats = 500 * 10 * 4
    for client in result.rounds[0]["clients"]:
        assert 9 * floats < client["sent_bytes"] < 9 * (floats + 1000)
        assert 9 * floats < client["received_bytes"] < 9 * (floats + 1000)
    assert 18 * floats < result.summary["payload_bytes_per_client_round"] < 18 * (floats + 1000)
    assert floats < result.summary["published_bytes_per_client_round"] < floats + 1000
    assert result.summary["payload_counts"] == "sent and received"


def test_the_traffic_of_the_generator_is_counted_apart(tiny):
    """Snapshots to it and images from it are not in the clients' payload, which is their logits alone."""
    experiment = with_method(tiny, "fedgd", clients=4, rounds=2)
    first, second = crad.run(experiment).rounds
    sizes, [generator] = state_bytes(experiment), second["helpers"]
    images, floats = 12 * 8 * 8, 12 * 4 * 4  # uint8 gray pixels; twelve images, four classes
    assert first["payload_bytes"] == 0, "no digest while it warms up"
    assert first["helpers"][0]["sent_bytes"] == 0
    assert sum(sizes) < generator["received_bytes"] < sum(sizes) + 4 * ENVELOPE
    assert 4 * images < generator["sent_bytes"] < 4 * (images + 1000)
    for client, size in zip(second["clients"], sizes, strict=True):
        assert 3 * floats < client["sent_bytes"] < 3 * (floats + 1000)
        assert size < client["helper_sent_bytes"] < size + ENVELOPE
        assert images < client["helper_received_bytes"] < images + 1000
    assert 4 * floats < second["published_bytes"] < 4 * (floats + 1000)
    assert second["payload_bytes"] == sum(c["sent_bytes"] + c["received_bytes"] for c in second["clients"])


@pytest.mark.parametrize(("last_model", "expected"), [("cnn6", 190.9), ("cnn6-wide", 194.3)])
def test_the_paper_s_payload_in_mib(last_model, expected):
    """Full width, CIFAR's shape: nine snapshots of the mean size. DFML's part of it is 38.2 or 38.9."""
    from crad.models import Architecture, build_model

    pool = ["resnet18", "resnet18-half", last_model]
    sizes = []
    for name in pool:
        model = build_model(Architecture(name), num_classes=10, in_channels=3, image_size=(32, 32), seed=0)
        sizes.append(sum(tensor.nbytes for tensor in model.state_dict().values()))
    mean = sum(sizes[i % 3] for i in range(10)) / 10 / 2**20
    assert 9 * mean == pytest.approx(expected, abs=0.05)
    assert 2 * 9 / 10 * mean == pytest.approx(expected / 5, abs=0.05)


# --- refusals


@pytest.mark.parametrize("method", PROXY_METHODS)
def test_a_proxy_method_without_proxy_images_is_refused_before_anything_is_written(tiny, method, tmp_path):
    with pytest.raises(
        ConfigError, match=rf"method '{method}' learns on proxy images, and there are 0: set proxy_size"
    ):
        crad.run(with_method(tiny, method, proxy_size=0), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("fedmkd", {"nu": 0.5}, "unknown setting of method 'fedmkd' 'nu'"),
        ("fedmkd", {"mu": 1.5}, "method 'fedmkd': mu = 1.5: input should be less than or equal to 1"),
        ("fedmkd", {"mode": "both"}, "method 'fedmkd': mode = 'both'"),
        ("crad", {"mu": 0.5}, "method 'crad' has no settings of its own, got mu"),
        ("msfkd", {"keep_fraction": 0}, "method 'msfkd': keep_fraction = 0"),
        ("fedmd", {"digest_lr": float("inf")}, "method 'fedmd': digest_lr = inf"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(method, settings, reason):
    with pytest.raises(ConfigError) as refusal:
        resolve_method(method, settings)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
