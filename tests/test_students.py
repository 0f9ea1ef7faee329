"""How students learn from experts: longer, weighed towards lacking classes, on changed and on dreamt inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import crad
from crad.config import Experiment
from crad.data.kinds.series import SignalPreprocessor
from crad.data.kinds.text import TextPreprocessor
from crad.data.preprocessing import make_preprocessor
from crad.errors import ConfigError
from crad.federation.context import build_run_context
from crad.federation.method import RoundContext
from crad.federation.teachers import TeacherCache
from crad.methods import check_recipe, resolve_method
from crad.methods.dreams import DreamPlan, _Expert, dream_loss, make_dreams, variation, wanted_labels
from crad.methods.experts import Experts, kept_teachers
from crad.methods.students import DREAM_INPUTS, DREAM_ROUND, joined
from crad.paper.experiments import load_paper
from crad.paper.measures import MEASURES
from crad.paper.plan import plan_reproduction
from crad.training.batch_statistics import has_batch_statistics, watched_statistics
from crad.training.digest import logits_on
from crad.training.distill_augment import augment_block
from crad.training.epoch import Block
from crad.training.losses import BatchLabels, StudentLoss, private_cross_entropy, softened_divergence
from crad.training.sample_weights import lacking_classes, missing_class_weights, sure_weights
from tests.conftest import change
from tests.federation import Federation
from tests.records import made_run
from tests.test_golden import without_timing
from tests.test_resume import assert_same_end, run_with_stops

PIXELS = make_preprocessor([0.0], [1.0], augmentation="none", device="cpu")
EVERYTHING: dict[str, Any] = {
    "student_epochs": 2,
    "student_lr": 0.03,
    "student_schedule": "cosine",
    "missing_weight": 2.0,
    "sure": 0.3,
    "dreams": 4,
    "dream_steps": 2,
}


@pytest.fixture(scope="module")
def everything(shallow) -> Experiment:
    """One round of experts, two of students with every setting at work."""
    of_method = {"expert_rounds": 1, **EVERYTHING}
    return change(
        shallow, method="experts", rounds=3, lr=0.05, distill_augment="patches", method_settings=of_method,
        committee=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole_run(everything, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("students") / "run"
    crad.run(everything, output=path)
    return path


@pytest.fixture(scope="module")
def exchanged(everything) -> Federation:
    """After the exchange: everybody keeps all experts."""
    federation = Federation(everything)
    federation.next_round()
    return federation


# --- what counts most


def test_a_class_is_lacking_by_how_far_it_is_below_an_equal_share():
    assert lacking_classes(torch.tensor([6, 3, 3, 0])).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert lacking_classes(torch.tensor([9, 2, 1, 0])).tolist() == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
    assert lacking_classes(torch.tensor([0, 0])).tolist() == [1.0, 1.0]


def test_a_sample_weighs_by_its_mass_on_lacking_classes_by_hand():
    """Strength 3, a class that is missing: masses 0 and 1 give 1 and 4, over their mean 2.5."""
    target = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    lacking = torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = missing_class_weights(target, lacking, strength=3.0, temperature=1.0)
    assert found.tolist() == pytest.approx([0.4, 1.6])
    # At T = 2 probabilities 1/3 and 2/3 are 1/5 and 4/5 at T = 1: weights 1 + 3 x 0.8 = 3.4 and 1, over 2.2.
    softened = torch.tensor([[1 / 3, 2 / 3], [1.0, 0.0]])
    found = missing_class_weights(softened, lacking, strength=3.0, temperature=2.0)
    assert found.tolist() == pytest.approx([3.4 / 2.2, 1 / 2.2])


def test_weights_have_mean_one_and_none_without_strength():
    target = torch.softmax(torch.randn(20, 5, generator=torch.Generator().manual_seed(1)), dim=1)
    lacking = lacking_classes(torch.tensor([5, 4, 1, 0, 0]))
    weights = missing_class_weights(target, lacking, strength=4.0, temperature=3.0)
    assert float(weights.mean()) == pytest.approx(1.0)
    assert float(weights.std()) > 0.05
    assert missing_class_weights(target, lacking, strength=0.0, temperature=3.0).tolist() == [1.0] * 20


def test_only_changed_samples_must_be_sure():
    target = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.6, 0.4], [0.9, 0.1]])
    is_changed = torch.tensor([False, False, True, True])
    assert sure_weights(target, is_changed, threshold=0.8, temperature=1.0).tolist() == [1, 1, 0, 1]
    assert sure_weights(target, None, threshold=0.8, temperature=1.0).tolist() == [1, 1, 1, 1]
    # 0.6 and 0.4 at T = 3 are 0.216 and 0.064, or 0.77 and 0.23, at T = 1.
    assert sure_weights(target, is_changed, threshold=0.75, temperature=3.0).tolist() == [1, 1, 1, 1]


def test_weights_stand_before_each_samples_divergence():
    logits, target = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    each = [float(softened_divergence(logits[i : i + 1], target[i : i + 1], temperature=2.0)) for i in range(2)]
    weighed = softened_divergence(logits, target, temperature=2.0, weight_B=torch.tensor([0.5, 3.0]))
    assert float(weighed) == pytest.approx((0.5 * each[0] + 3.0 * each[1]) / 2)
    equal = softened_divergence(logits, target, temperature=2.0, weight_B=torch.ones(2))
    assert float(equal) == pytest.approx(float(softened_divergence(logits, target, temperature=2.0)))


def test_a_target_that_is_reached_costs_nothing_under_any_weights():
    logits = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    target = torch.softmax(logits / 3.0, dim=1)
    assert float(softened_divergence(logits, target, temperature=3.0, weight_B=torch.tensor([0.2, 5.0]))) < 1e-6


def test_a_run_weighs_lacking_classes_as_experts_do(shallow):
    """The run's own setting, which every distilling method has, is to the last bit that of the method."""
    runs = [
        crad.run(change(shallow, clients=2, method="experts", rounds=2, method_settings=own, missing_weight=of_run))
        for own, of_run in (({"missing_weight": 2.0}, None), ({}, 2.0), ({}, None))
    ]
    of_method, of_run, none = ([line["clients"] for line in without_timing(run.rounds)] for run in runs)
    assert of_method == of_run
    assert of_method != none


