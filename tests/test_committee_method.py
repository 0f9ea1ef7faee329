"""Method `committee`: everybody trains alone and is exchanged at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import crad
from crad.config import Experiment
from crad.errors import ConfigError
from crad.federation.message import Message
from crad.federation.peer import Peer
from crad.methods import check_recipe, resolve_method
from crad.methods.committee import receive
from tests.conftest import change
from tests.federation import Federation
from tests.test_resume import assert_same_end, final_state, run_with_stops

FIGURES = ("round", "active", "validation_accuracy", "local_accuracy", "global_accuracy")


@pytest.fixture(scope="module")
def experiment(tiny) -> Experiment:
    return change(tiny, method="committee", rounds=3, models=("cnn6", "cnn6-wide"), committee=True)


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("committee") / "run"
    crad.run(experiment, output=path)
    return path


@pytest.fixture(scope="module")
def alone(experiment, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("local") / "run"
    crad.run(change(experiment, method="local"), output=path)
    return path


def test_its_models_are_those_of_local_to_the_last_bit(whole, alone):
    committee, local = final_state(whole)[1], final_state(alone)[1]
    assert committee.keys() == local.keys()
    assert all(torch.equal(committee[name], local[name]) for name in local)
    rounds = [[{key: line[key] for key in FIGURES} for line in crad.load(run).rounds] for run in (whole, alone)]
    assert rounds[0] == rounds[1]
    losses = [[[one["losses"] for one in line["clients"]] for line in crad.load(run).rounds] for run in (whole, alone)]
    assert losses[0] == losses[1]


def sent(rounds) -> list[bool]:
    """Whether anything was sent, round by round; if anything, then by everybody."""
    for line in rounds:
        assert len({client["sent_bytes"] > 0 for client in line["clients"]}) == 1
    return [line["payload_bytes"] > 0 for line in rounds]


def test_what_it_publishes_are_the_final_weights_and_they_go_to_everybody_once(experiment):
    federation = Federation(experiment)
    messages: dict[int, Message] = {}
    for _ in range(3):
        done = federation.next_round()
    for peer in federation.peers():
        body = peer.snapshot(3).body
        # Three others get each one's snapshot: what was counted is three times its bytes and the manifest's.
        assert 3 * len(body) < done.traffic.sent[peer.index] < 3 * (len(body) + 16_000)
        messages[peer.index] = peer.snapshot(3)
    folder = federation.roster.messages_of(3)
    for index, message in messages.items():
        assert next(folder.glob(f"peer-{index:04d}-*")).read_bytes() == bytes(message.body), "of the last step"


@pytest.mark.parametrize(
    ("every", "wanted"),
    [(0, [False, False, False, False, True]), (2, [False, True, False, True, True]), (1, [True] * 5)],
)
def test_it_exchanges_at_the_end_and_every_so_many_rounds(experiment, every, wanted):
    chosen = change(
        experiment, rounds=5, eval_every=5, models=("cnn6",), committee=False, method_settings={"exchange_every": every}
    )
    result = crad.run(chosen)
    assert sent(result.rounds) == wanted
    for line, is_exchange in zip(result.rounds, wanted, strict=True):
        for client in line["clients"]:
            assert client["notes"].get("committee") == ([0, 1, 2, 3] if is_exchange else None)


def test_the_payload_of_a_round_is_the_mean_over_all_of_them(whole):
    result = crad.load(whole)
    last = result.rounds[-1]["payload_bytes"]
    assert result.summary["payload_bytes_per_client_round"] == pytest.approx(last / 4 / 3)


@pytest.mark.usefixtures("forked_workers")
def test_two_workers_end_as_one(experiment, whole, tmp_path):
    crad.run(change(experiment, workers=2), output=tmp_path / "run")
    assert_same_end(tmp_path / "run", whole)


def test_a_run_stopped_anywhere_ends_the_same(experiment, whole, tmp_path):
    """Also in the exchange of the last round, of which the training is then repeated."""
    run_with_stops(experiment, tmp_path / "run", after_steps=[6, 14], stage="learning")
    assert_same_end(tmp_path / "run", whole)


def test_only_those_who_take_part_in_the_last_round_exchange(experiment):
    result = crad.run(change(experiment, active=2, models=("cnn6",)))
    last = result.rounds[-1]
    heard = {client["client"]: client["notes"].get("committee") for client in last["clients"]}
    assert {index: members for index, members in heard.items() if members} == dict.fromkeys(
        last["active"], last["active"]
    )


# --- what arrives is checked


def received(peer: Peer, messages: dict[int, Message], federation: Federation):
    from crad.federation.method import RoundContext
    from crad.federation.teachers import TeacherCache

    return receive(peer, messages, RoundContext(1, TeacherCache(federation.context)))


def test_a_message_that_is_refused_is_named_and_changes_nothing(experiment):
    federation = Federation(experiment)
    zero, one, two, three = federation.peers()
    broken = two.snapshot(1)
    with torch.no_grad():
        for parameter in three.model.parameters():
            parameter.fill_(3e38)  # finite, and more than any sum of it
    messages = {1: one.snapshot(1), 2: Message(broken.manifest, broken.body[:-1]), 3: three.snapshot(1)}
    before = {name: tensor.clone() for name, tensor in zero.model.state_dict().items()}
    learned = received(zero, messages, federation)
    assert learned.notes["committee"] == [0, 1]
    assert learned.notes["refused"].keys() == {"2", "3"}
    assert learned.notes["refused"]["3"] == "peer 3 gives non-finite predictions"
    assert all(torch.equal(before[name], tensor) for name, tensor in zero.model.state_dict().items())


# --- settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"evidence": "pooled"}, r"evidence = 'pooled' is for methods that combine snapshots by a rule"),
        ({"teacher_prior": "remove"}, r"teacher_prior = 'remove' is for methods that combine snapshots by a rule"),
        ({"method_settings": {"rule": "crad"}}, r"unknown setting of method 'committee' 'rule'"),
        ({"method_settings": {"exchange_every": -1}}, r"exchange_every = -1"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_line(settings, words):
    experiment = Experiment(method="committee", **settings)
    with pytest.raises(ConfigError, match=words) as refusal:
        check_recipe(experiment, resolve_method("committee", experiment.method_settings))
    assert "\n" not in str(refusal.value)


def test_an_attacker_is_in_it_with_what_it_publishes(experiment):
    result = crad.run(change(experiment, rounds=1, attack="noise", attackers=1, models=("cnn6",)))
    [line] = result.rounds
    assert sum(client.get("is_attacker", False) for client in line["clients"]) == 1
    assert all(client["notes"]["committee"] == [0, 1, 2, 3] for client in line["clients"]), "noise is a model too"
