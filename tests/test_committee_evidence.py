"""A committee's members are judged by what the asking client counted itself: another member's word is no proof."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import numpy as np
import pytest
import torch

import crad
from crad.aggregation import RULES, TeacherStats
from crad.aggregation.correction import LARGEST_RATIO, bounded_log_shares_of, log_shares_of, remove_prior
from crad.aggregation.member_evidence import member_evidence, skill
from crad.aggregation.member_tally import count_member, evidence_of
from crad.aggregation.verification import Tally, credibility, usual_claims
from crad.config import TeacherPrior, to_toml
from crad.errors import ConfigError
from crad.federation.attacks import draw_attackers
from crad.federation.context import build_run_context
from crad.prediction.committee_card import columns_of, stats_of
from crad.runs.directory import RunDirectory, experiment_hash
from tests.conftest import change
from tests.federation import Federation

CAT, DOG, EEL = 0, 1, 2


def tally_of(samples, hits, alarms):
    tally = Tally(len(hits), len(samples))
    tally.samples_C += torch.tensor(samples, dtype=torch.float64)
    tally.hits_KC += torch.tensor(hits, dtype=torch.float64)
    tally.alarms_KC += torch.tensor(alarms, dtype=torch.float64)
    return tally


def stats(counts, accuracies):
    return TeacherStats(
        torch.tensor(counts, dtype=torch.float64), torch.tensor(accuracies, dtype=torch.float64), None, None, None, None
    )


# --- by hand


def test_evidence_by_hand():
    """Ten cats and ten dogs, no eel. An honest member; one that always says cat and claims to know everything."""
    published = stats([[10, 10, 6], [10_000, 10_000, 10_000]], [[0.9, 0.8, 0.5], [1, 1, 1]])
    tally = tally_of([10, 10, 0], hits=[[9, 8, 0], [10, 0, 0]], alarms=[[2, 1, 0], [0, 0, 0]])
    tally.alarms_KC[1, CAT] = 10
    known = member_evidence(published, said=tally, heard=tally, source="pooled")
    assert credibility(published, tally).tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    # The honest one: its samples and ours. The other: what it got right, and nothing of what it says.
    assert known.counts_KC.tolist() == [pytest.approx([20, 20, 6]), pytest.approx([10, 10, 0])]
    assert known.support_KC is not None
    assert known.support_KC.tolist() == [pytest.approx([10 + 9, 10 + 8, 6]), pytest.approx([10, 0, 0])]
    assert known.accuracies_KC[0].tolist() == pytest.approx([0.9, 0.8, 0.5])
    # Cats by the honest one: r~ = (18 + 2) / 24, f~ = (2 + 2) / 14. By the other: r~ = 12 / 14, f = 10 / 10.
    assert known.effective_KC is not None
    assert known.effective_KC[0, CAT].item() == pytest.approx(19 * (20 / 24 - 4 / 14) * (10 / 14) ** 2)
    assert known.effective_KC[1].tolist() == pytest.approx([0.0, 0.0, 0.0])
    # An eel, which we have none of: r~ = (3 + 2) / 10, and 20 of our samples were taken for none.
    assert known.effective_KC[0, EEL].item() == pytest.approx(6 * (5 / 10 - 2 / 24) * (22 / 24) ** 2)
    own = member_evidence(published, said=tally, heard=tally, source="own")
    assert own.counts_KC[0].tolist() == pytest.approx([10, 10, 6]), "published samples only of the class we lack"
    assert member_evidence(published, said=tally, heard=tally, source="reported") is published


def test_a_good_model_with_false_figures_is_heard_like_a_stranger():
    """It claims no mistake and makes some: nothing of its claims counts, but what it can do does, for every class."""
    published = stats([[8, 4, 6], [10_000, 10_000, 10_000]], [[0.9, 0.9, 0.9], [1, 1, 1]])
    tally = tally_of([10, 10, 0], hits=[[9, 9, 0], [8, 6, 0]], alarms=[[1, 1, 0], [4, 2, 0]])
    known = member_evidence(published, said=tally, heard=tally, source="pooled")
    assert skill(tally).tolist() == pytest.approx([(0.9 - 0.5) / 0.5, (0.7 - 0.5) / 0.5])
    assert known.support_KC is not None
    assert known.support_KC[1].tolist() == pytest.approx([8 + 0.4 * 8, 6 + 0.4 * 8, 0.4 * 8]), "8: the most believed"
    assert known.support_KC[0].tolist() == pytest.approx([8 + 9, 4 + 9, 6])


def test_who_always_says_the_same_has_no_skill_and_one_class_shows_none():
    assert skill(tally_of([30, 2, 1], [[30, 0, 0]], [[3, 0, 0]])).tolist() == [0.0]
    assert skill(tally_of([30, 0, 0], [[30, 0, 0]], [[0, 0, 0]])).tolist() == [0.0]


@pytest.mark.parametrize("samples", [6, 12, 30])
def test_few_samples_shrink_what_they_say(samples):
    """With six validation samples a lie is found out, and an honest member is believed whatever its luck."""
    half = samples // 2
    counts, accuracies = [[20, 20], [20, 20], [10_000, 10_000]], [[0.8, 0.8], [0.8, 0.8], [1, 1]]
    published = stats(counts, accuracies)
    guess = half // 2
    tally = tally_of([half, half], [[half, half], [half - 1, half - 1], [guess, guess]], [[0, 0], [1, 1], [0, 0]])
    tally.alarms_KC[2] = torch.tensor([half - guess] * 2)
    known = member_evidence(published, said=tally, heard=tally, source="pooled")
    assert credibility(published, tally)[:2].min() > 0.9
    assert credibility(published, tally)[2] < 1e-6
    assert known.effective_KC is not None
    sound, unlucky, liar = known.effective_KC[:, 0].tolist()
    assert sound > unlucky > 4 * liar
    assert known.effective_KC[0, 0] < known.counts_KC[0, 0], "never more than all samples together"
    # Whatever was counted on six, twenty published samples still matter: the fewer, the closer to what is published.
    assert abs(known.accuracies_KC[0, 0].item() - 0.8) == pytest.approx(0.2 * half / (20 + half))


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("claim", [20.0, 10_000.0])
def test_who_claims_one_class_alone_and_says_it_again_and_again_weighs_little(claim, share):
    """Cats and dogs are ours. An honest member knows eels as well; the liar claims eels alone: we cannot check."""
    published = stats(
        [[20, 20, 0], [10, 10, 20], [20, 20, 2], [0, 0, claim]], [[0.9, 0.9, 0], [0.8] * 3, [0.9] * 3, [0, 0, 1]]
    )
    said = int(20 * share)  # of our twenty samples it takes so many for eels
    tally = tally_of(
        [10, 10, 0],
        hits=[[9, 9, 0], [8, 8, 0], [9, 9, 0], [0, 0, 0]],
        alarms=[[1, 1, 0], [1, 1, 2], [1, 1, 0], [0, 0, said]],
    )
    known = member_evidence(published, said=tally, heard=tally, source="pooled")
    assert credibility(published, tally)[3] == 1, "what it says of itself is not contradicted by anything"
    assert known.effective_KC is not None
    _, honest, _, liar = known.effective_KC[:, EEL].tolist()
    assert liar == 0 if share == 1 else liar < honest / 3


def test_no_claim_counts_for_more_than_what_is_usual():
    """Of a class that we lack nothing can be checked: a good member claims a million samples of it."""
    published = stats([[10, 10, 10], [10, 10, 20], [10, 10, 1_000_000]], [[0.9] * 3] * 3)
    tally = tally_of([10, 10, 0], hits=[[9, 9, 0]] * 3, alarms=[[1, 1, 0]] * 3)
    known = member_evidence(published, said=tally, heard=tally, source="pooled")
    assert known.support_KC is not None
    assert known.support_KC[:2, EEL].tolist() == [10, 20]
    assert known.support_KC[2, EEL].item() == 20, "the median of everybody's largest class: 10, 20 and many"
    few = stats([[10, 10, 0], [10, 10, 20], [1_000_000] * 3], [[0.9] * 3] * 3)
    spread = member_evidence(few, said=tally, heard=tally, source="pooled")
    assert spread.support_KC is not None
    assert spread.support_KC[2, EEL].item() == pytest.approx(20), "of every class"


def test_claims_are_cut_down_to_what_is_usual():
    claims = torch.tensor([[3.0, 0.0], [10.0, 5.0], [7.0, 1000.0], [0.0, 0.0]])
    assert usual_claims(claims).tolist() == [[3.0, 0.0], [10.0, 5.0], [7.0, 10.0], [0.0, 0.0]], "of 3, 10, 1000: 10"
    assert usual_claims(claims[1:3]).tolist() == [[10.0, 5.0], [7.0, 10.0]], "of two the lower one"
    assert usual_claims(claims[3:]).tolist() == [[0.0, 0.0]], "nobody claims anything"


def test_shares_are_bounded():
    """A billion of one class and none of the others would make the others a thousand times as probable at T = 3."""
    counts = torch.tensor([[1e9, 0.0, 0.0], [30.0, 10.0, 0.0]])
    bounded = bounded_log_shares_of(counts)
    assert (bounded[0].max() - bounded[0].min()).item() == pytest.approx(math.log(LARGEST_RATIO))
    assert torch.equal(bounded[1], log_shares_of(counts)[1]), "ordinary ones are as they were"
    q = torch.full((2, 1, 3), 1 / 3)
    free, held = (remove_prior(q, counts, temperature=3.0, is_bounded=is_bounded) for is_bounded in (False, True))
    assert (free[0, 0, 1] / free[0, 0, 0]).item() > 1000
    assert (held[0, 0, 1] / held[0, 0, 0]).item() == pytest.approx(10, rel=1e-4)
    assert torch.equal(free[1], held[1])


def test_what_is_counted_is_what_is_heard():
    """An honest model with false shares: right as it says it, and wrong once they are taken out. It is found out."""
    logits = torch.tensor([[4.0, 1.0, 0.0], [0.0, 3.0, 1.0], [3.0, 2.0, 0.0]])
    labels = torch.tensor([0, 1, 0])
    tally = count_member(logits, labels, counts_C=(1e9, 1e9, 0.0))
    assert (tally.hits, tally.alarms) == ((2, 1, 0), (0, 0, 0))
    assert (tally.corrected_hits, tally.corrected_alarms) == ((0, 0, 0), (0, 0, 3))
    published = stats([[1e9, 1e9, 0.0]], [[1, 1, 0]])
    cases: list[tuple[TeacherPrior, float]] = [("keep", 1.0), ("remove", 0.0)]
    for prior, weight in cases:
        known = evidence_of(published, [tally], samples_C=[2, 1, 0], teacher_prior=prior, source="own")
        assert known.support_KC is not None
        assert known.support_KC[0, CAT].item() == pytest.approx(2 * weight)


def test_statistics_survive_the_card_to_the_bit():
    published = stats([[10, 3], [7, 1]], [[0.9, 1 / 3], [1, 0.1]])
    tally = tally_of([3, 4], [[3, 1], [2, 4]], [[1, 0], [0, 1]])
    known = member_evidence(published, said=tally, heard=tally, source="pooled")
    again = stats_of(json.loads(json.dumps(columns_of(known))))
    for name, values in vars(known).items():
        assert values is None or torch.equal(values, getattr(again, name)), name


def test_figures_of_rules_that_know_no_committee_do_not_change():
    q = torch.softmax(torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1)), dim=2)
    counts = torch.tensor([[9.0, 4.0], [3.0, 8.0], [5.0, 5.0]])
    with_support = crad.aggregate(
        q, counts, torch.full((3, 2), 0.8), "support-all", support=counts, false_alarms=counts / 100, others=counts
    )
    assert torch.equal(with_support, crad.aggregate(q, counts, torch.full((3, 2), 0.8), "support-all"))


# --- a run


def mean_committee(result, x, y, *, clients, **asked):
    """The mean accuracy of these clients' committees on images, as anybody would measure it."""
    right = [np.mean(result.committee(one, **asked).predict(x, as_index=True) == y) for one in clients]
    return 100 * float(np.mean(right))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """By attack: six clients with real digits and small networks, four rounds alone; two of them attack."""
    folder = tmp_path_factory.mktemp("digits")
    settings = {"models": ("cnn6",), "rounds": 4, "eval_every": 4, "test_limit": 300, "seed": 1}
    base = crad.Experiment(preset="demo", method="committee", workers=1, device="cpu", metrics=False, **settings)
    attacks = ("noise", "inflated", "label-flip")
    runs: dict[str | None, crad.Experiment] = {None: base}
    runs |= {kind: change(base, attack=kind, attackers=2) for kind in attacks}
    return {kind: crad.run(one, output=folder / str(kind)) for kind, one in runs.items()}


