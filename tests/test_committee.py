"""A committee: what several clients' models say together, from a run, from the command line and from one file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import crad
from crad.data.readers.npz import read_npz
from crad.errors import AggregationError, ConfigError, CradError, RunError
from crad.federation.attacks import CLAIMED_SAMPLES, draw_attackers
from crad.federation.context import build_run_context
from crad.federation.message import Statistics
from crad.federation.peer_evaluation import ClassScore, Evaluation
from crad.inspection import RunInspector
from crad.prediction import committee as committees
from crad.prediction.committee import Committee, CommitteePredictor, MemberModels
from crad.prediction.committee_card import CommitteeCard, CommitteeMember
from crad.prediction.model_card import ModelCard
from crad.prediction.run_models import with_statistics
from crad.prediction.trained_model import TorchPredictor
from tests.conftest import change
from tests.reference import reference_trace
from tests.test_export import ELSEWHERE

T = 3.0


def small(num_classes: int, in_channels: int) -> nn.Module:
    layers = nn.Conv2d(in_channels, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(24, num_classes))


@pytest.fixture(scope="module")
def ran(tiny, tmp_path_factory):
    """Four clients that trained alone, whose models are exchanged once."""
    folder = tmp_path_factory.mktemp("ran") / "run"
    settings = {"method": "local", "rounds": 2, "lr": 0.05, "models": ("cnn6", "cnn6-wide"), "committee": True}
    return crad.run(change(tiny, **settings), output=folder)


@pytest.fixture(scope="module")
def images(tiny_npz):
    return read_npz(tiny_npz).test_images


@pytest.fixture
def copied(ran, tmp_path):
    """The same run directory, to be damaged."""
    return shutil.copytree(ran.directory, tmp_path / "run")


def edit_models(folder, change_peer):
    written = json.loads((folder / "models.json").read_text())
    for peer in written["peers"]:
        change_peer(peer)
    (folder / "models.json").write_text(json.dumps(written))


# --- three members, by hand


class Always(nn.Module):
    """A network that says the same of every image."""

    def __init__(self, probabilities):
        super().__init__()
        self.said_C = nn.Parameter(torch.tensor(probabilities).log(), requires_grad=False)

    def forward(self, inputs):
        return self.said_C.expand(len(inputs), -1)


SAID = {4: [0.9, 0.1], 7: [0.6, 0.4], 9: [0.2, 0.8]}
COUNTS = {4: (30.0, 10.0), 7: (10.0, 10.0), 9: (0.0, 20.0)}


def by_hand(
    *, rule="support-all", teacher_prior="keep", temperature=1.0, said=SAID, counts=COUNTS, shares=(0.25, 0.75)
):
    card = ModelCard("cnn6", ("cat", "dog"), (8, 8, 1), None, (0.0,), (1.0,))
    members = tuple(
        CommitteeMember(client, card, Statistics(counts=counts[client], accuracies=(0.5, 0.5))) for client in said
    )
    settings = {"rule": rule, "teacher_prior": teacher_prior, "temperature": temperature}
    settings |= {"min_support": 2.0, "epsilon": 1e-12, "unsupported": "consensus"}
    log_prior = tuple(np.log(shares).tolist())
    about = CommitteeCard(replace(card, log_prior=log_prior, architecture="committee"), members, 4, settings)
    models = MemberModels(lambda client: TorchPredictor(Always(said[client]), card))
    return Committee(about, CommitteePredictor(about, models, about.committee_rule()))


ONE = np.zeros((1, 8, 8, 1), np.uint8)


def test_members_are_weighed_by_their_samples():
    """Cat: (30 x 0.9 + 10 x 0.6) / 40 = 0.825; dog: (10 x 0.1 + 10 x 0.4 + 20 x 0.8) / 40 = 0.525."""
    committee = by_hand()
    assert committee.members == (4, 7, 9)
    [said] = committee.predict_proba(ONE)
    assert said == pytest.approx([0.825 / 1.35, 0.525 / 1.35], abs=1e-6)
    assert committee.predict(ONE).tolist() == ["cat"]


def test_the_local_face_has_the_shares_of_the_client_whom_it_serves():
    """Cat 0.825 x 0.25 against dog 0.525 x 0.75: what is three times as frequent wins."""
    [said] = by_hand().predict_proba(ONE, face="local")
    cat, dog = 0.825 * 0.25, 0.525 * 0.75
    assert said == pytest.approx([cat / (cat + dog), dog / (cat + dog)], abs=1e-6)
    assert by_hand().predict(ONE, face="local").tolist() == ["dog"]


def test_a_class_that_the_client_has_never_seen_is_not_in_its_local_face():
    [said] = by_hand(shares=(1.0, 1e-45)).predict_proba(ONE, face="local")
    assert said == pytest.approx([1.0, 0.0], abs=1e-6)


def test_every_members_own_shares_are_taken_out_before_it_is_weighed():
    corrected = []
    for client, (cat, dog) in SAID.items():
        cat, dog = cat / (COUNTS[client][0] + 0.5), dog / (COUNTS[client][1] + 0.5)
        corrected.append([cat / (cat + dog), dog / (cat + dog)])
    (cat4, dog4), (cat7, dog7), (_, dog9) = corrected
    cat, dog = (30 * cat4 + 10 * cat7) / 40, (10 * dog4 + 10 * dog7 + 20 * dog9) / 40
    [said] = by_hand(teacher_prior="remove").predict_proba(ONE)
    assert said == pytest.approx([cat / (cat + dog), dog / (cat + dog)], abs=1e-6)


def test_members_are_softened_to_be_combined_and_the_answer_is_sharpened_again():
    committee = by_hand(rule="uniform", temperature=2.0)
    rows = np.array(list(SAID.values())) ** 0.5
    answer = (rows / rows.sum(axis=1, keepdims=True)).mean(axis=0) ** 2
    assert committee.predict_proba(ONE)[0] == pytest.approx(answer / answer.sum(), abs=1e-6)
    local = answer * np.array([0.25, 0.75])  # the shares are added to what is sharp, once
    assert committee.predict_proba(ONE, face="local")[0] == pytest.approx(local / local.sum(), abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 3.0, 10.0])
def test_a_committee_of_one_says_what_its_model_says(temperature):
    committee = by_hand(said={4: [0.9, 0.1]}, temperature=temperature)
    assert committee.predict_proba(ONE)[0] == pytest.approx([0.9, 0.1], abs=1e-5)
    local = np.array([0.9 * 0.25, 0.1 * 0.75])
    assert committee.predict_proba(ONE, face="local")[0] == pytest.approx(local / local.sum(), abs=1e-5)


def test_a_class_without_support_has_the_plain_mean_and_is_named():
    counts = {4: (0.0, 10.0), 7: (1.0, 10.0), 9: (0.0, 20.0)}
    committee = by_hand(counts=counts)
    cat, dog = (0.9 + 0.6 + 0.2) / 3, (10 * 0.1 + 10 * 0.4 + 20 * 0.8) / 40
    assert committee.predict_proba(ONE)[0] == pytest.approx([cat / (cat + dog), dog / (cat + dog)], abs=1e-6)
    assert committee.unsupported_classes == ("cat",)
    assert by_hand(counts=counts, rule="uniform").unsupported_classes == ()


def test_who_gives_no_numbers_on_an_image_is_not_heard_there():
    rule = by_hand().torch_predictor.rule
    logits_KBC = torch.tensor([SAID[4], SAID[7], SAID[9]]).log().unsqueeze(1).repeat(1, 3, 1)
    logits_KBC[0, 1, 0] = torch.nan
    said_BC = rule.probabilities(logits_KBC)
    cat, dog = 0.6, (10 * 0.4 + 20 * 0.8) / 30
    assert said_BC[1].tolist() == pytest.approx([cat / (cat + dog), dog / (cat + dog)], abs=1e-6)
    assert said_BC[[0, 2]].tolist() == pytest.approx(np.array([[0.825 / 1.35, 0.525 / 1.35]] * 2), abs=1e-6)
    logits_KBC[:, 2] = torch.inf
    with pytest.raises(AggregationError, match="no member gives finite numbers on input 2"):
        rule.probabilities(logits_KBC)


# --- a run's models


@pytest.fixture(scope="module")
def softened(ran, images):
    """What each model says of twenty images at the temperature: one image at a time, from its probabilities alone."""
    said = []
    for model in ran.models:
        rows = [model.predict_proba(image)[0].astype(np.float64) ** (1 / T) for image in images[:20]]
        said.append([(row / row.sum()).tolist() for row in rows])
    return said


@pytest.mark.parametrize("rule", ["support-all", "crad", "uniform", "inverse-ce"])
@pytest.mark.parametrize("face", ["global", "local"])
def test_a_committee_is_a_plain_loop_over_the_members(rule, face, ran, images, softened):
    committee = ran.committee(client=2, rule=rule, teacher_prior="keep", evidence="reported")
    record = json.loads((ran.directory / "models.json").read_text())
    statistics = [peer["statistics"] for peer in record["peers"]]
    columns = {name: [one[name] for one in statistics] for name in ("counts", "accuracies", "cross_entropies")}
    if rule == "support-all":
        expected = [_support_all([softened[k][b] for k in range(4)], columns["counts"]) for b in range(20)]
    else:
        expected = reference_trace(
            softened, columns["counts"], columns["accuracies"], rule=rule, cross_entropy=columns["cross_entropies"]
        ).target
    weighed = np.array(expected) ** ran.experiment.temperature  # what was softened is sharp again
    if face == "local":
        weighed *= np.array(record["peers"][2]["train_counts"]) / sum(record["peers"][2]["train_counts"])
    expected = weighed / weighed.sum(axis=1, keepdims=True)
    assert committee.predict_proba(images[:20], face) == pytest.approx(expected, abs=2e-6)


def _support_all(rows, counts):
    masses = []
    for c in range(len(rows[0])):
        weights = [count[c] if count[c] >= 2 else 0.0 for count in counts]
        heard = weights if sum(weights) else [1.0] * len(rows)
        masses.append(sum(w * row[c] for w, row in zip(heard, rows, strict=True)) / sum(heard))
    return [mass / sum(masses) for mass in masses]


def test_it_is_the_committee_that_the_run_measured(ran, tiny_npz):
    """The accuracies in the summary are those of predictions on raw images, global and for every client."""
    told, splits = ran.summary["committee"], read_npz(tiny_npz)
    data, overall = build_run_context(ran.experiment).data, []
    for client, shard in enumerate(data.shards):
        committee = ran.committee(client)
        assert (committee.rule, committee.teacher_prior, committee.evidence) == ("support-all", "remove", "pooled")
        assert list(committee.members) == told["members"]
        overall.append(100 * np.mean(committee.predict(splits.test_images, as_index=True) == splits.test_labels))
        said = ran.committee(client).predict(data.dataset.train_images[shard.test], "local", as_index=True)
        reached = 100 * np.mean(said == data.dataset.train_labels[shard.test])
        assert reached == pytest.approx(told["local_accuracy_per_client"][client])
    assert overall == pytest.approx(told["global_accuracy_per_client"])
    assert np.mean(overall) == pytest.approx(told["global_accuracy"])


def test_blocks_and_members_read_again_change_nothing(ran, images, monkeypatch):
    expected = ran.committee(client=0).predict_proba(images, "local")
    monkeypatch.setattr(committees, "BLOCK_VALUES", 1)
    committee = ran.committee(client=0)
    reads = []

    def read(client):
        reads.append(client)
        return ran.models[client]._predictor

    singly = CommitteePredictor(committee.about, MemberModels(read, kept_bytes=0), committee.torch_predictor.rule)
    assert singly(images[..., None], "local") == pytest.approx(expected, abs=1e-6)
    assert reads == [0, 1, 2, 3] * 2  # eighty images are two blocks of 64


def test_what_can_be_asked_of_a_committee(ran, images):
    committee = ran.committee(1, members=[3, 1], rule="uniform")
    assert (committee.members, committee.client, committee.rule) == ((1, 3), 1, "uniform")
    assert (committee.classes, committee.teacher_prior, committee.left_out) == (ran.models[0].classes, "remove", {})
    assert committee.predict_proba(images[0]).shape == (1, 4)
    assert committee.predict_proba(images[:0]).shape == (0, 4)
    assert repr(committee) == "<Committee of 2 by rule 'uniform': images 8x8x1, 4 classes>"
    colder = ran.committee(rule="uniform", teacher_prior="keep", temperature=1.0).predict_proba(images)
    assert colder == pytest.approx(np.mean([model.predict_proba(images) for model in ran.models], axis=0), abs=1e-6)


def test_a_rule_of_ones_own_combines(ran, images):
    from crad.aggregation.filters import keep_all

    first = crad.Rule(keep_all, lambda evidence, selection: torch.tensor([1.0, 0, 0, 0]).view(4, 1, 1))
    committee = ran.committee(rule=first, teacher_prior="keep", temperature=1.0)
    assert committee.rule == "a rule of your own"
    assert committee.predict_proba(images) == pytest.approx(ran.models[0].predict_proba(images), abs=1e-6)
    with pytest.raises(
        ConfigError, match=r"a \.safetensors file names its rule, and 'a rule of your own' is not built"
    ):
        ran.export(committee=committee)


def test_a_run_in_memory_has_a_committee_and_data_passed_in_memory_is_not_needed(tiny, tiny_npz, images, tmp_path):
    splits = read_npz(tiny_npz)
    data = crad.Dataset.from_arrays(splits.train_images, splits.train_labels, images, splits.test_labels)
    experiment = change(tiny, method="local", rounds=1, clients=2)
    inside = crad.run(experiment, data=data, models=[small])
    stored = crad.run(experiment, data=data, models=[small], output=tmp_path / "run")
    expected = inside.committee(0).predict_proba(images, "local")
    assert np.array_equal(stored.committee(0).predict_proba(images, "local"), expected)
    loaded = crad.load(tmp_path / "run", models=[small]).committee(0)
    assert np.array_equal(loaded.predict_proba(images, "local"), expected)
    with pytest.raises(ConfigError, match="model 'small' was an object in Python's memory"):
        crad.load(tmp_path / "run").committee(0)


def test_models_trained_without_their_prior_are_not_corrected_again(tiny, images):
    result = crad.run(change(tiny, method="local", rounds=1, models=("cnn6",), local_loss="balanced"))
    committee = result.committee(client=3)
    assert committee.teacher_prior == "keep"
    prior = result.models[3].card.log_prior
    assert committee.card.log_prior == pytest.approx(prior)
    logits = [torch.tensor(model.predict_proba(images)).log() for model in result.models]
    assert torch.softmax(committee.torch_predictor.logits(images[..., None])[2], dim=1).numpy() == pytest.approx(
        logits[2].exp().numpy(), abs=1e-6
    )
    with pytest.raises(
        ConfigError, match=r"teacher_prior = 'remove': these models were trained under the balanced loss"
    ):
        result.committee(teacher_prior="remove")


# --- what members publish


@pytest.fixture(scope="module")
def attacked(tiny, tmp_path_factory):
    """By attack: a run in which two of four clients attack."""
    folder = tmp_path_factory.mktemp("attacked")
    settings = {"rounds": 1, "models": ("cnn6",), "private_counts": 2.0, "test_limit": 20, "committee": True}
    experiment = change(tiny, method="crad", **settings)
    return {
        kind: crad.run(change(experiment, attack=kind, attackers=2), output=folder / kind)
        for kind in ("noise", "sign-flip", "free-rider", "label-flip")
    }


@pytest.mark.parametrize("kind", ["noise", "sign-flip", "free-rider", "label-flip"])
def test_attackers_sit_in_it_with_what_they_publish(kind, attacked):
    """Weights and figures are those that the run's own inspection hears, and the accuracy the one that it measured."""
    run = attacked[kind]
    panel = RunInspector(run.directory).panel
    test = panel.context.data.global_test
    images = panel.context.data.dataset.test_images
    committee = run.committee()
    q_KBC = torch.softmax(committee.torch_predictor.logits(images) / T, dim=2)
    if kind != "noise":  # which is drawn for a round, and the inspection is one round further
        assert q_KBC.numpy() == pytest.approx(panel.outputs(range(20)).numpy(), abs=1e-5)
    liars = draw_attackers(run.experiment)
    for client, model in enumerate(run.models):
        own_BC = torch.tensor(model.predict_proba(images)) ** (1 / T)
        is_own = torch.allclose(own_BC / own_BC.sum(dim=1, keepdim=True), q_KBC[client], atol=1e-4)
        assert is_own == (client not in liars or kind == "label-flip")
    published = {slot.index: said for slot, said in zip(panel.teachers, panel.statistics, strict=True)}
    for member in committee.about.members:
        assert member.statistics.counts == published[member.client].counts
        assert member.statistics.accuracies == published[member.client].accuracies
    if kind == "noise":
        assert {committee.about.members[liar].statistics.counts for liar in liars} == {(CLAIMED_SAMPLES,) * 4}
    labels = test.labels.numpy()
    reached = [100 * np.mean(run.committee(one).predict(images, as_index=True) == labels) for one in range(4)]
    assert reached == pytest.approx(run.summary["committee"]["global_accuracy_per_client"])


