"""The compared methods at work: each learns on real images, and ends the same however it was run."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
import torch

import crad
from crad.config import Experiment
from crad.errors import ConfigError
from crad.federation.message import Statistics, pack, read_state
from crad.federation.method import Learned, Method, Phase, RoundContext
from crad.federation.teachers import TeacherCache
from tests.conftest import change
from tests.federation import Federation
from tests.test_resume import assert_same_end, run_with_stops

COMPARED = ("fedmd", "fedgd", "msfkd", "dfml", "fedmkd")
SMALL_FEDGD = {"generator_steps": 2, "generator_batch": 16, "transfer_size": 20, "sheet_every": 2}


def with_method(experiment: Experiment, method: str, **settings: object) -> Experiment:
    own = SMALL_FEDGD if method == "fedgd" else {"period": 4} if method == "dfml" else {}
    return change(experiment, method=method, method_settings=own, **settings)


@pytest.fixture(scope="module")
def experiment(tiny) -> Experiment:
    """Two architectures, but none that is deep: what is tested here are the methods."""
    return change(tiny, rounds=3, active=3, eval_every=2, proxy_size=24, models=("cnn6", "cnn6-wide"))


@pytest.fixture(scope="module", params=COMPARED)
def method(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(experiment, method, tmp_path_factory) -> Path:
    """The uninterrupted run in one process."""
    path: Path = tmp_path_factory.mktemp(f"whole-{method}") / "run"
    crad.run(with_method(experiment, method), output=path)
    return path


def test_a_run_stopped_anywhere_ends_the_same(experiment, method, whole, tmp_path):
    """Between the phases of a round too: the round is begun again from its checkpoint."""
    run_with_stops(with_method(experiment, method), tmp_path / "run", after_steps=(2, 6, 9), stage="learning")
    assert_same_end(tmp_path / "run", whole)


@pytest.mark.usefixtures("forked_workers")
def test_two_workers_end_as_one(experiment, method, whole, tmp_path):
    crad.run(with_method(experiment, method, workers=2), output=tmp_path / "run")
    assert_same_end(tmp_path / "run", whole)


def test_every_method_learns_real_tissue(method, real_data, monkeypatch):
    """PathMNIST, two clients, a few rounds: well above where the same clients began, guessing being 11 %."""
    monkeypatch.setenv("CRAD_DATA", str(real_data))
    chosen = crad.Experiment(
        preset="mini",
        dataset="pathmnist",
        method=method,
        method_settings=SMALL_FEDGD if method == "fedgd" else {},
        clients=2,
        partition="iid",
        rounds=6,
        eval_every=6,
        models=("cnn6",),
        width=0.125,
        lr=0.02,
        train_limit=600,
        test_limit=200,
        proxy_size=90,
        seed=3,
        device="cpu",
        workers=1,
        committee=False,
        metrics=False,
    )
    peers = [peer for peer in Federation(chosen).peers() if peer.clients]
    for peer in peers:
        peer.test()
    scores = [peer.evaluation.overall.accuracy for peer in peers if peer.evaluation.overall]
    before = sum(scores) / len(scores)
    assert crad.run(chosen).summary["global_accuracy"] > before + 12


# --- what is particular to one of them


def test_the_peak_models_of_dfml_are_measured_beside_the_regular_ones(experiment):
    """Alpha is 0, 1/2, 1, 1/2 with a period of four: after round 3 the peak is the model, after round 4 it is not."""
    result = crad.run(with_method(experiment, "dfml", rounds=4, active=None, eval_every=1))
    third, fourth = result.rounds[2:]
    for client in third["clients"]:
        assert client["variants"]["peak"]["global_accuracy"] == client["global_accuracy"]
    assert [client["variants"]["peak"] for client in third["clients"]] == [
        client["variants"]["peak"] for client in fourth["clients"]
    ]
    assert any(
        client["variants"]["peak"]["global_accuracy"] != client["global_accuracy"] for client in fourth["clients"]
    )
    means = [client["variants"]["peak"]["global_accuracy"] for client in fourth["clients"]]
    assert fourth["variants"]["peak"]["global_accuracy"] == pytest.approx(sum(means) / len(means))
    best = result.rounds[result.summary["best_round"] - 1]
    assert result.summary["variants"]["peak"]["global_accuracy"] == best["variants"]["peak"]["global_accuracy"]


def test_a_client_that_was_never_drawn_counts_in_the_peak_with_its_model(experiment):
    [record] = crad.run(with_method(experiment, "dfml", rounds=1, active=2)).rounds
    figures = [client.get("variants", {}).get("peak", client)["global_accuracy"] for client in record["clients"]]
    assert sum("variants" in client for client in record["clients"]) == 2
    assert record["variants"]["peak"]["global_accuracy"] == pytest.approx(sum(figures) / 4)


def test_the_aggregator_of_dfml_forgets_the_models_it_gave_back(experiment):
    federation = Federation(with_method(experiment, "dfml"))
    federation.next_round()
    for peer in federation.peers():
        assert not [name for name in peer.memory if name.startswith("returned")]


def test_fedgd_saves_a_contact_sheet_every_few_rounds_and_says_how_the_generator_does(experiment, tmp_path):
    result = crad.run(with_method(experiment, "fedgd", rounds=5), output=tmp_path / "run")
    sheets = sorted(path.name for path in (tmp_path / "run" / "artifacts").iterdir())
    assert sheets == ["transfer-00001.png", "transfer-00002.png", "transfer-00004.png", "transfer-00005.png"]
    pictures = [(tmp_path / "run" / "artifacts" / name).read_bytes() for name in sheets]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert len(set(pictures)) == 4, "it paints the same bank anew, and better"
    [painter] = result.rounds[-1]["helpers"]
    assert painter["losses"].keys() == {"total", "cross_entropy", "statistics"}
    assert "digest" not in result.rounds[0]["clients"][0]["losses"], "it warms up first"
    assert all("digest" in client["losses"] for client in result.rounds[1]["clients"] if client["is_active"])


def test_the_generator_learns_from_clients_that_stand_still(tiny):
    """Trained clients that no longer move: the generator's loss against them falls from round to round."""
    settings = {"generator_steps": 10, "generator_batch": 32, "transfer_size": 12, "generator_warmup": 300}
    federation = Federation(change(tiny, method="local", rounds=6, lr=0.05, partition="iid", models=("cnn6",)))
    for _ in range(6):
        federation.next_round()
    still = Federation(
        change(federation.context.experiment, method="fedgd", method_settings=settings, rounds=8, lr=1e-12)
    )
    for peer in federation.peers():
        peer.optimizer.state.clear()  # no momentum either
        still.put(peer)
    losses = [still.next_round().learned[4].losses["total"] for _ in range(8)]
    assert losses[-1] < 0.6 * losses[0]