@pytest.mark.parametrize("kind", ["noise", "inflated", "label-flip"])
def test_two_of_six_that_lie_do_not_take_the_committee_over(kind, digits):
    run = digits[kind]
    data = build_run_context(run.experiment).data.dataset
    honest = sorted(set(range(6)) - draw_attackers(run.experiment))
    told = run.summary["committee"]
    asked: dict[str, dict[str, Any]] = {
        "verified": {},
        "published": {"evidence": "reported"},
        "mean": {"rule": "uniform", "teacher_prior": "keep"},
    }
    figures = {
        name: mean_committee(run, data.test_images, data.test_labels, clients=honest, **one)
        for name, one in asked.items()
    }
    assert told["evidence"] == "pooled"
    assert told["global_accuracy"] == pytest.approx(figures["verified"]), "what the run measured"
    assert figures["verified"] > figures["mean"] - 2, figures
    if kind == "noise":
        assert figures["published"] < 25, figures
    assert figures["verified"] > figures["published"], figures


@pytest.mark.parametrize("kind", [None, "noise"])
def test_the_run_measured_what_every_clients_committee_says(kind, digits):
    run = digits[kind]
    data = build_run_context(run.experiment).data
    told, attackers = run.summary["committee"], draw_attackers(run.experiment) if kind else frozenset()
    overall, local = [], []
    for client, shard in enumerate(data.shards):
        committee = run.committee(client)
        assert (committee.evidence, committee.about.note) == ("pooled", "")
        said = committee.predict(data.dataset.test_images, as_index=True)
        overall.append(100 * float(np.mean(said == data.dataset.test_labels)))
        said = committee.predict(data.dataset.train_images[shard.test], "local", as_index=True)
        local.append(100 * float(np.mean(said == data.dataset.train_labels[shard.test])))
    assert told["global_accuracy_per_client"] == pytest.approx(overall)
    assert told["local_accuracy_per_client"] == pytest.approx(local)
    honest = [client for client in range(6) if client not in attackers]
    assert told["global_accuracy"] == pytest.approx(np.mean([overall[client] for client in honest]))
    assert told["local_accuracy"] == pytest.approx(np.mean([local[client] for client in honest]))
    assert len(honest) == (4 if kind else 6)