def test_two_weights_of_lacking_classes_that_differ_are_refused():
    experiment = Experiment(method="experts", method_settings={"missing_weight": 2.0}, missing_weight=3.0)
    with pytest.raises(ConfigError, match=r"missing_weight is 3 for the run and 2 among the settings of 'experts'"):
        check_recipe(experiment, resolve_method("experts", experiment.method_settings))


# --- samples without a label


def test_samples_without_a_label_are_no_part_of_the_private_loss():
    logits, labels = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]), torch.tensor([1, 0, 0])
    some = BatchLabels(labels, is_known_B=torch.tensor([True, False, True]))
    assert float(private_cross_entropy(logits, some)) == pytest.approx(
        float(private_cross_entropy(logits[[0, 2]], labels[[0, 2]]))
    )
    prior = torch.tensor([0.3, 0.7]).log()
    assert float(private_cross_entropy(logits, some, prior)) == pytest.approx(
        float(private_cross_entropy(logits[[0, 2]], labels[[0, 2]], prior))
    )
    nobody = BatchLabels(labels, is_known_B=torch.zeros(3, dtype=torch.bool))
    logits.requires_grad_()
    nothing = private_cross_entropy(logits, nobody)
    nothing.backward()
    assert logits.grad is not None
    assert (float(nothing.detach()), float(logits.grad.abs().sum())) == (0.0, 0.0)
    assert some.mass(2).tolist() == [[0, 1], [0, 0], [1, 0]]


def test_what_is_joined_to_a_block_has_no_label_and_counts_as_changed():
    block = Block(torch.arange(3.0).view(3, 1, 1, 1), torch.tensor([2, 1, 2]))
    made = joined(block, torch.tensor([7.0, 8.0]).view(2, 1, 1, 1), torch.tensor([3, 0, 4, 2, 1]), own=3)
    assert made.inputs.flatten().tolist() == [7.0, 0.0, 8.0, 2.0, 1.0]
    assert made.is_labelled is not None
    assert made.is_changed is not None
    assert made.is_labelled.tolist() == [False, True, False, True, True]
    assert made.is_changed.tolist() == [True, False, True, False, False]
    assert made.labels[made.is_labelled].tolist() == [2, 2, 1]
    assert made.batch_labels.is_known_B is made.is_labelled
    mixed = augment_block(block, "mixup", preprocessor=PIXELS, seed=1, purpose=("test",))
    again = joined(mixed, torch.zeros(2, 1, 1, 1), torch.arange(5), own=3)
    assert again.share is not None
    assert again.share[3:].tolist() == [1.0, 1.0]
    assert again.is_changed is not None
    assert again.is_changed.tolist() == [False, True, False, True, True]