def test_msfkd_records_what_it_kept_and_whom_it_heard(experiment):
    settings = {"keep_fraction": 0.25}
    rounds = crad.run(change(experiment, method="msfkd", method_settings=settings)).rounds
    active = [client for record in rounds for client in record["clients"] if client["is_active"]]
    assert {(client["notes"]["kept_images"], client["notes"]["kept_share"]) for client in active} == {(6, 0.25)}
    for record in rounds:
        shares = [client["notes"]["teacher_share"] for client in record["clients"] if client["is_active"]]
        assert all(share == shares[0] for share in shares), "everybody selects alike"
        assert {int(index) for index in shares[0]} == set(record["active"])


def test_fedmkd_records_both_teachers(experiment):
    for settings, share in (({}, 0.5), ({"mu": 0.2}, 0.2), ({"mode": "pooled"}, 1 / 3)):
        record = crad.run(change(experiment, method="fedmkd", method_settings=settings, rounds=1)).rounds[0]
        for client in (client for client in record["clients"] if client["is_active"]):
            assert client["notes"]["own_share"] == pytest.approx(share)
            if "mode" not in settings:
                parts = client["losses"]
                mixed = (1 - share) * parts["from_peers"] + share * parts["from_own"]
                assert parts["distillation"] == pytest.approx(mixed, rel=1e-5)