def test_a_model_that_overflows_does_not_spoil_what_is_written_down(ran):
    context = build_run_context(ran.experiment)
    good = ClassScore((3, 3, 3, 3), (1, 2, 3, 0), (1.0, 1.0, 1.0, 1.0))
    evaluations = {client: Evaluation((good,)) for client in range(4)}
    evaluations[1] = Evaluation((replace(good, cross_entropy_sums=(1.0, float("nan"), 1.0, float("inf"))),))
    record = with_statistics(ran.models.record, context, evaluations)
    said = [peer["statistics"] for peer in record["peers"]]
    assert said[0] == {
        "counts": [3.0] * 4,
        "accuracies": [1 / 3, 2 / 3, 1.0, 0.0],
        "cross_entropies": pytest.approx([1 / 3] * 4),
    }
    assert (said[1]["counts"], said[1]["cross_entropies"]) == ([3.0] * 4, None)


# --- run directories of before, and damaged ones


def test_a_run_of_an_earlier_version_has_a_committee_if_its_data_is_there(ran, copied, images, tiny_npz):
    expected = ran.committee(client=1).predict_proba(images, "local")
    edit_models(copied, lambda peer: [peer.pop(name) for name in ("statistics", "train_counts")])
    assert np.array_equal(crad.load(copied).committee(client=1).predict_proba(images, "local"), expected)
    (copied / "models.json").unlink()
    assert np.array_equal(crad.load(copied).committee(client=1).predict_proba(images, "local"), expected)
    told = (copied / "experiment.toml").read_text()
    (copied / "experiment.toml").write_text(told.replace(str(tiny_npz), str(tiny_npz.parent / "gone.npz")))
    with pytest.raises(CradError, match=r"gone\.npz") as refusal:
        crad.load(copied).committee()
    assert "\n" not in str(refusal.value)


