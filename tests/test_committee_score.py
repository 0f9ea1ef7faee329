"""The committee in every run: all models combined, measured from what each said in its own test."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import crad
from crad.aggregation import RULES, aggregate
from crad.aggregation.committee_rule import BLOCK_BYTES
from crad.config import TeacherPrior
from crad.federation.class_statistics import class_statistics
from crad.federation.committee_score import score_committee
from crad.report.page import report_page
from crad.runs.run_records import load_run
from crad.runs.tracking.scalars import round_scalars
from tests.conftest import change
from tests.federation import Federation

METRICS = ("global_accuracy", "local_accuracy")
PARTS = ("global", "local")  # the test samples of each


@pytest.fixture(scope="module")
def shallow(tiny):
    return change(tiny, models=("cnn6",), rounds=2, eval_every=1, committee=True)


def plain_loop(federation: Federation, *, rule: str, teacher_prior: TeacherPrior) -> tuple[float, list[float]]:
    """What the committee must come to, sample by sample from the members' own models."""
    context, data = federation.context, federation.context.data
    peers, settings = federation.peers(), federation.context.experiment
    statistics = [class_statistics(context, peer.index, peer.evaluation) for peer in peers]
    counts = torch.tensor([one.counts for one in statistics], dtype=torch.float64)
    accuracies = torch.tensor([one.accuracies for one in statistics], dtype=torch.float64)

    def committee(image):
        said = []
        for peer in peers:
            peer.model.eval()
            with torch.no_grad():
                logits = peer.model(data.preprocessor.inputs(image[None]))
            said.append(torch.softmax(logits / settings.temperature, dim=1))
        return aggregate(
            torch.stack(said), counts, accuracies, rule, teacher_prior=teacher_prior, temperature=settings.temperature
        )[0]

    test = data.global_test
    pairs = zip(test.samples, test.labels, strict=True)
    hits = [int(committee(image).argmax()) == int(label) for image, label in pairs]
    local = []
    for shard in data.shards:
        own, half = data.dataset.train_labels[shard.train], data.samples(shard.test)
        shares = np.bincount(own, minlength=data.num_classes) / len(own)
        right = 0
        for image, label in zip(half.samples, half.labels, strict=True):
            right += int((committee(image).numpy() * shares).argmax()) == int(label)
        local.append(100 * right / len(half))
    return 100 * float(np.mean(hits)), local


@pytest.mark.parametrize(
    ("settings", "prior"),
    [
        ({}, "remove"),
        ({"committee_rule": "crad"}, "remove"),
        ({"local_loss": "balanced", "committee_rule": "inverse-ce"}, "keep"),
    ],
)
def test_the_committee_equals_a_plain_loop_over_the_models(shallow, settings, prior):
    federation = Federation(change(shallow, method="uniform", committee_evidence="reported", **settings))
    done = federation.next_round()
    assert done.committee is not None
    assert done.committee.members == (0, 1, 2, 3)
    assert done.committee.teacher_prior == prior
    rule = done.committee.rule
    if RULES[rule].needs_cross_entropy:  # the loop above says nothing of them: the arithmetic is that of the rule
        return
    overall, local = plain_loop(federation, rule=rule, teacher_prior=prior)
    assert done.committee.overall is not None
    assert done.committee.overall.accuracy == pytest.approx(overall)
    assert [one.accuracy for one in done.committee.local] == pytest.approx(local)


def test_two_experts_know_together_what_neither_knows(shallow):
    """Two clients with two classes each, made by hand: alone half of the test images, together all of them."""
    federation = Federation(change(shallow, clients=2, partition="shards", method="local", rounds=8))
    alone = 0.0
    for _ in range(8):
        done = federation.next_round()
    for slot in federation.roster:
        assert slot.measured.overall is not None
        alone = max(alone, slot.measured.overall.accuracy)
    assert alone <= 55, "a client that has seen two classes of four"
    assert done.committee is not None
    assert done.committee.overall is not None
    assert done.committee.overall.accuracy > 75


def test_blocks_do_not_matter(shallow, monkeypatch):
    federation = Federation(change(shallow, method="local"))
    done = federation.next_round()
    monkeypatch.setattr("crad.aggregation.committee_rule.BLOCK_BYTES", 4 * 4 * 4 * 7)  # seven samples at a time
    assert BLOCK_BYTES > 10**6
    again = score_committee(federation.roster, round_index=1)
    assert done.committee is not None
    assert again.overall is not None
    assert done.committee.overall is not None
    assert again.overall.hits == done.committee.overall.hits
    assert again.local == done.committee.local


def test_it_is_in_records_summary_scalars_table_and_page(shallow, tmp_path):
    result = crad.run(change(shallow, method="local"), output=tmp_path / "run")
    record, summary = result.rounds[-1], result.summary
    assert len(record["committee"]["local_accuracy_per_client"]) == 4
    assert record["committee"]["local_accuracy"] == pytest.approx(
        np.mean(record["committee"]["local_accuracy_per_client"])
    )
    best = result.rounds[summary["best_round"] - 1]["committee"]
    assert {metric: summary["committee"][metric] for metric in METRICS} == {metric: best[metric] for metric in METRICS}
    scalars = round_scalars(record)
    assert scalars["committee/global_accuracy"] == record["committee"]["global_accuracy"]
    page = report_page([load_run(tmp_path / "run")])
    said = f"{summary['committee']['global_accuracy']:.1f} % global"
    assert f"all models of local reach {said}" in page
    assert f"{summary['committee']['global_accuracy']:.2f} / {summary['committee']['local_accuracy']:.2f}" in page
    assert not list((tmp_path / "run" / "checkpoint").glob("logits*")), "nothing is left of what it was made from"


