"""The two plain networks of six convolutions: `cnn6` (flatten, hidden layer) and `cnn6-wide` (global pool).

Shapes: B images, C classes, D channels, H and W the sides of the image.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from crad.models.family import Builder, InputShape, scale_channels
from crad.models.group_norm import with_group_norm


class Cnn6(nn.Module):
    """Three pairs of conv-BN-ReLU, each halved by a max-pool, then flatten, a hidden layer and the classes.

    The hidden layer's weights depend on the image size: other than `Cnn6Wide`, it takes no other size later.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        hidden_width: int,
        num_classes: int,
        in_channels: int,
        image_size: tuple[int, int],
    ) -> None:
        super().__init__()
        height, width = image_size
        self.features = _conv_pairs(in_channels, widths)
        shrink = 2 ** len(widths)
        flat_width = widths[-1] * (height // shrink) * (width // shrink)
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(flat_width, hidden_width),
            nn.ReLU(inplace=True),
            nn.Linear(hidden_width, num_classes),
        )

    def forward(self, images_BDHW: Tensor) -> Tensor:
        """Return logits [B, C]."""
        logits_BC: Tensor = self.head(self.features(images_BDHW))
        return logits_BC


class Cnn6Wide(nn.Module):
    """Three pairs of conv-BN-ReLU, each halved by a max-pool, then a global average and the classes."""

    def __init__(self, widths: Sequence[int], *, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.features = _conv_pairs(in_channels, widths)
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, images_BDHW: Tensor) -> Tensor:
        """Return logits [B, C]."""
        maps_BDHW: Tensor = self.features(images_BDHW)
        logits_BC: Tensor = self.head(maps_BDHW.mean(dim=(2, 3)))
        return logits_BC


def _conv_pairs(in_channels: int, widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for in_width, out_width in zip([in_channels, *widths[:-1]], widths, strict=True):
        layers += _conv_bn_relu(in_width, out_width) + _conv_bn_relu(out_width, out_width) + [nn.MaxPool2d(2)]
    return nn.Sequential(*layers)


def _conv_bn_relu(in_width: int, out_width: int) -> list[nn.Module]:
    # The bias does nothing before a batch norm; the paper's parameter counts include it.
    conv = nn.Conv2d(in_width, out_width, kernel_size=3, padding=1, bias=True)
    return [conv, nn.BatchNorm2d(out_width), nn.ReLU(inplace=True)]


def _cnn6(shape: InputShape, *, width: float) -> nn.Module:
    *widths, hidden_width = scale_channels((32, 64, 128, 256), width)
    return Cnn6(
        widths,
        hidden_width=hidden_width,
        num_classes=shape.num_classes,
        in_channels=shape.in_channels,
        image_size=_sides(shape),
    )


def _cnn6_wide(shape: InputShape, *, width: float) -> nn.Module:
    return Cnn6Wide(scale_channels((64, 128, 256), width), num_classes=shape.num_classes, in_channels=shape.in_channels)


def _sides(shape: InputShape) -> tuple[int, int]:
    height, width = shape.image_size
    return height, width


FAMILIES: dict[str, dict[str, Builder]] = {"image": with_group_norm({"cnn6": _cnn6, "cnn6-wide": _cnn6_wide})}