def state_of(folder, client):
    """The file with a client's model at the selected round."""
    state = crad.load(folder).models.states[client]
    assert state is not None
    return state


def test_a_member_whose_snapshot_is_gone_is_left_out_and_named(copied, ran, images):
    result = crad.load(copied)
    state_of(copied, 0).unlink()
    state_of(copied, 1).write_bytes(b"nothing of the kind")
    committee = result.committee(client=0)
    assert committee.members == (2, 3)
    assert committee.left_out.keys() == {0, 1}
    assert all(f"client {client}: the model in " in committee.left_out[client] for client in (0, 1))
    expected = ran.committee(client=0, members=[2, 3]).predict_proba(images, "local")
    assert np.array_equal(committee.predict_proba(images, "local"), expected)
    with pytest.raises(RunError, match=r"nobody is left for a committee: client 0: the model in .*; client 1:"):
        result.committee(members=[0, 1])


def test_a_member_without_samples_is_left_out_where_samples_count(copied):
    def silence(peer):
        if peer["index"] == 2:
            peer["statistics"]["counts"] = [0.0, -1.5, 0.0, 0.0]  # noise can bring a count below zero

    edit_models(copied, silence)
    committee = crad.load(copied).committee()
    assert committee.members == (0, 1, 3)
    assert committee.left_out == {2: "client 2 published no validation samples of any class"}
    assert crad.load(copied).committee(rule="uniform", teacher_prior="keep").members == (0, 1, 2, 3)
    assert 2 in crad.load(copied).committee(rule="uniform").left_out