def test_weights_of_classes_for_fitted_models_follow_the_weights_of_samples():
    target = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    labels = BatchLabels(torch.tensor([0, 0]), is_known_B=torch.tensor([True, False]))
    loss = StudentLoss(labels, target, temperature=1.0, distill_weight=0.5, weight_B=torch.tensor([1.0, 0.2]))
    assert loss.class_mass(2).flatten().tolist() == pytest.approx([0.75, 0.25, 0.0, 0.1])


# --- on what


def some_block(size: int = 9, side: int = 8) -> Block:
    generator = torch.Generator().manual_seed(3)
    return Block(torch.randn(size, 1, side, side, generator=generator), torch.arange(size) % 3)


def test_a_piece_of_another_image_has_the_share_that_the_labels_say():
    given = some_block()
    made = augment_block(given, "cutmix", preprocessor=PIXELS, seed=5, purpose=("test",))
    assert made.share is not None
    assert made.mixed_with is not None
    assert torch.equal(made.inputs[::2], given.inputs[::2])
    assert made.share[::2].tolist() == [1.0] * 5
    for row in range(1, 9, 2):
        is_own = made.inputs[row] == given.inputs[row]
        partners = [
            other for other in range(9) if bool((is_own | (made.inputs[row] == given.inputs[other])).all())
        ]  # fmt: skip
        assert partners, "every pixel is one's own or the other's"
        assert float(made.share[row]) == pytest.approx(float(is_own.float().mean()))
        assert 0.4 < float(made.share[row]) <= 1.0
    assert torch.equal(
        made.inputs, augment_block(given, "cutmix", preprocessor=PIXELS, seed=5, purpose=("test",)).inputs
    )


def test_a_crop_is_within_the_image_and_an_even_one_stays_even():
    given = Block(torch.cat([torch.full((4, 1, 8, 8), 3.0), torch.rand(4, 1, 8, 8)]), torch.arange(8) % 2)
    made = augment_block(given, "crops", preprocessor=PIXELS, seed=5, purpose=("test",)).inputs
    assert torch.equal(made[::2], given.inputs[::2])
    assert torch.allclose(made[:4], given.inputs[:4])
    for row in (5, 7):
        assert not torch.equal(made[row], given.inputs[row])
        assert float(given.inputs[row].min()) - 1e-6 <= float(made[row].min())
        assert float(made[row].max()) <= float(given.inputs[row].max()) + 1e-6


def test_the_whole_of_an_image_is_a_crop_of_it(monkeypatch):
    monkeypatch.setattr("crad.data.preprocessing.SMALLEST_CROP", 1.0)
    given = some_block().inputs
    made = PIXELS.crop(given, generator=torch.Generator().manual_seed(2))
    for one, whole in zip(made, given, strict=True):
        assert torch.allclose(one, whole, atol=1e-5) or torch.allclose(one, whole.flip(-1), atol=1e-5)


def test_a_stretch_of_a_sound_stays_where_it_is():
    sounds = torch.rand(6, 2, 40) + 1
    preprocessor = SignalPreprocessor(torch.device("cpu"), is_silent_outside=True)
    made = preprocessor.crop(sounds, generator=torch.Generator().manual_seed(2))
    is_kept = made == sounds
    assert bool((is_kept | (made == 0)).all())
    assert bool((is_kept[:, 0].sum(dim=1) >= 10).all()), "a quarter at least"
    others = -torch.rand(6, 2, 40)
    share = torch.linspace(0.5, 1.0, 6)
    cut, own = preprocessor.cut(sounds, others, share, generator=torch.Generator().manual_seed(2))
    assert own.tolist() == pytest.approx(share.tolist(), abs=0.02)
    assert (cut > 0)[:, 0].float().mean(dim=1).tolist() == pytest.approx(own.tolist())
    gaps = SignalPreprocessor(torch.device("cpu")).crop(sounds, generator=torch.Generator().manual_seed(2))
    assert bool((gaps.isnan() == ~is_kept).all())