def test_tallies_are_a_plain_count_on_the_clients_own_samples(digits):
    run = digits["noise"]
    data = build_run_context(run.experiment).data
    record = json.loads((run.directory / "models.json").read_text())
    for client in (0, 3):
        where = data.shards[client].validation
        images, labels = data.dataset.train_images[where], data.dataset.train_labels[where]
        assert record["peers"][client]["validation_counts"] == [np.bincount(labels, minlength=10).tolist()]
        for member in range(6):
            said = run.models.published(member).predict(images, as_index=True)
            counted = record["peers"][member]["tallies"][client]
            assert counted["hits"] == [int(np.sum((said == c) & (labels == c))) for c in range(10)]
            assert counted["alarms"] == [int(np.sum((said == c) & (labels != c))) for c in range(10)]


def test_a_committee_needs_no_data_and_says_what_it_knows(digits, tmp_path, crad_command):
    run = digits["noise"]
    [liar, *_] = sorted(draw_attackers(run.experiment))
    honest = next(client for client in range(6) if client not in draw_attackers(run.experiment))
    committee = run.committee(honest)
    verified = {member.client: member.verified for member in committee.about.members}
    assert verified[liar] is not None
    assert verified[honest] is not None
    assert sum(verified[liar]["effective"]) < sum(verified[honest]["effective"]) / 4
    nobody = run.committee()
    assert (nobody.evidence, nobody.about.members[0].verified) == ("reported", None)
    assert "serves no client in particular" in nobody.about.note
    np.savez(tmp_path / "one.npz", np.zeros((1, 8, 8), np.uint8))
    words = ("predict", run.directory, tmp_path / "one.npz", "--committee")
    code, out, err = crad_command(*words, "--client", honest)
    assert (code, err) == (0, "")
    assert f"judged by what client {honest} counted on its own validation samples and by what they publish." in out
    code, out, _ = crad_command(*words)
    assert "Members are judged by what they publish of themselves: it serves no client in particular" in out
    code, _, err = crad_command(*words, "--evidence", "own")
    assert (code, err.count("\n")) == (2, 1)
    assert "evidence = 'own': it serves no client in particular" in err
    code, out, _ = crad_command(*words, "--client", honest, "--evidence", "reported", "--json")
    assert json.loads(out)["committee"]["evidence"] == "reported"