def test_counts_below_zero_count_as_none(copied, images):
    def noise(value):
        def spoil(peer):
            peer["statistics"]["counts"][0] = value

        return spoil

    said = []
    for value in (-3.0, 0.0):
        edit_models(copied, noise(value))
        said.append(crad.load(copied).committee(teacher_prior="remove").predict_proba(images))
    assert np.array_equal(said[0], said[1])


def test_damaged_statistics_leave_a_member_out(copied):
    edit_models(copied, lambda peer: peer["statistics"].update(accuracies=[2.0] * 4) if peer["index"] == 1 else None)
    assert crad.load(copied).committee().left_out == {1: "client 1's class statistics in models.json are damaged"}


def test_weights_that_give_no_numbers_leave_a_member_out(copied):
    state = state_of(copied, 3)
    tensors = {name: tensor / 0 for name, tensor in load_file(state).items()}
    with safe_open(state, "pt") as file:
        about = file.metadata()
    save_file(tensors, state, metadata=about)
    assert crad.load(copied).committee().left_out == {3: "client 3 gives non-finite predictions"}


def test_who_never_learned_is_left_out(tiny):
    result = crad.run(change(tiny, method="crad", rounds=1, active=2, models=("cnn6",)))
    committee = result.committee(rule="uniform")
    assert len(committee.members) == 2
    assert set(committee.left_out) == set(range(4)) - set(committee.members)
    assert all("had learned nothing by round 1" in reason for reason in committee.left_out.values())


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"client": 4}, "client 4 does not exist; choose 0 to 3"),
        ({"client": -1}, "client -1 does not exist; choose 0 to 3"),
        ({"members": [0, 7]}, "client 7 does not exist; choose 0 to 3"),
        ({"members": []}, "members is empty: name clients among 0 to 3"),
        ({"members": [1, 1]}, "members 1, 1 names a client twice"),
        ({"members": ["1"]}, "members: '1' is no client's number"),
        ({"rule": "crat"}, "unknown rule 'crat'. Did you mean 'crad'?"),
        ({"teacher_prior": "out"}, "unknown value of 'teacher_prior' 'out'"),
        ({"temperature": 0}, "temperature is 0: a committee's members are softened at 0.25 to 100"),
    ],
)
def test_what_makes_no_committee_is_refused_in_one_line(asked, reason, ran):
    with pytest.raises(ConfigError) as refusal:
        ran.committee(**asked)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_one_model_for_all_is_no_committee(tiny):
    result = crad.run(change(tiny, method="centralized", rounds=1, models=("cnn6",)))
    with pytest.raises(ConfigError, match="method 'centralized' trains one model for all clients"):
        result.committee()


