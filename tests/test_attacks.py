"""Simulated attacks: each does what it says and nothing else, wherever the work is done, and only to those it meets."""

from __future__ import annotations

import html
import json
import re

import pytest
import torch
from typer.testing import CliRunner

import crad
from crad.cli import make_app
from crad.config import AttackKind, Experiment, make_experiment, to_toml
from crad.errors import ConfigError
from crad.federation.attacks import (
    ATTACKS,
    CLAIMED_SAMPLES,
    POISONED_SHARE,
    TARGET_CLASS,
    draw_attackers,
    with_trigger,
)
from crad.federation.message import read_body, read_manifest
from crad.federation.peer import log_prior
from crad.runs.callbacks import LambdaCallback
from crad.runs.directory import experiment_hash
from tests.conftest import change
from tests.federation import Federation
from tests.test_golden import without_timing
from tests.test_resume import assert_same_weights

KINDS = list(ATTACKS)


def attacked(shallow, kind, attackers=1, **settings):
    return change(shallow, attack=kind, attackers=attackers, **settings)


def published(federation, index, round_index):
    """Weights and statistics as the others get them."""
    peer = federation.peer(index)
    message = peer.snapshot(round_index)
    manifest = read_manifest(message, sender=index, round_index=round_index, kind="snapshot")
    return read_body(message, sender=index, expected=peer.model.state_dict()), manifest.statistics