def test_files_hold_what_was_verified(digits, tmp_path):
    run = digits["noise"]
    data = build_run_context(run.experiment).data.dataset
    committee = run.committee(1)
    faces: tuple[Literal["global", "local"], ...] = ("global", "local")
    expected = {face: committee.predict_proba(data.test_images[:40], face) for face in faces}
    loaded = crad.load_model(run.export(committee=committee, path=tmp_path / "c.safetensors"))
    for face, probabilities in expected.items():
        assert np.array_equal(loaded.predict_proba(data.test_images[:40], face), probabilities)
    assert isinstance(loaded, crad.Committee)
    assert loaded.evidence == "pooled"
    pytest.importorskip("onnxscript")
    graph = crad.load_model(run.export("onnx", committee=committee, path=tmp_path / "c.onnx"))
    for face, probabilities in expected.items():
        assert graph.predict_proba(data.test_images[:40], face) == pytest.approx(probabilities, abs=1e-5)


# --- runs of before, interrupted ones, members that never learned


def test_a_run_of_before_says_reported_and_keeps_its_identity(tiny, tmp_path):
    text = "\n".join(line for line in to_toml(tiny).splitlines() if not line.startswith("committee_evidence"))
    (tmp_path / "experiment.toml").write_text(text)
    stored = RunDirectory(tmp_path).experiment()
    assert (stored.committee_evidence, tiny.committee_evidence) == ("reported", "pooled")
    assert change(stored, committee_evidence="pooled") == tiny
    assert experiment_hash(stored) == experiment_hash(tiny)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_takes_verified_evidence(rule, digits):
    committee = digits["noise"].committee(0, rule=rule)
    said = committee.predict_proba(np.zeros((2, 8, 8), np.uint8))
    assert said.sum(axis=1) == pytest.approx([1, 1], abs=1e-5)