def test_the_local_face_needs_to_know_whose(ran, images):
    with pytest.raises(ConfigError, match="this committee serves nobody in particular: say whom"):
        ran.committee().predict(images, "local")
    with pytest.raises(ConfigError, match="unknown face 'own'"):
        ran.committee(0).predict(images, "own")
    with pytest.raises(ConfigError, match="a committee is several networks"):
        assert ran.committee().module


# --- as one file


@pytest.fixture(scope="module")
def graphs(ran, tmp_path_factory):
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("graphs")
    filtered = ran.committee(rule="crad", teacher_prior="keep", members=[0, 2])
    made = {"corrected": ran.committee(client=2, members=[1, 2]), "filtered": filtered}
    return made, {name: ran.export("onnx", committee=one, path=folder / f"{name}.onnx") for name, one in made.items()}


def test_one_graph_with_all_members_and_the_rule_runs_where_this_package_is_not(graphs, images, tiny_npz):
    made, files = graphs
    for name, path in files.items():
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(path), str(tiny_npz)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["type"], found["shape"][1:]) == ("tensor(uint8)", [8, 8, 1])
        assert np.array(found["plain"]) == pytest.approx(made[name].predict_proba(images), abs=1e-5)
        local = made[name].predict_proba(images, "local" if made[name].client is not None else "global")
        assert np.array(found["local"]) == pytest.approx(local, abs=1e-5)
        about = json.loads(found["about"]["committee"])
        assert [member["client"] for member in about["members"]] == list(made[name].members)
        assert about["settings"]["rule"] == made[name].rule