def test_a_stretch_of_a_text_begins_at_its_first_place():
    ids = torch.tensor([[4, 5, 6, 7, 8, 9, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0]])
    for seed in range(8):
        made = TextPreprocessor(torch.device("cpu")).crop(ids, generator=torch.Generator().manual_seed(seed))
        words = [word for word in made[0].tolist() if word]
        assert words
        assert words == list(range(words[0], words[0] + len(words))), "one after the other"
        assert made[0].tolist() == words + [0] * (8 - len(words))
        assert made[1].tolist() == [3] + [0] * 7


# --- for how long


def test_the_rate_falls_over_all_epochs_of_all_students():
    """Rounds 3 and 4 of 4, two epochs each: a quarter of half a cosine is behind after each."""
    spec = Experts(student_epochs=2, student_schedule="cosine", student_lr=0.4)
    experiment = Experiment(rounds=4, lr=0.1)
    places = [(3, 0), (3, 1), (4, 0), (4, 1)]
    found = [spec.lr_at(experiment, round_index=number, epoch=epoch, after=2) for number, epoch in places]
    assert found == pytest.approx([0.2 * (1 + math.cos(math.pi * part)) for part in (0, 0.25, 0.5, 0.75)])
    falling = Experiment(rounds=4, lr=0.1, lr_schedule="cosine")
    assert Experts().lr_at(falling, round_index=3, epoch=0, after=2) == pytest.approx(0.05)
    constant = Experts(student_schedule="constant")
    assert constant.lr_at(falling, round_index=4, epoch=1, after=2) == 0.1


def test_a_student_trains_for_its_epochs_at_their_rates(exchanged, everything, monkeypatch):
    seen: list[tuple[int, float, int]] = []

    def spy(peer, block, loss_of, meter):
        assert block.is_labelled is not None
        seen.append((block.epoch, peer.optimizer.param_groups[0]["lr"], int((~block.is_labelled).sum())))

    monkeypatch.setattr("crad.methods.distillation.train_peer", spy)
    peer = exchanged.peer(0)
    method = resolve_method("experts", everything.method_settings)
    learned = method.phases[2].learn(peer, {}, RoundContext(2, TeacherCache(exchanged.context)))
    assert [epoch for epoch, _, _ in seen] == [0, 1]
    assert [rate for _, rate, _ in seen] == pytest.approx(
        [0.015 * (1 + math.cos(math.pi * part)) for part in (0, 0.25)]
    )
    assert [dreamt for _, _, dreamt in seen] == [len(peer.memory[DREAM_INPUTS])] * 2
    assert "dreams" in learned.losses


# --- dreams


def test_of_a_class_as_many_are_dreamt_as_it_is_lacking():
    labels = torch.tensor([0] * 9 + [1] * 2 + [2])
    assert wanted_labels(labels, num_classes=4, per_class=6).tolist() == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]


def test_statistics_of_series_are_watched_as_those_of_images_are():
    norm = nn.BatchNorm1d(2).eval()
    maps = torch.tensor([[[1.0, 3.0], [0.0, 0.0]], [[1.0, 3.0], [2.0, 2.0]]], requires_grad=True)
    with watched_statistics(norm) as distances:
        norm(maps)
    # Means (2, 1) and variances (1, 1) against zeros and ones.
    assert float(distances[0].detach()) == pytest.approx(math.sqrt(5))
    distances[0].backward()
    slopes = maps.grad
    assert slopes is not None
    # The variance is where it should be: only the mean pulls, by 2 / sqrt 5 and 1 / sqrt 5 over four places.
    assert slopes[:, 0].flatten().tolist() == pytest.approx([2 / math.sqrt(5) / 4] * 4)
    assert slopes[:, 1].flatten().tolist() == pytest.approx([1 / math.sqrt(5) / 4] * 4)
    assert has_batch_statistics(nn.Sequential(norm))
    assert not has_batch_statistics(nn.Sequential(nn.Linear(2, 2)))


def plan(**changes: Any) -> DreamPlan:
    usual = {"per_class": 4, "steps": 15, "lr": 0.1, "experts": 2, "start": "own"}
    return DreamPlan(**{**usual, "statistics_weight": 1.0, "variation_weight": 0.1, **changes})