def test_with_no_share_of_its_own_fedmkd_is_uniform(experiment):
    rounds = [
        crad.run(change(experiment, method=name, method_settings=own)).rounds
        for name, own in (("uniform", {}), ("fedmkd", {"mu": 0.0}))
    ]
    for mine, theirs in zip(*rounds, strict=True):
        assert mine["validation_accuracy"] == theirs["validation_accuracy"]
        for one, other in zip(mine["clients"], theirs["clients"], strict=True):
            assert {k: v for k, v in other["losses"].items() if k in one["losses"]} == pytest.approx(one["losses"])


def test_fedmd_pretrains_each_client_once_when_asked(experiment):
    chosen = change(experiment, method="fedmd", method_settings={"pretrain_epochs": 2}, rounds=4)
    rounds = crad.run(chosen).rounds
    pretrained = [
        client["client"] for record in rounds for client in record["clients"] if "pretrain" in client["losses"]
    ]
    assert sorted(pretrained) == sorted(set().union(*(record["active"] for record in rounds)))


@pytest.mark.parametrize("name", ["fedmd", "msfkd", "fedgd", "dfml", "fedmkd"])
def test_the_only_client_of_a_round_goes_on_alone(shallow, name):
    """Nobody to exchange with: no bytes between clients, no stumbling."""
    summary = crad.run(with_method(shallow, name, clients=2, active=1, rounds=2, proxy_size=8)).summary
    assert summary["payload_bytes_per_client_round"] == 0


# --- what others send


def messages_for(federation, method_phase, receiver, context_round=1):
    """What the others publish for a receiver in a phase, as a dictionary that a test may spoil."""
    context = RoundContext(context_round, TeacherCache(federation.context))
    others = [peer for peer in federation.peers() if peer.index != receiver and peer.clients]
    return {peer.index: method_phase.publish(peer, context) for peer in others}, context


def spoiled(message, change_values):
    """The same message with other values, its manifest true of them."""
    manifest = json.loads(message.manifest)
    tensors = {name: change_values(name, tensor.clone()) for name, tensor in read_state(message.body).items()}
    statistics = Statistics(**manifest["statistics"]) if manifest.get("statistics") else None
    return pack(
        tensors,
        kind=manifest["kind"],
        peer=manifest["peer"],
        round_index=manifest["round_index"],
        architecture=manifest.get("architecture"),
        statistics=statistics,
    )


@pytest.mark.parametrize(
    ("name", "change_values", "reason"),
    [
        ("fedmd", lambda _, t: t.fill_(3e38), "peer 1 sent predictions beyond 1e+06"),
        ("fedmd", lambda _, t: t.fill_(float("nan")), "peer 1 sent a non-finite value"),
        ("fedmd", lambda _, t: t[:5].clone(), "peer 1 sent F32 [5, 4] as tensor 'predictions', expected F32 [24, 4]"),
        ("fedmd", lambda _, t: t.half(), "peer 1 sent F16"),
        ("msfkd", lambda _, t: t * 1000, "peer 1 sent predictions whose rows are no probabilities"),
        ("msfkd", lambda _, t: t - 0.5, "peer 1 sent predictions whose rows are no probabilities"),
    ],
)
def test_bad_predictions_are_left_out_and_the_others_go_on(experiment, name, change_values, reason):
    federation = Federation(change(experiment, method=name))
    phase = federation.method.phases[-1]
    messages, context = messages_for(federation, phase, receiver=0)
    messages[1] = spoiled(messages[1], change_values)
    learned = phase.learn(federation.peer(0), messages, context)
    assert learned.notes["refused"]["1"].startswith(reason)
    assert list(learned.notes["refused"]) == ["1"]
    assert all(math.isfinite(value) for value in learned.losses.values())


def overflowing(name, tensor):
    """Finite weights whose products are not."""
    return tensor.fill_(3e38) if tensor.is_floating_point() and tensor.dim() > 1 else tensor