def test_a_graph_loaded_again_is_a_committee(graphs, images):
    made, files = graphs
    for name, path in files.items():
        graph = crad.load_model(path)
        assert isinstance(graph, Committee)
        assert (graph.members, graph.client, graph.rule) == (made[name].members, made[name].client, made[name].rule)
        assert graph.predict_proba(images) == pytest.approx(made[name].predict_proba(images), abs=1e-5)
        with pytest.raises(ConfigError, match="a committee from an ONNX file is one graph"):
            assert graph.torch_predictor
    with pytest.raises(ConfigError, match="serves nobody in particular"):
        graph.predict(images, "local")


def test_every_rule_can_be_traced(ran):
    """What the graph computes is what Python computes, to the bit, for every rule and both ways with the prior."""
    logits_KBC = 4 * torch.randn(4, 50, 4, generator=torch.Generator().manual_seed(3))
    combined = [ran.committee(rule=rule).torch_predictor.rule for rule in crad.RULES]
    combined.append(replace(combined[0], teacher_prior="keep"))
    graph = torch.export.export(
        Traced(combined), (logits_KBC[:, :2].clone(),), dynamic_shapes=({1: torch.export.Dim("b")},)
    ).module()
    for rule, said_BC in zip(combined, graph(logits_KBC), strict=True):
        assert torch.equal(said_BC, rule.logits(logits_KBC)), rule.name


class Traced(nn.Module):
    def __init__(self, rules):
        super().__init__()
        self.rules = rules

    def forward(self, logits_KBC):
        return [rule.traced(logits_KBC) for rule in self.rules]


def test_more_members_than_a_sorting_network_is_for_can_be_traced():
    said = {client: [0.5 + client / 100, 0.5 - client / 100] for client in range(40)}
    committee = by_hand(rule="crad", said=said, counts=dict.fromkeys(said, (9.0, 9.0)))
    logits_KBC = torch.randn(40, 6, 2, generator=torch.Generator().manual_seed(3))
    graph = torch.export.export(Traced([committee.torch_predictor.rule]), (logits_KBC,))
    assert torch.allclose(graph.module()(logits_KBC)[0], committee.torch_predictor.rule.logits(logits_KBC))


