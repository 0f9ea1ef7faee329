"""ResNet-18 with the CIFAR stem (3x3, stride 1, no max-pool), at any four widths.

Shapes: B images, C classes, D channels, H and W the sides of the image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from crad.models.family import Builder, InputShape, scale_channels
from crad.models.group_norm import with_group_norm

VECTOR = 16  # numbers that AVX-512 computes at once


class ResNet18(nn.Module):
    """He et al. 2016, eighteen layers: a stem and four stages of two basic blocks, one width each.

    The pool at the end is global, so one set of weights takes images of any size.
    """

    def __init__(self, widths: Sequence[int], *, num_classes: int, in_channels: int) -> None:
        super().__init__()
        first, *later, last = widths
        self.stem = conv_bn(in_channels, first, kernel=3)
        stages = [_stage(first, first, stride=1)]
        for narrow, wide in zip([first, *later], [*later, last], strict=True):
            stages.append(_stage(narrow, wide, stride=2))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(last, num_classes)

    def forward(self, images_BDHW: Tensor) -> Tensor:
        """Return logits [B, C]."""
        maps_BDHW: Tensor = self.stages(F.relu(self.stem(images_BDHW)))
        logits_BC: Tensor = self.head(maps_BDHW.mean(dim=(2, 3)))
        return logits_BC


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, projected by a 1x1 where the shape changes."""

    def __init__(self, in_width: int, out_width: int, *, stride: int) -> None:
        super().__init__()
        self.first = conv_bn(in_width, out_width, kernel=3, stride=stride)
        self.second = conv_bn(out_width, out_width, kernel=3)
        # oneDNN's gradient of a strided 1x1 with fewer channels than a vector has writes beyond its memory
        # (uxlfoundation/oneDNN#6035), so a narrow shortcut takes its strides before the convolution.
        self._skip = stride if in_width < VECTOR else 1
        # Decided by the stride too: at a tiny width two stages may have the same channels.
        is_same_shape = stride == 1 and in_width == out_width
        self.shortcut = (
            nn.Identity() if is_same_shape else conv_bn(in_width, out_width, kernel=1, stride=stride // self._skip)
        )

    def forward(self, maps_BDHW: Tensor) -> Tensor:
        """Return the block's maps, at half the sides when its stride is 2."""
        residual_BDHW: Tensor = self.second(F.relu(self.first(maps_BDHW)))
        taken_BDHW = maps_BDHW if self._skip == 1 else maps_BDHW[:, :, :: self._skip, :: self._skip]
        return F.relu(residual_BDHW + self.shortcut(taken_BDHW))


def conv_bn(in_width: int, out_width: int, *, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the sides (divided by the stride), then batch norm in place of its bias."""
    conv = nn.Conv2d(in_width, out_width, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_width))


def _stage(in_width: int, out_width: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(in_width, out_width, stride=stride), BasicBlock(out_width, out_width, stride=1))


def _resnet18(channels: Sequence[int]) -> Builder:
    def build(shape: InputShape, *, width: float) -> nn.Module:
        return ResNet18(scale_channels(channels, width), num_classes=shape.num_classes, in_channels=shape.in_channels)

    return build


FAMILIES: dict[str, dict[str, Builder]] = {
    "image": with_group_norm(
        {"resnet18": _resnet18((64, 128, 256, 512)), "resnet18-half": _resnet18((32, 64, 128, 256))}
    )
}
