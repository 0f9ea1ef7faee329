"""From uint8 arrays to model inputs, against slow loops over single images.

Shapes: arrays [N,H,W,channels] as data sets hold them, tensors [N,channels,H,W] as models take them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.data.preprocessing import (
    AUGMENTATIONS,
    CROP_PADDING,
    ImagePreprocessor,
    crop_and_flip,
    fit_preprocessor,
    flip_both,
    image_set,
)
from crad.randomness import stream

EXAMPLES = settings(max_examples=15, derandomize=True, database=None, deadline=None)

shapes = st.tuples(st.integers(1, 5), st.sampled_from([1, 3]), st.integers(1, 6), st.integers(1, 6))
every_augmentation = pytest.mark.parametrize("augmentation", sorted(AUGMENTATIONS))


def pixels(*shape, seed=0):
    return stream(seed, "pixels").integers(0, 256, size=shape, dtype=np.uint8)


def images_of(*shape, seed=0):
    return torch.from_numpy(pixels(*shape, seed=seed))


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


def as_set(images, labels=None, *, pad_to=None):
    labels = np.arange(len(images)) if labels is None else labels
    return image_set(images, labels, pad_to=pad_to, device="cpu")


def slow_crop_and_flip(images, rng):
    """The same draws in the same order, then one image after the other."""
    offsets = torch.randint(0, 9, (2, len(images)), generator=rng).tolist()
    flips = torch.randint(0, 2, (1, len(images)), generator=rng)[0].tolist()
    _, channels, height, width = images.shape
    results = []
    for image, top, left, is_flipped in zip(images.numpy(), *offsets, flips, strict=True):
        padded = np.zeros((channels, height + 8, width + 8), dtype=np.uint8)
        padded[:, 4 : 4 + height, 4 : 4 + width] = image
        crop = padded[:, top : top + height, left : left + width]
        results.append(crop[:, :, ::-1] if is_flipped else crop)
    return np.stack(results)


def slow_flip_both(images, rng):
    upside_down, mirrored = torch.randint(0, 2, (2, len(images)), generator=rng).tolist()
    results = []
    for image, turns_rows, turns_columns in zip(images.numpy(), upside_down, mirrored, strict=True):
        turned = image[:, ::-1] if turns_rows else image
        results.append(turned[:, :, ::-1] if turns_columns else turned)
    return np.stack(results)


# --- image sets


def test_channels_move_in_front_and_pixels_stay():
    images = pixels(2, 3, 5, 3)
    tensor = as_set(images).samples
    assert tensor.shape == (2, 3, 3, 5)
    assert tensor.dtype == torch.uint8
    assert np.array_equal(tensor.numpy(), images.transpose(0, 3, 1, 2))


def test_28_pixels_become_32_with_a_border_of_two_zeros_on_every_side():
    images = np.full((1, 28, 28, 1), 7, dtype=np.uint8)
    padded = as_set(images, pad_to=32).samples[0, 0]
    assert padded.shape == (32, 32)
    assert (padded[2:30, 2:30] == 7).all()
    assert int(padded.sum()) == 7 * 28 * 28


def test_an_odd_border_is_wider_after_than_before():
    padded = as_set(np.ones((1, 2, 3, 1), dtype=np.uint8), pad_to=5).samples[0, 0]
    assert padded.tolist() == [
        [0, 0, 0, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]


def test_a_side_that_is_long_enough_is_not_padded():
    assert as_set(pixels(1, 2, 6, 3), pad_to=4).samples.shape == (1, 3, 4, 6)


def test_labels_are_untouched_but_for_their_type():
    labels = np.array([2, 0, 255], dtype=np.uint8)
    ready = as_set(pixels(3, 2, 2, 1), labels)
    assert ready.labels.tolist() == [2, 0, 255]
    assert ready.labels.dtype == torch.int64
    assert labels.dtype == np.uint8
    assert len(ready) == 3


# --- normalisation


def test_mean_and_deviation_equal_a_plain_numpy_computation():
    images = pixels(6, 4, 5, 3)
    made = fit_preprocessor(images, augmentation="none", device="cpu")
    flat = images.reshape(-1, 3).astype(np.float64)
    assert made.mean.shape == made.std.shape == (1, 3, 1, 1)
    np.testing.assert_allclose(made.mean.flatten().numpy(), flat.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(made.std.flatten().numpy(), flat.std(axis=0), rtol=1e-6)


def test_mean_and_deviation_by_hand():
    images = np.array([0, 0, 0, 4], dtype=np.uint8).reshape(1, 2, 2, 1)
    made = fit_preprocessor(images, augmentation="none", device="cpu")
    # Mean 1; squares 1, 1, 1, 9 have the mean 3.
    assert made.mean.item() == 1.0
    assert made.std.item() == pytest.approx(3**0.5)
    inputs = made.inputs(as_set(images).samples)
    assert inputs.flatten().tolist() == pytest.approx([-1 / 3**0.5] * 3 + [3 / 3**0.5])


def test_normalised_training_images_have_mean_zero_and_deviation_one_per_channel():
    images = pixels(8, 4, 3, 3)
    inputs = fit_preprocessor(images, augmentation="none", device="cpu").inputs(as_set(images).samples)
    assert inputs.dtype == torch.float32
    flat = inputs.transpose(0, 1).flatten(1)
    torch.testing.assert_close(flat.mean(dim=1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(flat.std(dim=1, correction=0), torch.ones(3), atol=1e-5, rtol=0)


def test_statistics_come_from_the_images_without_their_border():
    images = np.full((1, 28, 28, 1), 100, dtype=np.uint8)
    images[0, 0, 0, 0] = 200
    made = fit_preprocessor(images, augmentation="none", device="cpu")
    assert made.mean.item() == pytest.approx(100 + 100 / 784)


@pytest.mark.parametrize("value", [0, 37, 255])
def test_a_constant_channel_becomes_zero_not_nan(value):
    images = pixels(3, 2, 2, 3)
    images[..., 1] = value
    made = fit_preprocessor(images, augmentation="none", device="cpu")
    inputs = made.inputs(as_set(images).samples)
    assert made.std.flatten()[1].item() == 1.0
    assert (inputs[:, 1] == 0).all()
    assert inputs.isfinite().all()


@every_augmentation
def test_inputs_lie_channels_last_in_memory(augmentation):
    made = ImagePreprocessor(torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1), augmentation)
    inputs = made.inputs(made.augment(images_of(2, 3, 4, 5), generator=generator()))
    assert inputs.shape == (2, 3, 4, 5)
    assert inputs.is_contiguous(memory_format=torch.channels_last)


# --- augmentation


def test_crop_and_flip_equals_the_slow_reference_on_images_that_are_not_square():
    images = images_of(40, 3, 5, 7)
    fast = crop_and_flip(images, generator())
    assert fast.dtype == torch.uint8
    assert np.array_equal(fast.numpy(), slow_crop_and_flip(images, generator()))


def test_flip_both_equals_the_slow_reference_on_images_that_are_not_square():
    images = images_of(40, 3, 5, 7)
    fast = flip_both(images, generator())
    assert fast.dtype == torch.uint8
    assert np.array_equal(fast.numpy(), slow_flip_both(images, generator()))


def test_a_crop_moves_a_pixel_to_all_81_places_and_no_other():
    assert CROP_PADDING == 4
    images = torch.zeros(2000, 1, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = 1  # four steps from every edge: never lost
    places = crop_and_flip(images, generator()).flatten(1).argmax(dim=1)
    assert set(places.tolist()) == set(range(81))


def test_each_flip_happens_half_of_the_time_and_independently():
    images = torch.tensor([[0, 1], [2, 3]], dtype=torch.uint8).expand(2000, 1, 2, 2)
    corners, counts = flip_both(images, generator())[:, 0, 0, 0].unique(return_counts=True)
    assert corners.tolist() == [0, 1, 2, 3]
    assert min(counts.tolist()) > 420  # 500 in the mean, four standard deviations are 78


def test_crop_and_flip_never_turns_an_image_upside_down():
    images = torch.zeros(300, 1, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4], images[:, :, 5, 4] = 1, 2
    moved = crop_and_flip(images, generator())
    rows_of_1, rows_of_2 = ((moved == value).any(dim=3).float().argmax(dim=2) for value in (1, 2))
    is_whole = (moved == 2).flatten(1).any(dim=1)  # the lower pixel may have left the image
    assert (rows_of_2 - rows_of_1)[is_whole].unique().tolist() == [1]


def test_none_leaves_the_images_and_the_generator_alone():
    images, rng = images_of(3, 1, 2, 3), generator()
    made = ImagePreprocessor(torch.full((1, 1, 1, 1), 5.0), torch.full((1, 1, 1, 1), 2.0), "none")
    state = rng.get_state()
    assert torch.equal(made.inputs(made.augment(images, generator=rng)), made.inputs(images))
    assert torch.equal(rng.get_state(), state)


@pytest.mark.parametrize("augmentation", ["crop-flip", "flips"])
def test_the_generator_alone_decides(augmentation):
    augment, images = AUGMENTATIONS[augmentation], images_of(12, 1, 4, 4)
    first, again, other = (augment(images, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("augmentation", ["crop-flip", "flips"])
def test_two_batches_from_one_generator_are_moved_differently(augmentation):
    augment, images, rng = AUGMENTATIONS[augmentation], images_of(12, 1, 4, 4), generator()
    assert not torch.equal(augment(images, rng), augment(images, rng))


@every_augmentation
def test_the_original_images_are_never_changed(augmentation):
    images = images_of(6, 3, 4, 4)
    before = images.clone()
    made = ImagePreprocessor(torch.ones(1, 3, 1, 1), torch.ones(1, 3, 1, 1), augmentation)
    made.inputs(made.augment(images, generator=generator())).add_(1)
    assert torch.equal(images, before)


def test_normalisation_comes_after_augmentation():
    # Black borders must be black to the model too: (0 - mean) / std, not 0.
    images = torch.full((50, 1, 2, 2), 10, dtype=torch.uint8)
    made = ImagePreprocessor(torch.full((1, 1, 1, 1), 10.0), torch.full((1, 1, 1, 1), 5.0), "crop-flip")
    inputs = made.inputs(made.augment(images, generator=generator()))
    assert inputs.unique().tolist() == [-2.0, 0.0]


@EXAMPLES
@given(shape=shapes, seed=st.integers(0, 9))
def test_any_shape_is_augmented_as_the_slow_references_do(shape, seed):
    images = images_of(*shape, seed=seed)
    assert np.array_equal(crop_and_flip(images, generator(seed)).numpy(), slow_crop_and_flip(images, generator(seed)))
    assert np.array_equal(flip_both(images, generator(seed)).numpy(), slow_flip_both(images, generator(seed)))


@EXAMPLES
@given(shape=shapes, pad_to=st.integers(1, 9), seed=st.integers(0, 9))
def test_any_padding_keeps_all_pixels_and_adds_only_zeros(shape, pad_to, seed):
    num, channels, height, width = shape
    images = pixels(num, height, width, channels, seed=seed)
    padded = as_set(images, pad_to=pad_to).samples
    assert padded.shape == (num, channels, max(height, pad_to), max(width, pad_to))
    top, left = (padded.shape[2] - height) // 2, (padded.shape[3] - width) // 2
    inner = padded[:, :, top : top + height, left : left + width]
    assert np.array_equal(inner.numpy(), images.transpose(0, 3, 1, 2))
    assert int(padded.long().sum()) == int(images.astype(np.int64).sum())