def test_weights_in_one_file_give_the_same_committee_again(ran, images, tmp_path):
    committee = ran.committee(client=3, teacher_prior="remove")
    path = ran.export(committee=committee, path=tmp_path / "c.safetensors")
    loaded = crad.load_model(path)
    assert isinstance(loaded, Committee)
    assert loaded.about.to_metadata() == committee.about.to_metadata()
    for face in ("global", "local"):
        assert np.array_equal(loaded.predict_proba(images, face), committee.predict_proba(images, face))
    assert np.array_equal(
        crad.load_model(ran.export(committee=loaded, path=tmp_path / "d.safetensors")).predict_proba(images),
        committee.predict_proba(images),
    )


def test_a_file_imports_nothing(tiny, images, tmp_path):
    experiment = change(tiny, method="local", rounds=1, clients=2)
    result = crad.run(experiment, models=["cnn6", small])
    path = result.export(committee=result.committee(), path=tmp_path / "own.safetensors")
    with pytest.raises(ConfigError, match=r"its network is 'object:small@0\.125', which is not built in"):
        crad.load_model(path)
    loaded = crad.load_model(path, build=small)
    assert np.array_equal(loaded.predict_proba(images), result.committee().predict_proba(images))
    about = json.loads(result.committee().about.to_metadata()["committee"])
    about["settings"]["rule"] = "os:system"
    save_file(
        load_file(path), path, metadata={**result.committee().about.to_metadata(), "committee": json.dumps(about)}
    )
    with pytest.raises(ConfigError, match="its rule 'os:system' is none of this version's"):
        crad.load_model(path, build=small)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda about: about["members"].clear(), "lacks or spoils its members"),
        (lambda about: about["members"].append(about["members"][0]), "lacks or spoils its members"),
        (lambda about: about["members"][0]["statistics"]["counts"].pop(), "the statistics of member 0"),
        (lambda about: about["settings"].pop("epsilon"), "lacks or spoils 'epsilon'"),
        (lambda about: about["settings"].update(temperature=-1), "temperature is -1"),
        (lambda about: about["members"][0].update(architecture="resnet18"), "its weights do not fit the network"),
        (lambda about: about["members"][0].update(client=8), "its weights do not fit the network"),
    ],
)
def test_a_spoilt_file_is_refused_in_one_line(spoil, reason, ran, tmp_path):
    committee = ran.committee()
    path = ran.export(committee=committee, path=tmp_path / "c.safetensors")
    metadata = committee.about.to_metadata()
    about = json.loads(metadata["committee"])
    spoil(about)
    save_file(load_file(path), path, metadata={**metadata, "committee": json.dumps(about)})
    with pytest.raises(CradError) as refusal:
        crad.load_model(path)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_rule_that_no_graph_can_hold_is_named(ran, tmp_path):
    pytest.importorskip("onnxscript")
    from crad.aggregation.filters import keep_all

    def looking(evidence, selection):
        return torch.ones(1, 1, 1) if evidence.q_KBC.sum().item() > 1 else torch.zeros(1, 1, 1)

    committee = ran.committee(rule=crad.Rule(keep_all, looking), members=[0])
    with pytest.raises(
        ConfigError, match="'a rule of your own' or a member's network cannot be written as ONNX"
    ) as said:
        ran.export("onnx", committee=committee, path=tmp_path / "c.onnx")
    assert "\n" not in str(said.value)
    assert list(tmp_path.iterdir()) == []


# --- the command line


def test_a_committee_in_a_file_becomes_a_graph(ran, images, tmp_path, crad_command):
    """As a member has it after `crad peer join`: committee.safetensors, and no run directory."""
    committee = ran.committee(client=1, members=[0, 2])
    path = ran.export(committee=committee, path=tmp_path / "committee.safetensors")
    code, out, err = crad_command("export", path, "--format", "onnx")
    assert (code, err) == (0, ""), err
    graph = crad.load_model(tmp_path / "committee.onnx")
    assert out.strip() == str(tmp_path / "committee.onnx")
    for face in ("global", "local"):
        assert graph.predict_proba(images, face=face) == pytest.approx(
            committee.predict_proba(images, face=face), abs=1e-5
        )
    for words, reason in (
        ([path, "--format", "onnx"], "is there already"),
        ([path, "--format", "onnx", "--client", 1], "leave out --client and --committee"),
        ([path], "say --format onnx"),
        ([tmp_path / "committee.onnx", "--format", "onnx"], "can only be turned from .safetensors into onnx"),
    ):
        code, out, err = crad_command("export", *words)
        assert (code, out) == (2, "")
        assert reason in err
        assert err.count("\n") == 1