def test_who_has_a_class_is_heard_about_it_by_hand():
    """Two experts without batch norm that say 0.5 and 0.9 of class 1; they hold 30 and 10 samples: 0.6."""

    class Says(nn.Module):
        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

        def forward(self, inputs):
            return inputs.flatten(1)[:, :2] * 0 + torch.tensor([1 - self.share, self.share]).log()

    experts = [
        _Expert(Says(0.5), torch.tensor([0.0, 30.0]), None),
        _Expert(Says(0.9), torch.tensor([0.0, 10.0]), None),
    ]
    inputs = torch.zeros(2, 1, 2, 2)
    found = dream_loss(experts, inputs, torch.tensor([1, 1]), plan())
    assert float(found) == pytest.approx(-math.log(0.6))
    half = dream_loss(experts, inputs, torch.tensor([1, 0]), plan())
    assert float(half) == pytest.approx(-math.log(0.6) / 2), "of class 0 nobody knows anything"
    # Shares 1/4 and 3/4 taken out: 0.5 / 0.25 against 0.5 / 0.75 is 0.25 for class 1.
    [corrected] = [_Expert(Says(0.5), torch.tensor([0.0, 30.0]), torch.tensor([0.25, 0.75]).log())]
    assert float(dream_loss([corrected], inputs, torch.tensor([1, 1]), plan())) == pytest.approx(-math.log(0.25))


def test_an_input_that_nobody_takes_for_the_class_can_still_be_changed():
    """The only expert gives class 1 a share of exp(-60): less than single precision has room for beside 1."""

    class Slope(nn.Module):
        def forward(self, inputs):
            return torch.stack([inputs.flatten(1)[:, 0], torch.full((len(inputs),), -60.0)], dim=1)

    inputs = torch.zeros(1, 1, 1, 1, requires_grad=True)
    loss = dream_loss([_Expert(Slope(), torch.tensor([0.0, 3.0]), None)], inputs, torch.tensor([1]), plan())
    assert float(loss.detach()) == pytest.approx(60.0)
    loss.backward()
    assert inputs.grad is not None
    assert float(inputs.grad) == pytest.approx(1.0)


def test_neighbours_differ_by_hand():
    picture = torch.tensor([[[[0.0, 1.0], [0.0, 3.0]]]])
    assert float(variation(picture)) == pytest.approx((1 + 3) / 2 + (0 + 2) / 2)
    assert float(variation(torch.tensor([[[0.0, 1.0, 3.0]]]))) == pytest.approx(1.5)
    assert float(variation(torch.rand(3, 4))) == 0.0


@pytest.fixture(scope="module")
def knowing(everything) -> Federation:
    """After four rounds of experts: what they say depends on what they are shown, which after one it hardly does."""
    federation = Federation(
        change(everything, rounds=5, method_settings={**everything.method_settings, "expert_rounds": 4})
    )
    for _ in range(4):
        federation.next_round()
    return federation


@pytest.mark.parametrize("start", ["own", "noise"])
def test_experts_see_in_dreams_what_was_wanted(knowing, start):
    """More steps bring the loss down; the same draws give the same inputs, within what own images reach."""
    peer = knowing.peer(0)
    context = RoundContext(5, TeacherCache(knowing.context))
    experts = kept_teachers(peer)
    refused: dict[str, str] = {}
    asked = plan(start=start, experts=4, statistics_weight=0.0)
    first, before = make_dreams(peer, experts, context, replace(asked, steps=1), refused)
    made, after = make_dreams(peer, experts, context, asked, refused)
    again, _ = make_dreams(peer, experts, context, asked, refused)
    assert after < 0.5 * before
    _, far = make_dreams(peer, experts, context, replace(asked, steps=1, statistics_weight=100.0), refused)
    _, near = make_dreams(peer, experts, context, replace(asked, statistics_weight=100.0), refused)
    assert near < far - 1, "and statistics come nearer where they are asked for"
    assert torch.equal(made, again)
    own = peer.data.preprocessor.inputs(peer.train.samples)
    assert float(made.min()) >= float(own.min()) - 1e-4
    assert float(made.max()) <= float(own.max()) + 1e-4
    assert first.shape == made.shape
    assert made.shape[1:] == own.shape[1:]
    assert not refused


def test_dreams_are_made_once_for_each_exchange(everything):
    of_method = {**everything.method_settings, "exchange_every": 1, "dream_steps": 1}
    federation = Federation(change(everything, method_settings=of_method, rounds=3, models=("cnn6",)))
    federation.next_round()
    federation.next_round()
    peer = federation.peer(0)
    assert int(peer.memory[DREAM_ROUND]) == 2, "of the experts of round 2, which the second exchange brought"
    frozen = Federation(change(everything, models=("cnn6",)))
    for _ in range(2):
        frozen.next_round()
    before = frozen.peer(0).memory[DREAM_INPUTS].clone()
    frozen.next_round()
    assert torch.equal(frozen.peer(0).memory[DREAM_INPUTS], before)


