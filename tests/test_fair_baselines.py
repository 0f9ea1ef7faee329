"""What the compared methods are given so that none is weak by our fault; what came later changes no run of before."""

from __future__ import annotations

import pytest
import torch

import crad
from crad.config import Experiment
from crad.federation.method import Before, MethodSpec
from crad.federation.peer import log_prior
from crad.methods import METHODS, resolve_method
from crad.runs.directory import experiment_hash
from crad.runs.resolution import resolve_experiment
from tests.conftest import change
from tests.federation import Federation

Settings = dict[str, dict[str, bool | int | float | str]]

SETTINGS_OF_BEFORE: Settings = {  # what experiment.toml of 0.2.0's first runs has
    "dfml": {"mutual_epochs": 1, "teacher_weights": "size", "period": 10},
    "fedmd": {"digest_lr": 2e-4, "digest_batch": 128, "digest_epochs": 1, "pretrain_epochs": 0},
    "msfkd": {"digest_lr": 2e-4, "digest_batch": 128, "digest_epochs": 1, "keep_fraction": 0.5},
}
LATER: Settings = {"dfml": {"peaks": "both"}, "fedmd": {"digest_samples": 5000}, "msfkd": {"ties": "probability"}}
USUAL: Settings = {"dfml": {"peaks": "cycle"}, "fedmd": {"digest_samples": 0}, "msfkd": {"ties": "lowest"}}


# --- settings that came later


@pytest.mark.parametrize("method", SETTINGS_OF_BEFORE)
def test_a_run_of_before_is_the_same_as_one_of_now_said_or_not(method):
    before = resolve_experiment(Experiment(method=method, method_settings=SETTINGS_OF_BEFORE[method]))
    for said in ({}, USUAL[method]):
        now = resolve_experiment(Experiment(method=method, method_settings=said))
        assert now.method_settings == before.method_settings == SETTINGS_OF_BEFORE[method]
        assert experiment_hash(now) == experiment_hash(before)
    changed = resolve_experiment(Experiment(method=method, method_settings=LATER[method]))
    assert changed.method_settings == {**SETTINGS_OF_BEFORE[method], **LATER[method]}
    assert experiment_hash(changed) != experiment_hash(before)


def test_what_is_not_written_down_is_the_default_everywhere():
    """Who reads a file without it takes the default: it may never be another value."""
    found = [
        (name, key, one.value, field.default)
        for name, kind in METHODS.items()
        if isinstance(kind, type) and issubclass(kind, MethodSpec)
        for key, field in kind.model_fields.items()
        for one in field.metadata
        if isinstance(one, Before)
    ]
    assert {key for _, key, _, _ in found} == {"peaks", "ties", "digest_samples"}
    assert all(value == default for _, _, value, default in found)


# --- the local face under the balanced loss


@pytest.fixture(scope="module")
def experiment(tiny) -> Experiment:
    return change(tiny, clients=2, models=("cnn6@0.125",), rounds=3, lr=0.05, committee=False, metrics=False)


def federation_of(experiment: Experiment, rounds: int) -> Federation:
    federation = Federation(experiment)
    for _ in range(rounds):
        federation.next_round()
    return federation


def hits_by_hand(federation: Federation, client: int, weights: dict[str, torch.Tensor] | None = None) -> list[int]:
    """Classify a client's own test images by logits plus the logarithm of its class shares."""
    peer, data = federation.peer(client), federation.context.data
    if weights is not None:
        peer.model.load_state_dict(weights)
    images = data.samples(data.shards[client].test)
    shares = torch.bincount(peer.train.labels, minlength=peer.num_classes).double() / len(peer.train.labels)
    with torch.no_grad():
        logits_BC = peer.model.eval()(data.preprocessor.inputs(images.samples)).double()
    right = (logits_BC + shares.log().clamp(min=-1e9)).argmax(dim=1) == images.labels
    return torch.bincount(images.labels[right], minlength=peer.num_classes).tolist()


@pytest.mark.parametrize("method", ["uniform", "dfml", "fedmd"])
def test_every_baseline_under_the_balanced_loss_answers_its_own_samples_with_its_class_shares(experiment, method):
    federation = federation_of(change(experiment, method=method, proxy_size=24, local_loss="balanced"), 1)
    for client in range(experiment.clients):
        peer = federation.peer(client)
        peer.test()
        assert peer.evaluation.local is not None
        assert list(peer.evaluation.local[0].hits) == hits_by_hand(federation, client)
        assert peer.evaluation.plain is not None, "what others see goes without them"


def test_dfml_learns_the_same_under_the_balanced_loss_and_only_answers_otherwise(experiment):
    """Its own loss is the balanced one: the same weights to the last bit. Kept peaks have the local face too."""
    settings = {"peaks": "kept", "period": 2}  # alpha 0, 1, 0: the kept peak is that of round 2
    dfml = change(experiment, method="dfml", method_settings=settings)
    plain, balanced = federation_of(dfml, 3), federation_of(change(dfml, local_loss="balanced"), 3)
    assert log_prior(plain.context, (0,)) is None
    differing = 0
    for client in range(experiment.clients):
        ours, theirs = balanced.peer(client), plain.peer(client)
        assert all(torch.equal(one, theirs.model.state_dict()[name]) for name, one in ours.model.state_dict().items())
        peak = ours.variants["kept-peak"]
        differing += any(not torch.equal(one, peak[name]) for name, one in ours.model.state_dict().items())
        for peer in (ours, theirs):
            peer.test()
        kept = ours.evaluation.variants["kept-peak"]
        assert kept.local is not None
        assert list(kept.local[0].hits) == hits_by_hand(balanced, client, peak)
        assert ours.evaluation.overall == theirs.evaluation.overall, "the global face has no shares in it"
    assert differing == experiment.clients
    faces = [[peer.evaluation.validation for peer in one.peers()] for one in (plain, balanced)]
    assert faces[0] != faces[1], "some answer changes with the shares"


# --- at work


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_mutual_epochs_are_as_many_as_asked_for(experiment, epochs):
    """An epoch has as many batches of the aggregator's samples as fit, and a step of every model for each."""
    chosen = change(experiment, method="dfml", method_settings={"mutual_epochs": epochs}, rounds=1)
    [record] = crad.run(chosen).rounds
    [aggregator] = [one for one in record["clients"] if one["notes"].get("aggregator")]
    own = aggregator["clipped_steps"]["local"]["steps"]
    found = aggregator["clipped_steps"].get("mutual", {"steps": 0})["steps"]
    assert found == epochs * own * experiment.clients


def test_a_digest_that_scales_takes_more_steps_than_one_epoch(experiment):
    """24 images in batches of 8 are three steps; to see 60 takes three epochs, nine steps."""
    chosen = change(experiment, method="fedmd", proxy_size=24, rounds=1)
    steps = []
    for samples in (0, 60):
        settings = {"digest_batch": 8, "digest_samples": samples}
        [record] = crad.run(change(chosen, method_settings=settings)).rounds
        steps.append({one["clipped_steps"]["digest"]["steps"] for one in record["clients"]})
    assert steps == [{3}, {9}]


def test_a_method_says_only_the_later_settings_that_were_changed():
    assert "ties" not in resolve_method("msfkd", {}).settings
    assert resolve_method("msfkd", {"ties": "probability"}).settings["ties"] == "probability"
    assert resolve_method("dfml", {"peaks": "cycle"}).unsaid == {"peaks"}
