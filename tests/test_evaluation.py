"""Scoring a model per class, and one local epoch: who is seen, in what order, and how far a step goes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crad.config import Experiment
from crad.data.preprocessing import ImagePreprocessor, SampleSet, fit_preprocessor, image_set
from crad.federation.peer_evaluation import ClassScore
from crad.inference.engine import TeacherEngine
from crad.models import Architecture, build_model
from crad.training import epoch, evaluation
from crad.training.clipping import Clipper
from crad.training.epoch import Block, LossMeter, epoch_blocks, train_on_block
from crad.training.evaluation import PREPARED_FROM, ScoredSet, score_sets
from crad.training.losses import Loss
from crad.training.optimizer import make_optimizer

EXAMPLES = settings(max_examples=20, derandomize=True, database=None, deadline=None)

# What the model below answers to a pixel of 0 (predicts class 0) and to a pixel of 1 (predicts class 1).
ANSWERS = [[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]]
LN2 = math.log(2)


class TableModel(nn.Module):
    """Answers each one-pixel image with the probabilities that stand in a table at its pixel value."""

    def __init__(self, table):
        super().__init__()
        self.table = torch.tensor(table)
        self.norm = nn.BatchNorm1d(1)  # has buffers that training would move
        self.calls: list[tuple[int, bool, bool]] = []

    def forward(self, inputs):
        self.calls.append((len(inputs), self.training, torch.is_grad_enabled()))
        self.norm(inputs[:, :, 0, 0])
        return self.table[inputs[:, 0, 0, 0].long()].log()


def unchanged_pixels(augmentation="none"):
    return ImagePreprocessor(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1), augmentation)


def one_pixel_images(values, labels):
    return SampleSet(torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1), torch.tensor(labels))


def score(model, images, *, preprocessor, num_classes, prepare=None):
    plainly = [ScoredSet(images, [None])]
    [[found]] = score_sets(model, plainly, preprocessor=preprocessor, num_classes=num_classes, prepare=prepare)
    return ClassScore(*found)


def score_of(values, labels, *, model=None, num_classes=3):
    model = model or TableModel(ANSWERS)
    return score(model, one_pixel_images(values, labels), preprocessor=unchanged_pixels(), num_classes=num_classes)


# --- scoring


def test_hits_and_counts_per_class_by_hand():
    # Class 0: a hit (pixel 0) and two misses; class 1: a miss and a hit; class 2: one miss.
    measured = score_of([0, 1, 1, 0, 1, 1], [0, 0, 0, 1, 1, 2])
    assert measured.counts == (3, 2, 1)
    assert measured.hits == (1, 1, 0)
    assert measured.accuracy == pytest.approx(100 * 2 / 6)
    assert measured.class_accuracies == pytest.approx([1 / 3, 1 / 2, 0.0])


def test_cross_entropy_per_class_by_hand():
    # Class 0: -ln 1/2 - ln 1/8 = 4 ln 2; class 1: -ln 3/4; class 2: -ln 1/4 = 2 ln 2.
    measured = score_of([0, 1, 1, 0], [0, 0, 1, 2])
    assert measured.cross_entropy_sums == pytest.approx((4 * LN2, -math.log(0.75), 2 * LN2), rel=1e-6)
    assert measured.class_cross_entropies() == pytest.approx([2 * LN2, -math.log(0.75), 2 * LN2], rel=1e-6)


def test_a_class_without_samples_has_no_hits_and_the_cross_entropy_of_a_guess():
    measured = score_of([0, 0], [0, 0])
    assert measured.counts == (2, 0, 0)
    assert measured.hits == (2, 0, 0)
    assert measured.class_accuracies == (1.0, 0.0, 0.0)
    assert measured.class_cross_entropies()[1:] == pytest.approx([math.log(3), math.log(3)])


def test_no_samples_at_all_is_an_accuracy_of_zero():
    assert ClassScore((0, 0), (0, 0), (0.0, 0.0)).accuracy == 0.0


@pytest.mark.parametrize("is_training", [True, False])
def test_the_models_mode_is_restored_and_it_was_scored_in_evaluation_mode(is_training):
    model = TableModel(ANSWERS).train(is_training)
    score_of([0, 1], [0, 1], model=model)
    assert model.training is model.norm.training is is_training
    assert model.calls == [(2, False, False)]  # neither training nor with gradients


def test_scoring_moves_no_buffer():
    model = TableModel(ANSWERS).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    score_of([0, 1, 1], [0, 1, 0], model=model)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_batches_change_nothing_and_the_last_one_may_be_smaller(monkeypatch):
    values, labels = [0, 1, 1, 0, 1], [0, 0, 1, 2, 1]
    at_once = score_of(values, labels)
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 2)
    model = TableModel(ANSWERS)
    assert score_of(values, labels, model=model) == at_once
    assert [size for size, _, _ in model.calls] == [2, 2, 1]


def test_images_are_normalised_but_never_augmented():
    images = one_pixel_images([10, 12], [0, 1])
    preprocessor = ImagePreprocessor(torch.full((1, 1, 1, 1), 10.0), torch.full((1, 1, 1, 1), 2.0), "crop-flip")
    assert score(TableModel(ANSWERS), images, preprocessor=preprocessor, num_classes=3).hits == (1, 1, 0)


@EXAMPLES
@given(samples=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=12))
def test_any_score_equals_counting_in_a_loop(samples):
    measured = score_of(*map(list, zip(*samples, strict=True)))
    for label in range(3):
        own = [value for value, its_label in samples if its_label == label]
        assert measured.counts[label] == len(own)
        assert measured.hits[label] == sum(value == label for value in own)  # pixel v predicts class v
        expected = sum(-math.log(ANSWERS[value][label]) for value in own)
        assert measured.cross_entropy_sums[label] == pytest.approx(expected, rel=1e-5)


# --- the blocks of an epoch


def shard_of(num, *, side=1):
    """Image i is filled with i and has label i."""
    images = torch.arange(num, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, side, side).contiguous()
    return SampleSet(images, torch.arange(num))


def blocks_of(num, *, batch_size=2, seed=1, purpose=("a",), augmentation="none", side=1, sample_values=0):
    made = epoch_blocks(
        shard_of(num, side=side),
        preprocessor=unchanged_pixels(augmentation),
        batch_size=batch_size,
        seed=seed,
        purpose=purpose,
        sample_values=sample_values,
    )
    return list(made)


def order_of(*args, **kwargs):
    return torch.cat([block.labels for block in blocks_of(*args, **kwargs)]).tolist()


def test_a_small_shard_is_one_block_with_every_sample_once():
    (block,) = blocks_of(7)
    assert sorted(block.labels.tolist()) == list(range(7))


def test_labels_stay_with_their_images():
    (block,) = blocks_of(20)
    assert block.inputs.flatten().tolist() == block.labels.tolist()


def test_the_order_is_shuffled_and_the_seed_and_the_purpose_alone_decide():
    first = order_of(20)
    assert first != list(range(20))
    assert first == order_of(20)
    assert first != order_of(20, seed=2)
    assert first != order_of(20, purpose=("b",))
    assert first != order_of(20, purpose=("a", 1))


def test_the_order_does_not_depend_on_the_augmentation_or_the_batch_size():
    assert order_of(20) == order_of(20, augmentation="flips") == order_of(20, batch_size=7)


def test_blocks_of_whole_batches_hold_the_same_samples_in_the_same_order(monkeypatch):
    at_once = order_of(7, batch_size=2)
    monkeypatch.setattr(epoch, "BLOCK_BYTES", 16)  # four one-pixel inputs
    blocks = blocks_of(7, batch_size=2)
    assert [len(block.labels) for block in blocks] == [4, 3]
    assert order_of(7, batch_size=2) == at_once


def test_a_block_is_never_smaller_than_a_batch(monkeypatch):
    monkeypatch.setattr(epoch, "BLOCK_BYTES", 1)
    assert [len(block.labels) for block in blocks_of(7, batch_size=3)] == [3, 3, 1]


def test_values_kept_beside_the_inputs_make_blocks_smaller(monkeypatch):
    monkeypatch.setattr(epoch, "BLOCK_BYTES", 64)  # sixteen one-pixel inputs, or four samples of four floats
    assert [len(block.labels) for block in blocks_of(10, sample_values=0)] == [10]
    assert [len(block.labels) for block in blocks_of(10, sample_values=4)] == [4, 4, 2]


def test_augmentation_is_seeded_by_the_purpose():
    # Twelve times the same image: only its augmentation can tell two epochs apart.
    image = torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6)
    shard = SampleSet(image.repeat(12, 1, 1, 1), torch.zeros(12, dtype=torch.int64))

    def inputs_of(purpose):
        preprocessor = unchanged_pixels("crop-flip")
        (block,) = epoch_blocks(shard, preprocessor=preprocessor, batch_size=2, seed=1, purpose=purpose)
        return block.inputs

    assert torch.equal(inputs_of(("a",)), inputs_of(("a",)))
    assert not torch.equal(inputs_of(("a",)), inputs_of(("b",)))


@EXAMPLES
@given(num=st.integers(1, 12), batch_size=st.integers(2, 5), block_bytes=st.integers(1, 80))
def test_any_splitting_keeps_the_samples_and_only_the_last_block_is_uneven(num, batch_size, block_bytes):
    with pytest.MonkeyPatch.context() as patch:
        whole = order_of(num, batch_size=batch_size)
        patch.setattr(epoch, "BLOCK_BYTES", block_bytes)
        blocks = blocks_of(num, batch_size=batch_size)
    assert torch.cat([block.labels for block in blocks]).tolist() == whole
    assert all(len(block.labels) % batch_size == 0 for block in blocks[:-1])


# --- steps


def linear(weight=0.0, bias=None):
    model = nn.Linear(1, 1, bias=bias is not None)
    with torch.no_grad():
        model.weight.fill_(weight)
        if bias is not None:
            model.bias.fill_(bias)
    return model


def block_of(values):
    return Block(torch.tensor(values).view(-1, 1), torch.zeros(len(values), dtype=torch.int64))


def sum_of_logits(logits, where):
    total = logits.sum()
    return Loss(total, total, total.new_zeros(()))


def train(model, values, *, batch_size=2, clip_norm=1e9, lr=1.0, loss_of=sum_of_logits):
    meter = LossMeter()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    train_on_block(
        model,
        optimizer,
        block_of(values),
        batch_size=batch_size,
        clipper=Clipper(clip_norm),
        loss_of=loss_of,
        meter=meter,
    )
    return meter


def test_a_last_batch_of_one_is_dropped():
    seen = []

    def noting(logits, where):
        seen.append((where.start, where.stop, len(logits)))
        return sum_of_logits(logits, where)

    meter = train(linear(), [1.0, 2.0, 3.0, 4.0, 100.0], loss_of=noting)
    assert seen == [(0, 2, 2), (2, 4, 2)]
    assert meter.samples == 4


def test_a_smaller_last_batch_of_two_is_kept():
    seen = []

    def noting(logits, where):
        seen.append((where.start, where.stop))
        return sum_of_logits(logits, where)

    train(linear(), [1.0] * 5, batch_size=3, loss_of=noting)
    assert seen == [(0, 3), (3, 5)]


def test_a_single_sample_teaches_nothing():
    model = linear(weight=2.0)
    meter = train(model, [1.0])
    assert model.weight.item() == 2.0
    assert meter.means() == {}


def test_a_step_by_hand_and_gradients_that_do_not_pile_up():
    # Gradients are the sums 3 and 7 of the batches: w = 10 - 0.5 * 3 - 0.5 * 7 = 5.
    model = linear(weight=10.0)
    train(model, [1.0, 2.0, 3.0, 4.0], lr=0.5)
    assert model.weight.item() == pytest.approx(5.0)


def test_a_long_gradient_is_clipped_to_the_norm():
    # The gradient is 3 + 97 = 100; clipped to 5, one step of lr 1 goes from 0 to -5.
    model = linear()
    train(model, [3.0, 97.0], clip_norm=5.0)
    assert model.weight.item() == pytest.approx(-5.0, rel=1e-4)


def test_the_norm_is_taken_over_all_parameters_together():
    # Weight and bias have the gradients 1.5 and 2, norm 2.5; clipped to 1 they are 0.6 and 0.8.
    model = linear(bias=0.0)
    train(model, [0.5, 1.0], clip_norm=1.0)
    assert [model.weight.item(), model.bias.item()] == pytest.approx([-0.6, -0.8], rel=1e-4)


def test_a_short_gradient_is_not_stretched():
    model = linear()
    train(model, [1.0, 2.0], clip_norm=5.0)
    assert model.weight.item() == pytest.approx(-3.0)


def test_the_model_trains_in_training_mode():
    modes = []
    model = linear().eval()
    model.register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    train(model, [1.0, 2.0])
    assert modes == [True]


def test_mean_losses_weigh_every_sample_alike():
    # A batch of three with loss 1 and one of two with loss 6: (3 * 1 + 2 * 6) / 5 = 3.
    values = iter([(1.0, 0.5), (6.0, 3.0)])

    def fixed(logits, where):
        total, part = next(values)
        return Loss(logits.sum() * 0 + total, torch.tensor(part), torch.tensor(0.25))

    meter = train(linear(), [1.0] * 5, batch_size=3, loss_of=fixed)
    assert meter.means() == pytest.approx({"total": 3.0, "cross_entropy": 1.5, "distillation": 0.25})


def test_the_optimizer_is_sgd_as_the_settings_say():
    optimizer = make_optimizer(linear(), Experiment(lr=0.25, momentum=0.5, weight_decay=0.125))
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.SGD)
    assert (group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]) == (0.25, 0.5, 0.125, False)


# --- found by reading the code against the specification


def test_splitting_into_blocks_does_not_change_the_augmented_images(monkeypatch):
    def inputs_of():
        return torch.cat([block.inputs for block in blocks_of(12, augmentation="crop-flip", side=6)])

    at_once = inputs_of()
    monkeypatch.setattr(epoch, "BLOCK_BYTES", 1)
    assert torch.equal(inputs_of(), at_once)


def test_a_large_set_is_scored_by_the_prepared_model_and_a_small_one_by_the_model_itself(tiny_npz):
    """The prepared model says the same, and the modes of the model are as they were."""
    arrays = np.load(tiny_npz)
    pixels, labels = np.tile(arrays["test_images"][..., None], (4, 1, 1, 1)), np.tile(arrays["test_labels"], 4)
    images = image_set(pixels, labels, pad_to=None, device="cpu")
    preprocessor = fit_preprocessor(arrays["train_images"][..., None], augmentation="none", device="cpu")
    model = build_model(Architecture("cnn6", 0.25), num_classes=4, in_channels=1, image_size=(8, 8), seed=1).train()
    prepared = []

    def fast(module):
        prepared.append(module)
        return TeacherEngine(device="cpu").prepare(module, key="cnn6")

    plain = score(model, images, preprocessor=preprocessor, num_classes=4)
    with_engine = score(model, images, preprocessor=preprocessor, num_classes=4, prepare=fast)
    assert prepared == [model]
    assert (with_engine.counts, with_engine.hits) == (plain.counts, plain.hits)
    assert with_engine.cross_entropy_sums == pytest.approx(plain.cross_entropy_sums, rel=1e-4)
    assert all(module.training for module in model.modules())
    both = score_sets(model, 2 * [ScoredSet(images, [None])], preprocessor=preprocessor, num_classes=4, prepare=fast)
    assert [ClassScore(*one) for [one] in both] == [with_engine, with_engine]
    assert prepared == [model, model]  # once for both
    few = SampleSet(images.samples[: PREPARED_FROM - 1], images.labels[: PREPARED_FROM - 1])
    score(model, few, preprocessor=preprocessor, num_classes=4, prepare=fast)
    assert len(prepared) == 2