def same_tensors(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# --- who attacks, and how one says it


def test_every_kind_of_the_settings_is_there():
    from typing import get_args

    assert set(get_args(AttackKind)) == set(ATTACKS)


def test_the_same_clients_attack_whatever_the_attack():
    drawn = {kind: draw_attackers(Experiment(attack=kind, attackers=3, seed=4)) for kind in KINDS}
    assert len(set(drawn.values())) == 1
    assert len(drawn["noise"]) == 3
    assert draw_attackers(Experiment(liars=3, seed=4)) == drawn["noise"]
    assert draw_attackers(Experiment(seed=4)) == frozenset()
    assert draw_attackers(Experiment(attack="noise", attackers=3, seed=5)) != drawn["noise"]


def test_liars_are_an_alias_with_the_same_identity(tmp_path):
    old, new = Experiment(liars=2), Experiment(attack="noise", attackers=2)
    assert old == new
    assert (
        experiment_hash(old)
        == experiment_hash(new)
        == "3f06c759f1600a006c600df974884519c6e97cc501f45a2d83b4079b37313a82"
    )
    assert len({experiment_hash(Experiment(attack=kind, attackers=2)) for kind in KINDS}) == len(KINDS)
    assert experiment_hash(Experiment(liars=0)) == experiment_hash(Experiment())
    stored = tmp_path / "experiment.toml"
    stored.write_text(to_toml(Experiment()).replace('attack = "none"\nattackers = 0\n', "liars = 2\n"))
    assert "liars" in stored.read_text()
    assert make_experiment(path=stored) == new
    assert make_experiment({"liars": "2"}) == new


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attack": "nois", "attackers": 1}, "attack = 'nois': input should be 'noise', 'label-flip'"),
        ({"attack": "noise"}, "attack is 'noise', but attackers is 0: say how many"),
        ({"attackers": 2}, "attackers is 2, but no attack is chosen: set attack to one of noise, label-flip"),
        ({"attack": "noise", "attackers": 4, "clients": 4}, "attackers is 4, but there are only 4 clients"),
        ({"attack": "noise", "attackers": -1}, "attackers = -1"),
        ({"attack": "collude", "attackers": 2, "active": 5}, "only 5 of 10 clients are active"),
        ({"liars": 2, "attack": "inflated"}, "liars = 2 is short for attack noise"),
        ({"liars": 2, "attackers": 2}, "liars = 2 is short for attack noise"),
        ({"liars": -1}, "liars = -1: expected a whole number"),
        ({"liars": 1.5}, "liars = 1.5: expected a whole number"),
        ({"liars": "many"}, "liars = 'many': expected a whole number"),
        ({"liars": 10}, "attackers is 10, but there are only 10 clients"),
    ],
)
def test_what_makes_no_attack_is_refused_in_one_line(settings, words):
    with pytest.raises(ConfigError) as caught:
        Experiment(**settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_method_without_a_rule_cannot_be_attacked(shallow):
    with pytest.raises(ConfigError, match="attack = 'inflated' is for methods that combine snapshots by a rule"):
        crad.run(attacked(shallow, "inflated", method="fedmd"))


# --- what is published


def test_noise_is_what_liars_published_bit_by_bit(shallow, tmp_path):
    crad.run(change(shallow, rounds=2, liars=1), output=tmp_path / "liars")
    crad.run(attacked(shallow, "noise", rounds=2), output=tmp_path / "noise")
    assert_same_weights(tmp_path / "liars", tmp_path / "noise")
    federation = Federation(attacked(shallow, "noise"))
    (attacker,) = draw_attackers(federation.context.experiment)
    sent, claims = published(federation, attacker, 1)
    own = federation.peer(attacker).model.state_dict()
    assert not any(
        torch.equal(sent[name], own[name]) for name in own if own[name].is_floating_point() and own[name].any()
    )
    assert set(claims.counts) == {CLAIMED_SAMPLES}


def test_an_inflated_client_lies_about_its_figures_alone(shallow):
    federation, honest = Federation(attacked(shallow, "inflated")), Federation(shallow)
    (attacker,) = draw_attackers(federation.context.experiment)
    sent, claims = published(federation, attacker, 1)
    own, measured = published(honest, attacker, 1)
    assert same_tensors(sent, own)
    assert set(claims.counts) == {CLAIMED_SAMPLES}
    assert set(claims.accuracies) == {1.0}
    assert set(measured.counts) != {CLAIMED_SAMPLES}


def test_a_sign_flip_negates_the_logits_and_keeps_the_figures(tiny):
    for index in range(3):  # every family stands at one of these places
        seed = next(seed for seed in range(50) if index in draw_attackers(attacked(tiny, "sign-flip", seed=seed)))
        federation = Federation(attacked(tiny, "sign-flip", seed=seed))
        peer = federation.peer(index)
        sent, said = published(federation, index, 1)
        inputs = federation.context.data.preprocessor.inputs(federation.context.data.global_test.samples[:8])
        with torch.no_grad():
            logits_BC = peer.model.eval()(inputs)
            peer.model.load_state_dict(sent)
            assert torch.equal(peer.model(inputs), -logits_BC)
        assert said == published(Federation(change(tiny, seed=seed)), index, 1)[1]


def test_a_free_rider_publishes_its_first_weights_for_ever(shallow):
    federation = Federation(attacked(shallow, "free-rider"))
    (attacker,) = draw_attackers(federation.context.experiment)
    first = bytes(federation.peer(attacker).snapshot(1).body)
    for round_index in (1, 2):
        federation.next_round()
        peer = federation.peer(attacker)
        assert bytes(peer.snapshot(round_index + 1).body) == first
        assert not same_tensors(peer.model.state_dict(), published(federation, attacker, round_index + 1)[0])
        assert published(federation, attacker, round_index + 1)[1].accuracies == peer.statistics().accuracies


def test_colluders_publish_one_model_and_one_claim(shallow):
    federation = Federation(attacked(shallow, "collude", attackers=2, models=("cnn6",)))
    one, two = sorted(draw_attackers(federation.context.experiment))
    for round_index in (1, 2):
        (first, claims), (second, others) = (published(federation, index, round_index) for index in (one, two))
        assert same_tensors(first, second)
        assert claims == others
        assert set(claims.counts) == {CLAIMED_SAMPLES}
        federation.next_round()
    honest = next(index for index in range(4) if index not in (one, two))
    assert not same_tensors(first, published(federation, honest, 2)[0])
    assert torch.equal(federation.peer(one).train.samples, federation.peer(two).train.samples)


def test_colluders_of_two_architectures_train_on_one_lie(shallow):
    federation = Federation(attacked(shallow, "collude", attackers=3))
    done = federation.next_round()
    drawn = sorted(draw_attackers(federation.context.experiment))
    trained = [federation.peer(index).train for index in drawn]
    assert all(torch.equal(one.labels, trained[0].labels) for one in trained)
    true = federation.context.data.samples(federation.context.data.shards[drawn[0]].train)
    assert torch.equal(trained[0].labels, 3 - true.labels)
    assert all(done.learned[index].trust == {} for index in drawn), "they listen to nobody"
    (honest,) = {0, 1, 2, 3} - set(drawn)
    assert set(done.learned[honest].trust) == set(drawn)
    assert "refused" not in done.learned[honest].notes, "each has valid weights of its own architecture"


# --- what is trained on


@pytest.mark.parametrize(("kind", "flipped"), [("label-flip", [3, 2, 1, 0]), ("label-flip-pairs", [1, 0, 3, 2])])
def test_flipped_labels_are_trained_on_and_believed(shallow, kind, flipped):
    federation, honest = Federation(attacked(shallow, kind, local_loss="balanced")), Federation(shallow)
    (attacker,) = draw_attackers(federation.context.experiment)
    table = torch.tensor(flipped)
    own, true = federation.peer(attacker), honest.peer(attacker)
    assert torch.equal(own.train.samples, true.train.samples)
    assert torch.equal(own.train.labels, table[true.train.labels])
    assert [own.evaluation.validation[0].counts[label] for label in flipped] == list(
        true.evaluation.validation[0].counts
    )
    prior_C = log_prior(federation.context, (attacker,))
    assert own.log_prior_C is not None
    assert prior_C is not None
    assert torch.equal(own.log_prior_C[table], prior_C)
    others = [index for index in range(4) if index != attacker]
    for index in others:
        assert torch.equal(federation.peer(index).train.labels, honest.peer(index).train.labels)


def test_the_last_of_an_odd_number_of_classes_has_nobody_to_change_with():
    relabel = ATTACKS["label-flip-pairs"].relabel
    assert relabel is not None
    assert relabel(torch.arange(5), 5).tolist() == [1, 0, 3, 2, 4]


def test_a_trigger_is_a_patch_in_the_corner():
    images = torch.full((2, 3, 32, 16), 7, dtype=torch.uint8)
    marked = with_trigger(images)
    assert marked[0, 0, -2:, -2:].tolist() == [[0, 255], [255, 0]]
    marked[:, :, -2:, -2:] = 7
    assert torch.equal(marked, images)


def test_a_backdoor_marks_some_images_and_measures_itself_on_true_ones(shallow):
    federation, honest = Federation(attacked(shallow, "backdoor")), Federation(shallow)
    (attacker,) = draw_attackers(federation.context.experiment)
    own, true = federation.peer(attacker).train, honest.peer(attacker).train
    changed = (own.samples != true.samples).flatten(1).any(dim=1)
    assert int(changed.sum()) == round(POISONED_SHARE * len(own))
    assert torch.equal(own.samples[changed], with_trigger(true.samples[changed]))
    assert set(own.labels[changed].tolist()) == {TARGET_CLASS}
    assert torch.equal(own.labels[~changed], true.labels[~changed])
    assert federation.peer(attacker).evaluation.validation == honest.peer(attacker).evaluation.validation


def test_the_success_of_a_backdoor_is_counted_on_marked_images_of_other_classes(shallow):
    experiment = attacked(shallow, "backdoor", rounds=2, lr=0.05)
    result, federation = crad.run(experiment), Federation(experiment)
    federation.next_round()
    federation.next_round()
    test = federation.context.data.global_test
    marked = federation.context.data.preprocessor.inputs(with_trigger(test.samples[test.labels != TARGET_CLASS]))
    success = []
    for client in result.rounds[-1]["clients"]:
        peer = federation.peer(client["client"])
        with torch.no_grad():
            fooled = peer.model.eval()(marked).argmax(dim=1) == TARGET_CLASS
        counted = peer.evaluation.triggered
        assert counted is not None
        assert (counted.counts, counted.hits) == ((60, 0, 0, 0), (int(fooled.sum()), 0, 0, 0))
        assert client["attack_success"] == 100 * counted.hits[0] / 60
        success += [] if client.get("is_attacker") else [client["attack_success"]]
    assert len(success) == 3
    assert result.summary["honest"]["attack_success"] == pytest.approx(sum(success) / 3)


# --- the others


@pytest.fixture(scope="module")
def honest_run(shallow):
    return crad.run(change(shallow, rounds=1))


@pytest.mark.parametrize("kind", KINDS)
def test_an_attack_reaches_only_those_who_learn_from_it(shallow, kind, honest_run):
    """Before anybody has learned, honest clients are what they would be; after a round an attack has been felt."""
    experiment = attacked(shallow, kind, attackers=2, rounds=1)
    federation, honest = Federation(experiment), Federation(shallow)
    for index in set(range(4)) - draw_attackers(experiment):
        one, two = published(federation, index, 1), published(honest, index, 1)
        assert same_tensors(one[0], two[0])
        assert one[1] == two[1]
    result = crad.run(experiment)
    losses = [
        [client["losses"] for client in run.rounds[0]["clients"] if client["client"] not in draw_attackers(experiment)]
        for run in (result, honest_run)
    ]
    # Who publishes its first model and true figures of it has not lied yet in the first round.
    assert (losses[0] == losses[1]) == (kind in ("backdoor", "free-rider", "honest"))


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("kind", KINDS)
def test_an_attack_is_the_same_in_two_processes_and_after_a_stop(shallow, tmp_path, kind):
    """In one process from end to end; and in two, stopped in the middle and taken up again."""
    wanted = attacked(shallow, kind, attackers=2, method="crad-plus", rounds=2)
    crad.run(wanted, output=tmp_path / "alone")

    class StopError(Exception):
        pass

    def stop(record):
        raise StopError

    two = change(wanted, workers=2)
    with pytest.raises(StopError):
        crad.run(two, output=tmp_path / "two", callbacks=[LambdaCallback(on_round=stop)])
    crad.run(two, output=tmp_path / "two", resume=True)
    assert_same_weights(tmp_path / "two", tmp_path / "alone")


def test_the_control_is_an_honest_run_with_the_same_clients_set_apart(shallow):
    apart = {"attack": "honest", "attackers": 1}
    control, honest = (crad.run(change(shallow, rounds=2, **more)) for more in (apart, {}))
    marks = ("is_attacker", "attack_success")
    stripped = [
        {**record, "clients": [{k: v for k, v in one.items() if k not in marks} for one in record["clients"]]}
        for record in without_timing(control.rounds)
    ]
    assert stripped == without_timing(honest.rounds)
    assert "honest" not in honest.summary


def test_the_means_of_the_honest_leave_the_attackers_out(shallow):
    result = crad.run(attacked(shallow, "label-flip", rounds=3, lr=0.05))
    (attacker,) = draw_attackers(result.experiment)
    means = {}
    for record in result.rounds:
        honest = [client for client in record["clients"] if client["client"] != attacker]
        assert [client["client"] for client in record["clients"] if client.get("is_attacker")] == [attacker]
        means[record["round"]] = [
            sum(client[key] for client in honest) / 3
            for key in ("validation_accuracy", "global_accuracy", "local_accuracy")
        ]
    chosen = max(means, key=lambda index: (means[index][0], -index))
    said = result.summary["honest"]
    assert said["best_round"] == chosen
    assert [said["global_accuracy"], said["local_accuracy"]] == pytest.approx(means[chosen][1:])
    assert result.summary["attackers"] == [attacker]
    assert said["global_accuracy"] != result.summary["global_accuracy"]


@pytest.mark.parametrize("kind", ["label-flip", "collude", "sign-flip"])
def test_the_page_and_the_inspector_mark_attackers(shallow, tmp_path, kind):
    result = crad.run(attacked(shallow, kind, rounds=1, method="crad-plus"), output=tmp_path / "run")
    (attacker,) = draw_attackers(result.experiment)
    page = html.unescape((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert f"A simulated attack ({kind}): 1 of 4 clients {ATTACKS[kind].does.split(',')[0]}" in page
    assert "Means over the honest clients alone" in page
    assert f"{attacker}, lies</" in page
    survey = json.loads((tmp_path / "run" / "inspection.json").read_text())
    assert [teacher["client"] for teacher in survey["teachers"] if teacher["is_liar"]] == [attacker]


def test_the_command_line_has_both_ways_of_saying_it(tiny_npz, tmp_path):
    common = [
        "run",
        "--dataset",
        str(tiny_npz),
        "--clients",
        "4",
        "--rounds",
        "1",
        "--width",
        "0.125",
        "--workers",
        "1",
    ]
    for name, flags in {"new": ["--attack", "noise", "--attackers", "1"], "old": ["--liars", "1"]}.items():
        arguments = [*common, *flags, "--quiet", "--output", str(tmp_path / name)]
        assert CliRunner().invoke(make_app(arguments), arguments).exit_code == 0
    shown = CliRunner().invoke(make_app(["run"]), ["run", "--resume", str(tmp_path / "new")]).output
    summary = json.loads((tmp_path / "new" / "summary.json").read_text())
    figures = {key: re.escape(f"{summary['honest'][key]:.2f} %") for key in ("global_accuracy", "local_accuracy")}
    assert re.search(rf"global accuracy, honest clients\s+{figures['global_accuracy']}", shown)
    assert re.search(rf"local accuracy, honest clients\s+{figures['local_accuracy']}", shown)
    assert "global accuracy  " not in shown, "no mean that has the attackers in it"
    assert_same_weights(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "old" / "experiment.toml").read_text() == (tmp_path / "new" / "experiment.toml").read_text()