def test_without_tallies_it_falls_back_and_says_so(tiny):
    experiment = change(tiny, method="local", rounds=1, models=("cnn6",), committee=True, committee_evidence="reported")
    result = crad.run(experiment)
    assert result.committee(0).evidence == "reported"
    assert result.committee(0).about.note == "", "as the run was told"
    assert result.summary["committee"]["evidence"] == "reported"
    assert "tallies" not in result.models.record["peers"][0]
    with pytest.raises(ConfigError, match="evidence = 'pooled': this run did not count what members make"):
        result.committee(0, evidence="pooled")
    with pytest.raises(ConfigError, match="unknown value of 'evidence' 'pooling'"):
        result.committee(0, evidence="pooling")  # type: ignore[arg-type]  # on purpose
    unmeasured = crad.run(change(experiment, committee_evidence="pooled", committee=False))
    assert unmeasured.committee(0).evidence == "reported"
    assert "this run did not count" in unmeasured.committee(0).about.note


@pytest.mark.usefixtures("forked_workers")
def test_interrupted_and_shared_runs_count_the_same(tiny, tmp_path):
    settings = change(
        tiny, committee=True, models=("cnn6",), active=2, rounds=3, eval_every=1, attack="noise", attackers=1
    )

    class Stop(crad.Callback):
        def on_round(self, record):
            if record["round"] == 2:
                raise KeyboardInterrupt

    whole = crad.run(settings, output=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        crad.run(settings, output=tmp_path / "cut", callbacks=[Stop()])
    resumed = crad.run(settings, output=tmp_path / "cut", resume=True)
    shared = crad.run(change(settings, workers=2), output=tmp_path / "shared")
    assert all("tallies" in peer for peer in whole.models.record["peers"] if whole.models.states[peer["index"]])
    for other in (resumed, shared):
        assert [one["committee"] for one in other.rounds] == [one["committee"] for one in whole.rounds]
        assert other.models.record == whole.models.record


def test_who_never_learned_is_in_neither_committee(tiny):
    result = crad.run(change(tiny, committee=True, method="crad", rounds=1, active=2, models=("cnn6",)))
    told, left_out = result.summary["committee"], result.rounds[0]["committee"]["left_out"]
    assert list(result.committee(0).members) == told["members"]
    assert {int(one) for one in left_out} == set(range(4)) - {*told["members"]}
    assert set(left_out.values()) == {"had learned nothing by round 1"}
    assert len(told["local_accuracy_per_client"]) == 4, "they ask, and have a committee"


def test_validation_halves_are_run_once_per_member(tiny, monkeypatch):
    from crad.federation.peer import Peer

    seen: list[int] = []
    scores = Peer._scores

    def watched(self, model, sets):
        seen.extend(self.index for one in sets if one.images is self.data.held_out)
        return scores(self, model, sets)

    monkeypatch.setattr(Peer, "_scores", watched)
    federation = Federation(change(tiny, committee=True, method="local", models=("cnn6",), rounds=2, eval_every=1))
    federation.next_round()
    assert sorted(seen) == [0, 1, 2, 3]
    federation.next_round()
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]
