"""From arrays to model inputs: what every kind of data does, and how images do it, vectorised on tensors.

Shapes: N samples, B inputs of a block, images as uint8 (of more bits float32) [N,channels,H,W].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

CROP_PADDING = 4
SQUARE = 0.5  # side of the grey square in a strongly changed image, as a share of the image's
SMALLEST_CROP = 0.25  # of an image's sides, where a part of it is shown enlarged
BRIGHTNESS, CONTRAST = 0.4, 0.4  # at most so many standard deviations up or down; at most such a factor less or more


@dataclass(frozen=True)
class SampleSet:
    """Labelled samples on one device, as they lie in the data: not yet inputs."""

    samples: Tensor  # [N,channels,H,W], uint8 or float32; rows of a table float32 [N,F]; series float32 [N,channels,T]
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)


class Preprocessor(Protocol):
    """How samples of one data set become inputs, and how they are changed at random while training."""

    @property
    def device(self) -> torch.device:
        """Return where samples are made inputs."""
        ...

    @property
    def augmentation(self) -> str:
        """Return what `augment` does, by name; "none": nothing."""
        ...

    def inputs(self, images: Tensor) -> Tensor:
        """Return what a network takes, as float32."""
        ...

    def augment(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Change samples at random, still as they lie in the data; draws come from the CPU generator."""
        ...

    def mix(self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator) -> Tensor:
        """Mix inputs with others; a share of each stays its own."""
        ...

    def change_strongly(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Change inputs so far that they are just still what they were."""
        ...

    def cut(
        self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Put a piece of others into inputs; return with them the share of each that is still its own."""
        ...

    def crop(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Show a part of each input in place of the whole."""
        ...


@dataclass(frozen=True)
class ImagePreprocessor:
    """How images of one data set become inputs: its statistics and its augmentation."""

    mean: Tensor  # [1,channels,1,1], of pixel values in 0..255
    std: Tensor
    augmentation: str
    device: torch.device = field(init=False)  # where images are made inputs

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", self.mean.device)

    def inputs(self, images: Tensor) -> Tensor:
        """Normalise to float inputs, channels last in memory as the convolutions like it."""
        normalised = (images.float() - self.mean) / self.std
        return in_usual_layout(normalised)

    def augment(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Move and mirror images randomly, still uint8; draws come from the CPU generator."""
        return AUGMENTATIONS[self.augmentation](images, generator)

    def mix(self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator) -> Tensor:
        """Lay two images over each other."""
        weight = share_B.view(-1, 1, 1, 1)
        return in_usual_layout(weight * inputs + (1 - weight) * others)

    def change_strongly(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Give images another brightness and contrast per channel and a grey square somewhere."""
        device, (size, channels, height, width) = inputs.device, inputs.shape
        shift = BRIGHTNESS * (2 * torch.rand(size, channels, 1, 1, generator=generator) - 1)
        scale = 1 + CONTRAST * (2 * torch.rand(size, channels, 1, 1, generator=generator) - 1)
        centre = torch.rand(2, size, generator=generator) * torch.tensor([[height], [width]])
        reach = torch.tensor([[height], [width]]) * SQUARE / 2
        rows = (torch.arange(height) - centre[0, :, None]).abs() < reach[0]
        columns = (torch.arange(width) - centre[1, :, None]).abs() < reach[1]
        is_grey = (rows[:, :, None] & columns[:, None, :]).unsqueeze(1).to(device)
        return torch.where(is_grey, 0.0, inputs * scale.to(device) + shift.to(device))

    def cut(
        self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Put a rectangle of another image, of the image's own proportions, into each at a random place."""
        device, (size, _, height, width) = inputs.device, inputs.shape
        side_B = (1 - share_B.cpu()).clamp(0, 1).sqrt()
        lines = []
        for length in (height, width):
            reach_B = (side_B * length).round()
            start_B = (torch.rand(size, generator=generator) * (length - reach_B + 1)).floor()
            place = torch.arange(length)
            lines.append((place >= start_B[:, None]) & (place < (start_B + reach_B)[:, None]))
        is_other = (lines[0][:, :, None] & lines[1][:, None, :]).unsqueeze(1)
        own_B = 1 - is_other.float().mean(dim=(1, 2, 3))
        return in_usual_layout(torch.where(is_other.to(device), others, inputs)), own_B.to(device)

    def crop(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Enlarge a random part of each image, down to a quarter of its sides, to the whole; mirror every second."""
        size, _, height, width = inputs.shape
        drawn = torch.rand(4, size, generator=generator)
        side_B = SMALLEST_CROP + (1 - SMALLEST_CROP) * drawn[0]
        sign_B = torch.where(drawn[3] < 0.5, -1.0, 1.0)
        centre_B = [(1 - side_B) * (2 * one - 1) for one in (drawn[1], drawn[2])]  # -1 to 1 is the whole image
        nothing_B = torch.zeros(size)
        columns = torch.stack([sign_B * side_B, nothing_B, centre_B[1]], dim=1)
        rows = torch.stack([nothing_B, side_B, centre_B[0]], dim=1)
        grid = F.affine_grid(torch.stack([columns, rows], dim=1), [size, 1, height, width], align_corners=False)
        enlarged = F.grid_sample(inputs, grid.to(inputs.device), padding_mode="border", align_corners=False)
        return in_usual_layout(enlarged)


def image_set(
    images: NDArray[np.uint8], labels: NDArray[np.int64], *, pad_to: int | None, device: str | torch.device
) -> SampleSet:
    """Return images and their labels as tensors on the device."""
    tensor = image_tensor(images, pad_to=pad_to)
    return SampleSet(tensor.to(device), torch.from_numpy(labels.astype(np.int64)).to(device))


def image_tensor(images: NDArray[Any], *, pad_to: int | None) -> Tensor:
    """Turn an NHWC array into an NCHW tensor, with a border of zero pixels up to `pad_to` on both sides.

    More than 8 bits become float32: torch has little for 16 bits without a sign.
    """
    dtype = np.uint8 if images.dtype == np.uint8 else np.float32
    # A copy: the data set stays as it is.
    tensor = torch.from_numpy(np.array(images.transpose(0, 3, 1, 2), dtype=dtype, order="C"))
    if pad_to is not None:
        height, width = max(0, pad_to - tensor.shape[2]), max(0, pad_to - tensor.shape[3])
        tensor = F.pad(tensor, (width // 2, width - width // 2, height // 2, height - height // 2))
    return tensor


def in_usual_layout(inputs: Tensor) -> Tensor:
    """Return inputs as networks like them in memory: images channels last, all others as they are read."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs.contiguous()


def fit_preprocessor(train_images: NDArray[Any], *, augmentation: str, device: str) -> ImagePreprocessor:
    """Normalise by the training images' own mean and standard deviation."""
    means, deviations = channel_statistics(train_images)
    return make_preprocessor(means, deviations, augmentation=augmentation, device=device)


def channel_statistics(train_images: NDArray[Any]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation per channel (of 8 bits exact, from the pixel histogram)."""
    if train_images.dtype != np.uint8:
        return _measured_statistics(train_images)
    levels = np.arange(256, dtype=np.float64)
    means, deviations = [], []
    for channel in range(train_images.shape[3]):
        share = np.bincount(train_images[..., channel].ravel(), minlength=256) / train_images[..., channel].size
        mean = float(share @ levels)
        means.append(mean)
        # A constant channel has no spread; one keeps the division defined.
        deviations.append(float(np.sqrt(share @ (levels - mean) ** 2)) or 1.0)
    return means, deviations


def _measured_statistics(train_images: NDArray[Any]) -> tuple[list[float], list[float]]:
    channels = [train_images[..., channel].astype(np.float64) for channel in range(train_images.shape[3])]
    return [float(one.mean()) for one in channels], [float(one.std()) or 1.0 for one in channels]


def make_preprocessor(
    means: Sequence[float], deviations: Sequence[float], *, augmentation: str, device: str
) -> ImagePreprocessor:
    """Normalise by a given mean and standard deviation per channel."""
    shape = (1, len(means), 1, 1)
    return ImagePreprocessor(
        mean=torch.tensor(means, dtype=torch.float32, device=device).view(shape),
        std=torch.tensor(deviations, dtype=torch.float32, device=device).view(shape),
        augmentation=augmentation,
    )


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Pad by four zero pixels, crop back at a random place, mirror left-right half of the time."""
    num = len(images)
    offsets = torch.randint(0, 2 * CROP_PADDING + 1, (2, num), generator=generator).to(images.device)
    flips = torch.randint(0, 2, (1, num), generator=generator).bool().to(images.device)
    padded = F.pad(images, (CROP_PADDING,) * 4)
    rows = offsets[0, :, None] + _positions(images.shape[2], None, images)
    columns = offsets[1, :, None] + _positions(images.shape[3], flips[0], images)
    return _gather(padded, rows, columns)


def flip_both(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror left-right and top-bottom, each half of the time."""
    flips = torch.randint(0, 2, (2, len(images)), generator=generator).bool().to(images.device)
    rows = _positions(images.shape[2], flips[0], images)
    columns = _positions(images.shape[3], flips[1], images)
    return _gather(images, rows, columns)


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "none": lambda images, generator: images,
    "crop-flip": crop_and_flip,
    "flips": flip_both,
}


def _positions(length: int, is_flipped: Tensor | None, images: Tensor) -> Tensor:
    forward = torch.arange(length, device=images.device).expand(len(images), length)
    return forward if is_flipped is None else torch.where(is_flipped[:, None], length - 1 - forward, forward)


def _gather(images: Tensor, rows_NH: Tensor, columns_NW: Tensor) -> Tensor:
    sample = torch.arange(len(images), device=images.device)[:, None, None]
    # Advanced indexing around a slice puts the channels last: [N,H,W,channels].
    picked = images[sample, :, rows_NH[:, :, None], columns_NW[:, None, :]]
    return picked.permute(0, 3, 1, 2)
