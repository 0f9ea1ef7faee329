"""What is published is an exponential mean of the weights over the rounds; the student itself goes on as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import crad
from crad.config import Experiment
from crad.errors import ConfigError
from crad.federation.message import read_state
from crad.federation.peer import AVERAGED_ROUNDS
from crad.federation.peer_evaluation import AVERAGE
from crad.methods import check_recipe, resolve_method
from crad.training.batch_statistics import renew_statistics
from crad.training.weight_average import average_weights, newest_share
from tests.conftest import change
from tests.federation import Federation
from tests.test_golden import without_timing
from tests.test_resume import assert_same_end, run_with_stops


def test_the_mean_by_hand():
    """Share 1/2: models 4, 8 and 1 are 4; (4/2 + 8) / (3/2) = 20/3; (4/4 + 8/2 + 1) / (7/4) = 24/7."""
    model, before = nn.Linear(1, 1, bias=False), {"weight": torch.tensor([[4.0]])}
    for rounds, (newest, wanted) in enumerate([(8.0, 20 / 3), (1.0, 24 / 7)], start=2):
        nn.init.constant_(model.weight, newest)
        average_weights(model, before, share=0.5, rounds=rounds)
        assert model.weight.item() == pytest.approx(wanted)
        before = {"weight": model.weight.detach().clone()}
    assert newest_share(0.9, 1) == 1.0, "the first model is the mean"
    assert newest_share(0.9, 1000) == pytest.approx(0.1)


def test_it_is_the_weighted_mean_of_all_models():
    values = torch.randn(12, generator=torch.Generator().manual_seed(3)).tolist()
    model, before = nn.Linear(1, 1, bias=False), {"weight": torch.tensor([[values[0]]])}
    for rounds, value in enumerate(values[1:], start=2):
        nn.init.constant_(model.weight, value)
        average_weights(model, before, share=0.8, rounds=rounds)
        before = {"weight": model.weight.detach().clone()}
    weights = [0.8 ** (len(values) - 1 - i) for i in range(len(values))]
    wanted = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert model.weight.item() == pytest.approx(wanted, rel=1e-5)


def test_batch_norms_are_measured_again_and_nothing_else_moves():
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(norm, nn.Dropout(0.5), nn.Linear(2, 2)).train()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.fill_(7.0)
    samples = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
    weights = {name: one.clone() for name, one in model.named_parameters()}
    renew_statistics(model, samples, inputs_of=lambda part: part)
    assert norm.running_mean.tolist() == [2.0, 1.0]
    assert norm.running_var.tolist() == [4.0, 0.0], "over n - 1, as torch keeps it"
    assert norm.momentum == 0.1
    assert model.training
    assert all(torch.equal(weights[name], one) for name, one in model.named_parameters())


@pytest.fixture(scope="module")
def averaged(shallow) -> Experiment:
    return change(shallow, lr=0.05, snapshot_average=0.5)


@pytest.fixture(scope="module")
def after_two(averaged) -> Federation:
    federation = Federation(averaged)
    federation.next_round()
    federation.next_round()
    return federation


def test_the_students_own_weights_are_not_averaged_and_the_first_average_is_the_model(averaged):
    federation = Federation(averaged)
    federation.next_round()
    peer = federation.peer(0)
    own, kept = peer.model.state_dict(), peer.variants[AVERAGE]
    assert int(peer.memory[AVERAGED_ROUNDS]) == 1
    assert all(torch.equal(own[name], kept[name]) for name, _ in peer.model.named_parameters())
    means = [name for name in own if name.endswith("running_mean")]
    assert means
    assert not all(torch.equal(own[name], kept[name]) for name in means), "of all its samples, not of the last batches"


def test_weights_and_statistics_that_are_published_are_those_of_the_average(after_two):
    peer = after_two.peer(1)
    published, kept, own = peer.published_weights(3), peer.variants[AVERAGE], peer.model.state_dict()
    assert all(torch.equal(published[name], kept[name]) for name in kept)
    assert any(not torch.equal(published[name], own[name]) for name, _ in peer.model.named_parameters())
    message = peer.snapshot(3)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in read_state(message.body).items())

    peer.model.load_state_dict(kept)
    measured = peer._validated(peer.model)
    assert peer.statistics().accuracies == measured.validation[0].class_accuracies
    assert peer.statistics().counts == measured.validation[0].counts


def test_a_committee_hears_the_average(after_two):
    peer = after_two.peer(0)
    heard = peer.test_as_member(3)
    peer.model.load_state_dict(peer.variants[AVERAGE])
    peer.variants.clear()
    assert torch.allclose(heard["global"], peer.test_logits(3, as_member=False)["global"], atol=1e-5)


def test_an_attacker_lies_with_its_average(shallow):
    federation = Federation(change(shallow, snapshot_average=0.5, attack="sign-flip", attackers=1))
    federation.next_round()
    [liar] = federation.context.adversary.attackers
    peer = federation.peer(liar)
    published, kept = peer.published_weights(2), peer.variants[AVERAGE]
    flipped = [name for name in kept if not torch.equal(published[name], kept[name])]
    assert len(flipped) == 2
    assert all(torch.equal(published[name], -kept[name]) for name in flipped)


def test_switched_off_there_is_nothing_to_keep(shallow):
    federation = Federation(change(shallow, snapshot_average=0.0))
    federation.next_round()
    peer = federation.peer(0)
    assert AVERAGE not in peer.variants
    assert AVERAGED_ROUNDS not in peer.memory


def test_a_run_that_was_stopped_ends_the_same_and_measures_both(averaged, tmp_path):
    wanted = change(averaged, active=3, committee=True)
    whole = crad.run(wanted, output=tmp_path / "whole")
    run_with_stops(wanted, tmp_path / "stopped", after_steps=[7], stage="learning")
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")
    assert AVERAGE in whole.summary["variants"]
    member = whole.models.published(0).module.state_dict()
    assert any(not torch.equal(member[name], one) for name, one in whole.models[0].module.state_dict().items())


def test_private_training_averages_what_is_noised_already(shallow):
    private = {"private_training": 8.0, "delta": 1e-3, "sampling_rate": 0.2, "noise_multiplier": 20.0, "clients": 2}
    federation = Federation(change(shallow, snapshot_average=0.5, models=("cnn6",), **private))
    federation.next_round()
    plain = Federation(change(shallow, models=("cnn6",), **private))
    plain.next_round()
    own, other = (one.peer(0).model.state_dict() for one in (federation, plain))
    assert all(torch.equal(own[name], other[name]) for name in own), "nobody has learned from an average yet"
    assert federation.peer(0).evaluation.private == plain.peer(0).evaluation.private, "the first average is the model"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"method": "experts"}, r"snapshot_average = 0.5 is for methods whose students teach each other"),
        ({"method": "local"}, r"snapshot_average = 0.5 is for methods that combine snapshots by a rule"),
        ({"dataset": "heart", "models": ("gradient-boosting",)}, r"'gradient-boosting' is fitted in one call"),
        ({"snapshot_average": 1.0}, r"snapshot_average = 1.0: input should be less than 1"),
    ],
)
def test_where_there_is_nothing_to_average_it_is_refused(settings, line):
    with pytest.raises(ConfigError, match=line):
        check(Experiment(**{"snapshot_average": 0.5, **settings}))


def check(experiment: Experiment) -> None:
    check_recipe(experiment, resolve_method(experiment.method, experiment.method_settings))


def test_it_reaches_the_second_round(shallow):
    plain, averaged = (
        without_timing(crad.run(change(shallow, rounds=2, snapshot_average=share)).rounds) for share in (0.0, 0.5)
    )
    losses = [[[client["losses"] for client in line["clients"]] for line in one] for one in (plain, averaged)]
    assert losses[0][0] == losses[1][0], "nobody had published an average before the first round"
    assert losses[0][1] != losses[1][1]
