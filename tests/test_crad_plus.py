"""What goes beyond the paper: every change by hand, and nothing changed where it is switched off.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import crad
from crad.aggregation import Tally, TeacherStats, credibility, judge, verify
from crad.aggregation.filters import FILTERS, weighted_median
from crad.aggregation.statistics import reliability
from crad.config import PUBLISHED, RECIPES, Experiment
from crad.data.preprocessing import make_preprocessor
from crad.errors import ConfigError
from crad.federation.attacks import CLAIMED_SAMPLES, draw_attackers
from crad.federation.context import build_run_context
from crad.federation.method import one_peer_per_client
from crad.federation.peer import Peer, log_prior
from crad.inference.engine import soft_predictions
from crad.methods import check_recipe, distillation, local_training, resolve_method
from crad.runs.directory import experiment_hash
from crad.runs.names import display_name
from crad.training.distill_augment import augment_block
from crad.training.epoch import Block, train_on_block
from crad.training.losses import BatchLabels, log_shares, private_cross_entropy
from tests.conftest import change
from tests.federation import Federation
from tests.test_aggregation import one_sample, same_for_every_class, spread, tensor
from tests.test_golden import without_timing
from tests.test_resume import assert_same_weights, final_state

PLAIN = {"local_loss": "plain", "evidence": "reported", "filter": "median", "matching": "same"}

# The failure case of the paper's appendix, with the figures that test_aggregation.py chose for the other teachers.
SAYS = [0.343, 0.30, 0.28, 0.25, 0.22, 0.16, 0.17, 0.637, 0.19, 0.20]
COUNTS = [20, 30, 40, 30, 40, 10, 25, 258, 30, 15]
ACCURACIES = [0.5] * 7 + [0.905] + [0.5] * 2
SPECIALIST = 7

EXAMPLES = settings(max_examples=40, derandomize=True, database=None, deadline=None)


# --- switched off, nothing changes


@pytest.mark.usefixtures("forked_workers")
def test_with_the_published_settings_crad_plus_is_crad_to_the_last_bit(shallow, tmp_path):
    """Records, weights, momentum and random state, and in one process as in two."""
    variants: dict[str, dict[str, Any]] = {
        "crad": {"method": "crad"},
        "spelled-out": {"method": "crad", **PLAIN},
        "plus": {"method": "crad-plus", **PLAIN},
        "plus-in-two": {"method": "crad-plus", "workers": 2, **PLAIN},
    }
    for name, setting in variants.items():
        crad.run(change(shallow, rounds=2, **setting), output=tmp_path / name)

    for name in ("spelled-out", "plus", "plus-in-two"):
        assert_same_weights(tmp_path / name, tmp_path / "crad")


def test_the_balanced_loss_gives_other_weights(shallow, tmp_path):
    """So that equal weights above say something."""
    crad.run(change(shallow, rounds=1), output=tmp_path / "crad")
    crad.run(change(shallow, rounds=1, local_loss="balanced"), output=tmp_path / "balanced")

    published, balanced = (final_state(tmp_path / name)[1] for name in ("crad", "balanced"))
    assert any(not torch.equal(balanced[name], tensor) for name, tensor in published.items())


@pytest.fixture(scope="module")
def one_round(shallow):
    return without_timing(crad.run(change(shallow, rounds=1)).rounds)


@pytest.mark.parametrize(
    "setting",
    [
        {"local_loss": "balanced"},
        {"evidence": "pooled"},
        {"evidence": "own"},
        {"filter": "weighted-consensus"},
        {"filter": "self-scaled"},
        {"matching": "mixup"},
        {"matching": "strong"},
        {"teacher_prior": "remove"},
        {"missing_weight": 4.0},
        {"liars": 1},
    ],
    ids=lambda setting: "-".join(map(str, *setting.items())),
)
def test_every_setting_reaches_the_training(shallow, one_round, setting):
    changed = without_timing(crad.run(change(shallow, rounds=1, **setting)).rounds)
    losses = [[client["losses"] for client in rounds[0]["clients"]] for rounds in (one_round, changed)]
    assert losses[0] != losses[1]


@pytest.mark.usefixtures("forked_workers")
def test_every_change_together_is_the_same_in_one_process_and_in_two(shallow):
    wanted = change(shallow, method="crad-plus", rounds=2, matching="mixup", liars=1)
    alone = without_timing(crad.run(change(wanted, workers=1)).rounds)
    assert without_timing(crad.run(change(wanted, workers=2)).rounds) == alone


def test_a_setting_wins_over_what_the_method_stands_for():
    assert Experiment(method="crad-plus").recipe == RECIPES["crad-plus"]
    assert Experiment(method="crad").recipe == PUBLISHED
    changed = Experiment(method="crad-plus", local_loss="plain").recipe
    assert changed.local_loss == "plain"
    assert changed.evidence == RECIPES["crad-plus"].evidence


def test_runs_of_earlier_versions_keep_their_identity():
    assert experiment_hash(Experiment()) == experiment_hash(Experiment(**PLAIN))
    assert experiment_hash(Experiment(method="crad-plus")) == experiment_hash(
        Experiment(method="crad-plus", evidence="pooled")
    )
    others = [Experiment(local_loss="balanced"), Experiment(evidence="own"), Experiment(liars=2), Experiment()]
    assert len({experiment_hash(one) for one in others}) == 4


def test_a_foreign_rule_may_have_another_filter_of_its_own():
    """So asking for the published one may change it, and it is another run with another name."""
    own, median = Experiment(method="my_rules:Rule"), Experiment(method="my_rules:Rule", filter="median")
    assert experiment_hash(own) != experiment_hash(median)
    assert [display_name(one) for one in (own, median)] == ["my_rules:Rule", "my_rules:Rule, median filter"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"method": "fedmd", "evidence": "own"}, r"evidence = 'own' is for methods that combine snapshots by a rule"),
        ({"method": "local", "liars": 1}, r"attack = 'noise' is for methods that combine snapshots by a rule"),
        ({"method": "uniform", "evidence": "pooled"}, r"'uniform' looks at no evidence of its teachers"),
        ({"method": "uniform", "filter": "support"}, r"filter 'support' takes the place of CRAD's"),
    ],
)
def test_a_setting_without_effect_is_refused(setting, words):
    experiment = Experiment(**setting)
    with pytest.raises(ConfigError, match=words):
        check_recipe(experiment, resolve_method(experiment.method))


def test_somebody_must_be_honest():
    with pytest.raises(ConfigError, match="attackers is 4, but there are only 4 clients: one must be honest"):
        Experiment(clients=4, liars=4)


# --- calibrated students


def test_the_balanced_loss_by_hand():
    # Shares 3/4 and 1/4, logits equal: the class of the prior's 3/4 costs ln 4/3, the other ln 4.
    prior_C = log_shares(torch.tensor([0, 0, 0, 1]), num_classes=3)
    logits = torch.zeros(1, 3)
    assert private_cross_entropy(logits, torch.tensor([0]), prior_C).item() == pytest.approx(math.log(4 / 3), rel=1e-6)
    assert private_cross_entropy(logits, torch.tensor([1]), prior_C).item() == pytest.approx(math.log(4), rel=1e-6)


def test_a_class_that_is_not_held_is_not_pushed_down():
    prior_C = log_shares(torch.tensor([0, 1]), num_classes=3)
    logits = torch.tensor([[0.3, -0.2, 1.0]], requires_grad=True)
    private_cross_entropy(logits, torch.tensor([0]), prior_C).backward()
    assert logits.grad is not None
    assert logits.grad[0, 2].item() == 0
    assert logits.grad[0, 0].item() < 0 < logits.grad[0, 1].item()


def test_a_balanced_client_has_two_faces(tiny):
    federation = Federation(change(tiny, local_loss="balanced", lr=0.05))
    federation.next_round()
    peer = federation.peer(0)
    peer.test()
    context, shard = federation.context, federation.context.data.shards[0]
    prior_C = log_prior(context, (0,))
    held = torch.bincount(peer.train.labels, minlength=peer.num_classes).double()
    assert prior_C is not None
    assert torch.allclose(prior_C.double().exp(), held / held.sum(), atol=1e-6)

    def hits(images, face_C):
        with torch.no_grad():
            logits = peer.model.eval()(context.data.preprocessor.inputs(images.samples))
        right = (logits + face_C).argmax(dim=1) == images.labels
        return torch.bincount(images.labels[right], minlength=peer.num_classes).tolist()

    nothing_C = torch.zeros(peer.num_classes)
    validation, test = context.data.samples(shard.validation), context.data.samples(shard.test)
    assert list(peer.evaluation.validation[0].hits) == hits(validation, prior_C)
    assert peer.evaluation.plain is not None
    assert list(peer.evaluation.plain[0].hits) == hits(validation, nothing_C), "what others see"
    assert peer.evaluation.local is not None
    assert list(peer.evaluation.local[0].hits) == hits(test, prior_C)
    assert peer.evaluation.overall is not None
    assert list(peer.evaluation.overall.hits) == hits(context.data.global_test, nothing_C)
    assert peer.statistics().accuracies == peer.evaluation.plain[0].class_accuracies


def test_a_plain_client_has_one_face(tiny):
    federation = Federation(change(tiny, lr=0.05))
    assert log_prior(federation.context, (0,)) is None
    assert federation.peer(0).evaluation.plain is None


def test_the_exported_model_has_both_faces(tiny, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    import json

    from safetensors import safe_open

    from crad.prediction.export import export_onnx, export_safetensors
    from crad.prediction.model_card import make_card

    context = build_run_context(change(tiny, local_loss="balanced"))
    peer = Peer(context, one_peer_per_client(context)[2])
    assert peer.log_prior_C is not None
    model = peer.model.eval().requires_grad_(False)
    card = make_card(context.data, architecture="x", log_prior_C=peer.log_prior_C)
    export_safetensors(model, card, tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        about = file.metadata()
    assert json.loads(about["log_prior"]) == pytest.approx(peer.log_prior_C.tolist())
    assert "logits + log_prior" in about["faces"]
    export_onnx(model, card, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["probabilities", "local_probabilities"]
    pixels = context.data.dataset.test_images[:4]
    plain, local = (torch.from_numpy(array) for array in session.run(None, {"pixels": pixels}))
    logits = model(context.data.preprocessor.inputs(context.data.global_test.samples[:4]))
    assert torch.allclose(plain, torch.softmax(logits, dim=1), atol=1e-5)
    assert torch.allclose(local, torch.softmax(logits + peer.log_prior_C, dim=1), atol=1e-5)
    assert not torch.allclose(plain, local, atol=1e-2)


# --- verified teachers


def counted() -> Tally:
    """Two teachers on four samples of class 0, two of class 1, none of class 2."""
    labels_B = torch.tensor([0, 0, 0, 0, 1, 1])
    said_KB = torch.tensor([[0, 0, 0, 1, 1, 2], [2, 2, 2, 2, 1, 2]])
    tally = Tally(2, 3)
    tally.add(torch.nn.functional.one_hot(said_KB, 3).float(), labels_B, torch.tensor([True, True]))
    return tally


def test_hits_and_false_alarms_are_counted():
    tally = counted()
    assert tally.samples_C.tolist() == [4, 2, 0]
    assert tally.others_C.tolist() == [2, 4, 6]
    assert tally.hits_KC.tolist() == [[3, 1, 0], [0, 1, 0]]
    assert tally.alarms_KC.tolist() == [[0, 1, 1], [0, 0, 5]]


def test_a_teacher_that_is_left_out_is_not_counted():
    tally = Tally(3, 2)
    tally.add(tensor([[[0.9, 0.1]], [[0.2, 0.8]]]), torch.tensor([0]), torch.tensor([True, False, True]))
    assert tally.hits_KC.tolist() == [[1, 0], [0, 0], [0, 0]]
    assert tally.alarms_KC.tolist() == [[0, 0], [0, 0], [0, 1]]


def test_pooled_evidence_adds_up_and_own_evidence_stands_alone():
    # Teacher 0 says 0.75 of 8 samples of class 0, as the student finds it: it is believed.
    stats = TeacherStats(tensor([[8, 4, 10], [0, 0, 0]]), tensor([[0.75, 0.5, 0.8], [0, 0, 0]]))
    assert credibility(stats, counted()).tolist() == [1, 1]
    pooled = verify(stats, counted(), source="pooled")
    assert pooled.counts_KC.tolist() == [[12, 6, 10], [4, 2, 0]]
    assert pooled.accuracies_KC[0].tolist() == pytest.approx([9 / 12, 3 / 6, 0.8])
    assert pooled.support_KC is not None
    assert pooled.false_alarms_KC is not None
    assert pooled.support_KC.tolist() == [[11, 5, 10], [0, 1, 0]], "published samples and the own that it got right"
    assert pooled.false_alarms_KC[0].tolist() == pytest.approx([0, 1 / 4, 1 / 6])
    assert pooled.false_alarms_KC[1].tolist() == pytest.approx([0, 0, 5 / 6]), "measured for a class that is not held"
    own = verify(stats, counted(), source="own")
    assert own.counts_KC.tolist() == [[4, 2, 10], [4, 2, 0]], "published where the student has nothing"
    assert own.accuracies_KC[0].tolist() == pytest.approx([3 / 4, 1 / 2, 0.8])


def test_a_teacher_that_claims_what_is_not_so_loses_its_published_figures():
    tally = Tally(2, 2)
    labels_B = torch.arange(40) % 2
    said_KB = torch.stack([torch.zeros(40, dtype=torch.long), labels_B])
    tally.add(torch.nn.functional.one_hot(said_KB, 2).float(), labels_B, torch.tensor([True, True]))
    counts_KC = torch.full((2, 2), CLAIMED_SAMPLES, dtype=torch.float64)
    claimed = TeacherStats(counts_KC, torch.ones_like(counts_KC))
    believed_K = credibility(claimed, tally)
    assert believed_K[0].item() < 1e-6, "20 of 40 right, all claimed"
    assert believed_K[1].item() == 1, "all claimed, all right"
    seen = verify(claimed, tally, source="pooled")
    assert seen.counts_KC[0].tolist() == pytest.approx([20, 20], abs=1e-2)


@pytest.mark.parametrize("said", [30, 54, 60])
def test_a_teacher_that_claims_only_what_a_student_lacks_decides_nothing_there(said):
    """Sixty samples of two classes; of the third one teacher holds ten, another claims many and says it often."""
    tally = Tally(3, 3)
    tally.samples_C += tensor([30, 30, 0])
    tally.hits_KC += tensor([[24, 24, 0], [24, 24, 0], [0, 0, 0]])
    tally.alarms_KC += tensor([[3, 3, 6], [6, 6, 0], [0, 0, said]])
    counts_KC = tensor([[10, 10, 10], [10, 10, 0], [0, 0, CLAIMED_SAMPLES]])
    claimed = TeacherStats(counts_KC, tensor([[0.8, 0.8, 0.8], [0.8, 0.8, 0], [0, 0, 1]]))
    assert credibility(claimed, tally)[2] == 1, "nothing contradicts it"
    weight_KC = reliability(verify(claimed, tally, source="pooled"), epsilon=1e-8)
    assert weight_KC[2, 2] < weight_KC[0, 2]
    assert weight_KC[2, 2] == 0 or said < 60


@EXAMPLES
@given(n=st.integers(0, 500), a=st.floats(0, 1), right=st.integers(0, 60), more=st.integers(0, 60))
def test_credibility_is_a_share_and_grows_with_what_is_found(n, a, right, more):
    def of(hits: int) -> float:
        tally = Tally(1, 2)
        tally.samples_C += tensor([120, 0])
        tally.hits_KC += tensor([[hits, 0]])
        return credibility(TeacherStats(tensor([[n, 0]]), tensor([[a, 0]])), tally).item()

    assert 0 <= of(right) <= of(right + more) <= 1


def test_the_weight_of_recall_and_false_alarms_by_hand():
    # n = 12, r = 0.5: r~ = 8 / 16 = 0.5, variance 0.25 / 16. Others 12, f = 1/6: f~ = 4 / 16, variance 0.1875 / 16.
    # Teacher 0: (0.5 - 0.25) / (0.4375 / 16) = 9.142857. Teacher 1: f = 2/3, f~ = 10 / 16 > r~: nothing.
    # Teacher 2: f = 0, f~ = 2 / 16, variance 0.109375 / 16: 0.375 / (0.359375 / 16) = 16.69565.
    q_KBC = one_sample(*[[0.5, 0.5]] * 3)
    trace = crad.explain(
        q_KBC,
        same_for_every_class([12] * 3, 2),
        same_for_every_class([0.5] * 3, 2),
        false_alarms=same_for_every_class([1 / 6, 2 / 3, 0], 2),
        others=same_for_every_class([12] * 3, 2),
    )
    total = 9.142857 + 16.69565
    assert trace.weight[:, 0, 0].tolist() == pytest.approx([9.142857 / total, 0, 16.69565 / total], rel=1e-5)


def test_being_decisively_wrong_is_no_longer_rewarded():
    # Published: (a=0, n=180) weighs as much as (a=1, n=180). With false alarms known it weighs nothing.
    q_KBC = one_sample([0.5, 0.5], [0.5, 0.5])
    counts, accuracies = same_for_every_class([180, 180], 2), same_for_every_class([0, 1], 2)
    assert crad.explain(q_KBC, counts, accuracies).weight[:, 0, 0].tolist() == pytest.approx([0.5, 0.5])
    alarms, others = same_for_every_class([0.1, 0.1], 2), same_for_every_class([100, 100], 2)
    seen = crad.explain(q_KBC, counts, accuracies, false_alarms=alarms, others=others)
    assert seen.weight[:, 0, 0].tolist() == [0, 1]


def test_false_alarms_come_with_their_number():
    with pytest.raises(crad.errors.AggregationError, match="false_alarms and others belong together"):
        crad.aggregate(
            spread(SAYS), same_for_every_class(COUNTS, 10), same_for_every_class(ACCURACIES, 10),
            false_alarms=same_for_every_class([0.1] * 10, 10),
        )  # fmt: skip


def test_liars_are_found_out_and_honest_teachers_believed(tiny):
    experiment = change(tiny, evidence="pooled", liars=1, rounds=3, lr=0.05)
    result = crad.run(experiment)
    (liar,) = draw_attackers(experiment)
    for client in result.rounds[-1]["clients"]:
        believed = client["notes"]["credibility"]
        assert all(share < 0.01 for teacher, share in believed.items() if int(teacher) == liar)
        assert all(share > 0.5 for teacher, share in believed.items() if int(teacher) != liar)


def test_a_lie_is_noise_with_the_best_of_claims(tiny):
    federation = Federation(change(tiny, liars=1))
    (liar,) = draw_attackers(federation.context.experiment)
    peer = federation.peer(liar)
    from crad.federation.message import read_body, read_manifest

    message = peer.snapshot(1)
    manifest = read_manifest(message, sender=liar, round_index=1, kind="snapshot")
    assert manifest.statistics is not None
    assert set(manifest.statistics.counts) == {CLAIMED_SAMPLES}
    assert set(manifest.statistics.accuracies) == {1.0}
    sent = read_body(message, sender=liar, expected=peer.model.state_dict())
    own = dict(peer.model.named_parameters())
    changed = [name for name, parameter in own.items() if parameter.std() > 0 and torch.equal(sent[name], parameter)]
    assert changed == [], "none of the weights is its own"
    assert bool(peer.snapshot(1).body == message.body), "drawn by the seed"


@pytest.mark.parametrize(("matching", "share"), [("same", 1.0), ("mixup", 0.5), ("strong", 0.5)])
def test_a_sample_is_counted_once_and_as_it_was_photographed(shallow, matching, share, monkeypatch):
    """Neither a second epoch nor a mixed or disfigured sample is evidence."""
    counted: list[Tally] = []

    def begin(num_teachers, num_classes):
        counted.append(Tally(num_teachers, num_classes))
        return counted[-1]

    monkeypatch.setattr(judge, "Tally", begin)
    experiment = change(shallow, evidence="pooled", matching=matching, local_epochs=2, rounds=1)
    crad.run(change(experiment, workers=1))
    held = [len(shard.train) for shard in Federation(experiment).context.data.shards]
    assert len(counted) == len(held)
    for tally, samples in zip(counted, held, strict=True):
        assert int(tally.samples_C.sum()) == math.ceil(share * samples)


# --- a filter that listens to evidence


def test_the_specialist_of_the_appendix_is_dropped_by_crad_and_kept_by_crad_plus() -> None:
    counts, accuracies = same_for_every_class(COUNTS, 10), same_for_every_class(ACCURACIES, 10)
    published = crad.explain(spread(SAYS), counts, accuracies, rule="crad")
    assert published.state[SPECIALIST, 0, 0] == "outlier"
    plus = crad.explain(spread(SAYS), counts, accuracies, rule="crad-plus")
    assert plus.state[SPECIALIST, 0, 0] == "kept"
    assert plus.weight[SPECIALIST, 0, 0].item() == plus.weight[:, 0, 0].max().item()
    assert plus.target[0, 0].item() > 0.4 > published.target[0, 0].item()


@pytest.mark.parametrize(
    "kind",
    ["support", "self-scaled", "weighted-consensus", "weighted-median", "weighted"],
)
def test_every_other_filter_keeps_the_specialist(kind):
    rule = crad.RULES["crad"].with_filter(kind)
    counts, accuracies = same_for_every_class(COUNTS, 10), same_for_every_class(ACCURACIES, 10)
    assert crad.explain(spread(SAYS), counts, accuracies, rule=rule).state[SPECIALIST, 0, 0] == "kept"


def test_of_two_supported_the_one_with_more_evidence_is_kept():
    """A known property: a weighted mean lies nearer the heavier of two. With equal evidence both are kept."""
    says = spread([0.2, 0.6])
    for counts, expected in (([20, 21], [False, True]), ([21, 20], [True, False]), ([20, 20], [True, True])):
        trace = crad.explain(
            says, same_for_every_class(counts, 10), same_for_every_class([0.5, 0.5], 10), rule="crad-plus"
        )
        assert (trace.state[:, 0, 0] == "kept").tolist() == expected
        published = crad.explain(says, same_for_every_class(counts, 10), same_for_every_class([0.5, 0.5], 10))
        assert (published.state[:, 0, 0] == "kept").tolist() == [True, True]


def test_the_weighted_median_by_hand():
    values_KBC = tensor([3, 1, 2]).view(3, 1, 1)

    def of(*weights: float) -> float:
        return weighted_median(values_KBC, tensor(weights).view(3, 1)).item()

    assert of(1, 1, 1) == 2
    assert of(4, 1, 1) == 3, "the heaviest has more than half"
    assert of(1, 4, 1) == 1
    assert of(1, 0, 1) == 2, "the lower of two"
    assert of(0, 0, 0) == math.inf


@EXAMPLES
@given(data=st.data())
def test_every_filter_keeps_somebody_where_somebody_is_supported(data):
    teachers, classes = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    q_KBC = torch.softmax(3 * torch.randn(teachers, 3, classes, generator=generator), dim=2)
    counts_KC = torch.randint(0, 6, (teachers, classes), generator=generator).double()
    accuracies_KC = torch.rand(teachers, classes, generator=generator).double()
    for kind in FILTERS:
        trace = crad.explain(q_KBC, counts_KC, accuracies_KC, rule=crad.RULES["crad"].with_filter(kind))
        is_kept_BC = torch.from_numpy((trace.state == "kept").any(axis=0))
        assert is_kept_BC.equal((counts_KC >= 2).any(dim=0).expand_as(is_kept_BC)), kind
        assert trace.target.sum(dim=1).tolist() == pytest.approx([1, 1, 1], abs=1e-5)


def test_equal_evidence_gives_the_published_consensus():
    counts, accuracies = same_for_every_class([20] * 10, 10), same_for_every_class([0.5] * 10, 10)
    published = crad.explain(spread(SAYS), counts, accuracies)
    for kind in ("self-scaled", "weighted-consensus", "weighted-median", "weighted"):
        trace = crad.explain(spread(SAYS), counts, accuracies, rule=crad.RULES["crad"].with_filter(kind))
        assert trace.state.tolist() == published.state.tolist(), kind
        assert torch.allclose(trace.target, published.target)


# --- matching on more of the function


PIXELS = make_preprocessor([0.0], [1.0], augmentation="none", device="cpu")


def block(size: int = 9) -> Block:
    generator = torch.Generator().manual_seed(3)
    return Block(torch.randn(size, 1, 4, 4, generator=generator), torch.arange(size) % 3)


def test_mixed_samples_are_what_their_shares_say():
    given = block()
    made = augment_block(given, "mixup", preprocessor=PIXELS, seed=5, purpose=("test",))
    assert made.share is not None
    assert made.mixed_with is not None
    assert made.is_changed is not None
    assert made.is_changed.tolist() == [False, True] * 4 + [False], "every second one stays whole"
    assert torch.equal(made.inputs[::2], given.inputs[::2])
    assert bool(((made.share[1::2] >= 0.5) & (made.share[1::2] < 1)).all())
    assert torch.equal(made.labels, given.labels)
    for row in range(1, 9, 2):
        rest = (made.inputs[row] - made.share[row] * given.inputs[row]) / (1 - made.share[row])
        partner = [other for other in range(9) if torch.allclose(rest, given.inputs[other], atol=1e-4)]
        assert len(partner) == 1
        assert made.mixed_with[row] == given.labels[partner[0]]
    again = augment_block(given, "mixup", preprocessor=PIXELS, seed=5, purpose=("test",))
    assert torch.equal(made.inputs, again.inputs)
    assert not torch.equal(
        made.inputs, augment_block(given, "mixup", preprocessor=PIXELS, seed=6, purpose=("test",)).inputs
    )


@pytest.mark.parametrize("matching", ["mixup", "strong"])
def test_teachers_and_student_see_the_same_changed_inputs(shallow, matching, monkeypatch):
    taught: list[torch.Tensor] = []
    trained: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    teach, train = soft_predictions, train_on_block

    def teach_seen(teachers, inputs, **how):
        taught.append(inputs.clone())
        return teach(teachers, inputs, **how)

    def train_seen(model, optimizer, block, **how):
        trained.append((block.inputs.clone(), block.is_changed))
        train(model, optimizer, block, **how)

    monkeypatch.setattr(distillation, "soft_predictions", teach_seen)
    monkeypatch.setattr(local_training, "train_on_block", train_seen)
    crad.run(change(shallow, matching=matching, rounds=1, workers=1))

    assert len(taught) == len(trained) == shallow.clients
    for shown, (learned, is_changed) in zip(taught, trained, strict=True):
        assert torch.equal(shown, learned)
        assert is_changed is not None
        assert bool(is_changed.any())


def test_mixed_labels_share_the_loss():
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    labels = BatchLabels(torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([0.75, 1.0]))
    first, second = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    expected = (0.75 * first + 0.25 * second + math.log(2)) / 2
    assert private_cross_entropy(logits, labels).item() == pytest.approx(expected, rel=1e-6)


def test_strongly_changed_samples_keep_their_label_and_the_others_their_pixels():
    given = block(8)
    made = augment_block(given, "strong", preprocessor=PIXELS, seed=5, purpose=("test",))
    assert made.share is None
    assert made.is_changed is not None
    assert made.is_changed.tolist() == [False, True] * 4
    assert torch.equal(made.inputs[::2], given.inputs[::2])
    for row in range(1, 8, 2):
        assert not torch.equal(made.inputs[row], given.inputs[row])
        grey = int((made.inputs[row] == 0).sum())
        assert 1 <= grey <= 4, "a square of half the side at most"
    assert augment_block(given, "same", preprocessor=PIXELS, seed=5, purpose=("test",)) is given