def test_it_can_be_switched_off_and_changes_no_weight(shallow, tmp_path):
    first = crad.run(shallow, output=tmp_path / "with")
    second = crad.run(change(shallow, committee=False), output=tmp_path / "without")
    assert "committee" in first.summary
    assert "committee" not in second.summary
    assert all("committee" not in record for record in second.rounds)
    states = [
        {file.name: file.read_bytes() for file in (tmp_path / name / "checkpoint" / "states").iterdir()}
        for name in ("with", "without")
    ]
    assert states[0] == states[1]


@pytest.mark.usefixtures("forked_workers")
def test_an_interrupted_run_and_two_workers_measure_the_same(shallow, tmp_path):
    settings = change(shallow, active=2, rounds=3, committee_study=True)
    whole = crad.run(settings, output=tmp_path / "whole")
    accuracies = [record["validation_accuracy"] for record in whole.rounds]
    may_be_reported = [accuracy > max(accuracies[:place], default=-1) for place, accuracy in enumerate(accuracies)]
    assert ["study" in record["committee"] for record in whole.rounds] == may_be_reported
    assert set(whole.summary["committee"]["study"]) == set(RULES)

    class Stop(crad.Callback):
        def on_round(self, record):
            if record["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crad.run(settings, output=tmp_path / "cut", callbacks=[Stop()])
    resumed = crad.run(settings, output=tmp_path / "cut", resume=True)
    shared = crad.run(change(settings, workers=2), output=tmp_path / "shared")
    expected = [record["committee"] for record in whole.rounds]
    assert [record["committee"] for record in resumed.rounds] == expected
    assert [record["committee"] for record in shared.rounds] == expected


def test_what_was_said_and_is_gone_is_asked_for_again(shallow, tmp_path):
    """Members that were not drawn are not tested again; after a lost folder they are, to the same figures."""
    federation = Federation(change(shallow, active=2, rounds=3))
    federation.next_round()
    federation.roster.forget_logits()
    done = federation.next_round()
    other = Federation(change(shallow, active=2, rounds=3))
    other.next_round()
    expected = other.next_round()
    assert done.committee == expected.committee
    assert done.measured == expected.measured


def test_attackers_are_heard_as_they_publish(shallow):
    """Two of four publish their model with all logits negated; the committee is asked what they publish."""
    honest = Federation(change(shallow, method="local", attack="honest", attackers=2))
    lying = Federation(change(shallow, method="local", attack="sign-flip", attackers=2))
    honest.next_round()
    lying.next_round()
    attackers = lying.context.adversary.attackers
    assert len(attackers) == 2
    for slot, other in zip(honest.roster, lying.roster, strict=True):
        said, heard = _load(honest.roster.logits_of(slot)), _load(lying.roster.logits_of(other))
        sign = -1 if other.index in attackers else 1
        for name in ("global", "local"):
            torch.testing.assert_close(heard[name], sign * said[name], rtol=1e-4, atol=1e-5)
    # What an attacker is tested on is the model that it keeps.
    assert [slot.measured.overall for slot in honest.roster] == [slot.measured.overall for slot in lying.roster]


def test_a_member_without_numbers_is_left_out_and_named(shallow):
    federation = Federation(change(shallow, method="local"))
    federation.next_round()
    file = federation.roster.logits_of(federation.roster[1])
    tensors = {name: tensor.clone() for name, tensor in _load(file).items()}
    tensors["global"][0, 0] = float("nan")
    _save(file, tensors)
    score = score_committee(federation.roster, round_index=1)
    assert score.members == (0, 2, 3)
    assert score.left_out == {1: "gives non-finite predictions"}
    for slot in federation.roster:
        tensors = {name: torch.full_like(tensor, float("inf")) for name, tensor in _load(file).items()}
        _save(federation.roster.logits_of(slot), tensors)
    nobody = score_committee(federation.roster, round_index=1)
    assert nobody.members == ()
    assert nobody.overall is None
    assert set(nobody.left_out) == {0, 1, 2, 3}


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_a_member_that_overflows_when_softened_is_not_counted(temperature, shallow):
    federation = Federation(change(shallow, method="local", temperature=temperature))
    federation.next_round()
    file = federation.roster.logits_of(federation.roster[1])
    tensors = {name: tensor.clone() for name, tensor in _load(file).items()}
    for name in PARTS:
        tensors[name][:, 0] = torch.finfo(torch.float32).max
    _save(file, tensors)
    score = score_committee(federation.roster, round_index=1)
    assert score.left_out == ({1: "gives non-finite predictions"} if temperature < 1 else {})
    assert score.overall is not None
    assert np.isfinite(score.overall.cross_entropy_sums).all()


def test_an_unknown_rule_is_refused_before_anything_runs(shallow, tmp_path):
    with pytest.raises(crad.CradError, match="suport"):
        crad.run(change(shallow, committee_rule="suport-all"), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_model_is_no_committee(shallow):
    result = crad.run(change(shallow, method="centralized", rounds=1))
    assert "committee" not in result.summary
    assert json.dumps(result.rounds[0])


def _load(file):
    from safetensors.torch import load_file

    return load_file(file)


def _save(file, tensors):
    from safetensors.torch import save_file

    save_file(tensors, file)