@pytest.mark.parametrize("name", ["dfml", "fedgd"])
def test_a_model_that_overflows_is_left_out_and_the_others_go_on(experiment, name):
    federation = Federation(with_method(experiment, name))
    phase = next(phase for phase in federation.method.phases if phase.kind == "snapshot")
    receiver = 0 if name == "dfml" else 4
    messages, context = messages_for(federation, phase, receiver)
    messages[1] = spoiled(messages[1], overflowing)
    learner = federation.peer(receiver)
    learned = phase.learn(learner, messages, context)
    assert learned.notes["refused"] == {"1": "peer 1 gives non-finite predictions"}
    assert all(math.isfinite(value) for value in learned.losses.values())
    assert all(bool(tensor.isfinite().all()) for tensor in learner.model.state_dict().values())
    returned = {label.split("/")[1] for label in learner.memory if label.startswith("returned")}
    assert returned == ({"2", "3"} if name == "dfml" else set())


def test_a_model_that_comes_back_broken_is_not_taken(experiment):
    federation = Federation(with_method(experiment, "dfml"))
    take_back = federation.method.phases[2]
    for change_values, reason in (
        (overflowing, "sent back a model"),
        (lambda _, t: t.reshape(-1)[:1].clone(), "expected"),
    ):
        peer = federation.peer(0)
        before = {key: tensor.clone() for key, tensor in peer.model.state_dict().items()}
        body = pack(before, kind="returned", peer=1, round_index=1)
        learned = take_back.learn(peer, {1: spoiled(body, change_values)}, RoundContext(1, TeacherCache(peer.context)))
        assert reason in learned.notes["refused"]["1"]
        assert all(torch.equal(tensor, before[key]) for key, tensor in peer.model.state_dict().items())


def test_images_of_the_wrong_shape_are_not_digested(experiment):
    federation = Federation(with_method(experiment, "fedgd", rounds=300))
    keep, context = federation.method.phases[1].learn, RoundContext(11, TeacherCache(federation.context))
    peer = federation.peer(0)
    body = {"transfer": torch.zeros(19, 1, 8, 8, dtype=torch.uint8)}
    learned = keep(peer, {4: pack(body, kind="transfer", peer=4, round_index=11)}, context)
    assert learned.notes["refused"]["4"] == (
        "peer 4 sent U8 [19, 1, 8, 8] as tensor 'transfer', expected U8 [20, 1, 8, 8]"
    )
    assert not peer.memory


USERS_MODELS = """
import torch
from torch import nn

class Frozen(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.body, self.head = nn.Conv2d(in_channels, 4, 3), nn.Linear(4, num_classes)

    def forward(self, x):
        with torch.no_grad():
            features = self.body(x).mean(dim=(2, 3))
        return self.head(features)

class InPlace(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.head = nn.LazyLinear(num_classes)

    def forward(self, x):
        return self.head(x.mul_(0.5).flatten(1))
"""


def test_models_of_a_user_take_part_in_every_method(experiment, method, tmp_path, monkeypatch):
    """Without batch norm, without gradients to the input, writing to its input."""
    (tmp_path / "users_models.py").write_text(USERS_MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    models = ("users_models:Frozen", "users_models:InPlace", "cnn6")
    chosen = with_method(experiment, method, models=models, rounds=2)
    assert crad.run(chosen).summary["rounds"] == 2


def test_a_small_bank_still_gives_a_sheet(experiment, tmp_path):
    """Seven images of four classes: one class has one image only, and each has its row."""
    settings = {**SMALL_FEDGD, "transfer_size": 7}
    crad.run(change(experiment, method="fedgd", method_settings=settings, rounds=1), output=tmp_path / "run")
    picture = (tmp_path / "run" / "artifacts" / "transfer-00001.png").read_bytes()
    width, height = struct.unpack_from(">II", picture, 16)
    assert (width, height) == (1 * (16 + 2) + 2, 4 * (16 + 2) + 2)


def test_phases_of_one_kind_twice_or_none_at_all_are_refused():
    phase = Phase("alone", learn=lambda peer, messages, context: Learned())
    for phases in ((), (phase, phase)):
        with pytest.raises(ConfigError, match="method 'mine' needs at least one phase, each of another kind"):
            Method("mine", phases)