def test_where_no_network_has_a_batch_norm_it_is_refused_in_one_line(tmp_path):
    experiment = Experiment(
        dataset="breast-cancer", method="experts", clients=2, models=("mlp",), rounds=2, method_settings={"dreams": 2}
    )
    method = resolve_method("experts", experiment.method_settings)
    with pytest.raises(ConfigError, match=r"dreams need a network with batch norm, and none of mlp.* set dreams = 0"):
        method.roster(build_run_context(experiment))


# --- the defaults, and however it is run


@pytest.mark.parametrize(
    ("given_epochs", "epochs"), [({}, 4), ({"student_epochs": 0}, 1)], ids=["default", "as the run"]
)
def test_settings_at_their_defaults_are_a_student_as_it_was(shallow, given_epochs, epochs):
    usual = change(shallow, method="experts", rounds=2, method_settings={"expert_rounds": 1, **given_epochs})
    said = {"expert_rounds": 1, "student_epochs": epochs, "student_schedule": "constant", "student_lr": usual.lr}
    lines = [crad.run(one).rounds[1]["clients"] for one in (usual, change(usual, method_settings=said))]
    assert [one["losses"] for one in lines[0]] == [one["losses"] for one in lines[1]]


@pytest.mark.usefixtures("forked_workers")
def test_two_workers_end_as_one(everything, whole_run, tmp_path):
    crad.run(change(everything, workers=2), output=tmp_path / "run")
    assert_same_end(tmp_path / "run", whole_run)


def test_a_run_stopped_anywhere_ends_the_same(everything, whole_run, tmp_path):
    run_with_stops(everything, tmp_path / "run", after_steps=[9, 12], stage="learning")
    assert_same_end(tmp_path / "run", whole_run)


# --- the yardstick, and the table


def test_others_accuracy_is_of_every_model_on_the_validation_halves_of_the_others(everything, whole_run):
    federation = Federation(everything)
    for _ in range(3):
        federation.next_round()
    data, found = federation.context.data, []
    for peer in federation.peers():
        of_others = [shard.validation for client, shard in enumerate(data.shards) if client != peer.index]
        images = data.samples(np.concatenate(of_others))
        said = logits_on(peer.model, data.preprocessor.inputs(images.samples)).argmax(dim=1)
        found.append(100 * float((said == images.labels).float().mean()))
    result = crad.load(whole_run)
    assert result.rounds[-1]["others_accuracy"] == pytest.approx(sum(found) / 4)
    selected = result.rounds[result.summary["best_round"] - 1]
    assert result.summary["others_accuracy"] == selected["others_accuracy"]


def test_others_accuracy_is_left_out_where_nothing_was_counted(shallow):
    [line] = crad.run(change(shallow, rounds=1, committee=True, committee_evidence="reported")).rounds
    assert "others_accuracy" not in line


def test_the_table_has_one_run_for_the_experts_and_one_for_each_row_of_students(tmp_path):
    paper = load_paper("student")
    assert paper.seeds == (1, 2, 3), "not those of the choice"
    runs = plan_reproduction("student", tmp_path, flags={"preset": "mini"}).runs
    assert len(runs) == (len(paper.rows) - 1) * len(paper.columns) * 3
    of = {row.name: row.settings.get("method_settings", {}) for row in paper.rows}
    assert of["one-epoch"] == {"student_epochs": 1}
    experts = {run.experiment.rounds for run in runs if run.experiment.method == "committee"}
    assert experts == {15}, "as long as students' experts train in thirty"
    run = made_run(clients=2)
    run.summary["others_accuracy"] = 31.5
    assert MEASURES["others_accuracy"](run, "longer") == 31.5


def test_rows_may_differ_in_settings_of_the_method_alone(tmp_path):
    runs = plan_reproduction("student", tmp_path, flags={"preset": "mini"}, seeds=[1]).runs
    epochs = {run.experiment.method_settings["student_epochs"] for run in runs if run.experiment.method == "experts"}
    assert epochs == {1, 2, 4}
    tuned = plan_reproduction(
        "student", tmp_path, flags={"preset": "mini"}, seeds=[1], method_settings={"experts": {"student_epochs": 7}}
    ).runs
    assert {one.experiment.method_settings.get("student_epochs", 7) for one in tuned} == {7}
