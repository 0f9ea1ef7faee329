"""A small conditional generator of images (FedGD's): from a latent and a wanted class to pixels in 0..1."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

LATENT = 256
CHANNELS = 128
SLOPE = 0.2


class Generator(nn.Module):
    """Latent 256 -> 128 maps of a quarter of the sides -> upsampled twice -> the data set's channels, sigmoid.

    The class enters as a learned factor on each latent dimension.
    """

    def __init__(self, *, num_classes: int, out_channels: int, image_size: tuple[int, int]) -> None:
        super().__init__()
        self._size = image_size
        self._base = (math.ceil(image_size[0] / 4), math.ceil(image_size[1] / 4))
        self.label = nn.Embedding(num_classes, LATENT)
        self.project = nn.Linear(LATENT, CHANNELS * self._base[0] * self._base[1])
        self.first_norm = nn.BatchNorm2d(CHANNELS)
        self.refine = nn.Sequential(
            nn.Upsample(scale_factor=2),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            nn.BatchNorm2d(CHANNELS),
            nn.LeakyReLU(SLOPE),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(CHANNELS, CHANNELS // 2, 3, padding=1),
            nn.BatchNorm2d(CHANNELS // 2),
            nn.LeakyReLU(SLOPE),
        )
        self.paint = nn.Conv2d(CHANNELS // 2, out_channels, 3, padding=1)

    def forward(self, latents_BL: Tensor, labels_B: Tensor) -> Tensor:
        """Return pixels in 0..1, [B,D,H,W]."""
        mixed_BL = F.normalize(latents_BL, dim=1) * math.sqrt(LATENT) * self.label(labels_B)
        maps = self.first_norm(self.project(mixed_BL).view(-1, CHANNELS, *self._base))
        pixels: Tensor = self.paint(self.refine(maps)).sigmoid()
        height, width = self._size
        return pixels[:, :, :height, :width]