def test_predict_and_export_with_a_committee(ran, images, tiny_npz, tmp_path, crad_command):
    words: tuple[object, ...] = ("--committee", "--client", 2, "--teacher-prior", "remove", "--members", "0,2,3")
    words = (*words, "--rule", "crad", "--temperature", 1.5)
    committee = ran.committee(2, teacher_prior="remove", members=[0, 2, 3], rule="crad", temperature=1.5)
    expected = committee.predict_proba(images, "local")
    code, out, err = crad_command("predict", ran.directory, tiny_npz, *words, "--face", "local", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert [list(one["probabilities"].values()) for one in said["predictions"]] == pytest.approx(expected, abs=1e-6)
    assert said["committee"]["members"] == [0, 2, 3]
    assert (said["committee"]["rule"], said["committee"]["teacher_prior"]) == ("crad", "remove")
    assert said["committee"]["temperature"] == 1.5
    softer = ran.committee(2, teacher_prior="remove", members=[0, 2, 3], rule="crad").predict_proba(images, "local")
    assert abs(softer - expected).max() > 1e-4, "the temperature of these differs, and counts"
    path = tmp_path / "c.safetensors"
    code, out, err = crad_command("export", ran.directory, *words, "--output", path, "--json")
    assert (code, err, json.loads(out)["committee"]["client"]) == (0, "", 2)
    code, out, _ = crad_command("predict", path, tiny_npz, "--face", "local")
    assert code == 0
    lines = out.splitlines()
    assert "A committee of 3 (clients 0, 2, 3) by rule crad; each one's own class shares are taken out." in lines
    assert lines[-1] == "Probabilities of the local face, in percent."


def test_the_file_of_a_committee_has_a_name_of_its_own(copied, crad_command):
    code, out, _ = crad_command("export", copied, "--committee")
    assert (code, out) == (0, f"{copied / 'committee.safetensors'}\n")
    code, out, _ = crad_command("export", copied, "--committee", "--client", 1)
    assert (code, out) == (0, f"{copied / 'committee-client-1.safetensors'}\n")
    code, _, err = crad_command("export", copied, "--committee")
    assert code == 2
    assert "is there already" in err


def test_who_is_left_out_is_said(copied, tiny_npz, crad_command):
    state_of(copied, 1).unlink()
    code, out, _ = crad_command("predict", copied, tiny_npz, "--committee")
    assert code == 0
    assert "Left out: client 1: the model in " in out
    code, out, _ = crad_command("predict", copied, tiny_npz, "--committee", "--json")
    assert list(json.loads(out)["committee"]["left_out"]) == ["1"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["predict", "{run}", "{data}", "--committee", "--client", "9"], "client 9 does not exist; choose 0 to 3"),
        (["predict", "{run}", "{data}", "--committee", "--members", "0,x"], "--members 0,x: expected clients' numbers"),
        (["predict", "{run}", "{data}", "--committee", "--members", "0,9"], "client 9 does not exist"),
        (["predict", "{run}", "{data}", "--committee", "--members", ","], "members is empty"),
        (["predict", "{run}", "{data}", "--committee", "--rule", "crat"], "unknown rule 'crat'"),
        (["predict", "{run}", "{data}", "--committee", "--temperature", "0"], "such as 3"),
        (["predict", "{run}", "{data}", "--temperature", "3"], "--temperature is for a committee"),
        (["predict", "{run}", "{data}", "--committee", "--teacher-prior", "x"], "Invalid value for '--teacher-prior'"),
        (["predict", "{run}", "{data}", "--committee", "--face", "local"], "say whose with --client"),
        (["predict", "{run}", "{data}", "--committee", "--build", "a:b"], "--build is for an exported file"),
        (["predict", "{tmp}", "{data}", "--committee"], "is no run directory"),
        (["predict", "{run}", "{data}"], "is no file: name a model that crad export wrote"),
        (["predict", "{run}", "{data}", "--client", "0"], "--client is for a committee: add --committee"),
        (["predict", "{run}", "{data}", "--teacher-prior", "keep"], "--teacher-prior is for a committee"),
        (["export", "{run}"], "Missing option '--client'"),
        (["export", "{run}", "--client", "0", "--rule", "crad"], "--rule is for a committee"),
        (["export", "{run}", "--committee", "--client", "7"], "client 7 does not exist"),
        (["export", "{run}", "--committee", "-o", "{tmp}"], "is a folder: name the file to write"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, reason, ran, tiny_npz, tmp_path, crad_command):
    filled = [word.format(run=ran.directory, tmp=tmp_path, data=tiny_npz) for word in words]
    code, out, err = crad_command(*filled)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("crad: ")
    assert reason in err
