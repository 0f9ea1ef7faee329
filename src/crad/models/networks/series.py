"""Networks for recordings and other series in time. Their first layer takes raw samples and has its owner's statistics.

Shapes: B samples, D channels, T steps in time, C classes, M mel bands, L frames, E embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.device import as_double
from crad.models.family import Builder, FirstLayer, InputShape, scale_channels
from crad.models.group_norm import with_group_norm
from crad.models.networks import cnn6, resnet
from crad.models.networks.table import BLOCKS, EMBEDDING, HEADS, AttentionBlock
from crad.models.own_statistics import MAX_DEVIATIONS, OwnStatistics, Prepared

MEL = "mel-"  # before an image family's name: it is shown spectrograms of recordings
MELS = 32
WINDOW_S = 0.025  # long enough for a voice's lowest tones, short enough for a consonant
MAX_FRAMES = 64  # longer recordings have longer frames, not more of them
MIN_FRAMES = 8  # what image networks need
QUIETEST = 1e-6  # of a band's power, before its logarithm; digital silence has none
FIT_AT_ONCE = 256  # samples; bounds the memory
STEPS_LEFT = 32  # about as many steps does a convolutional network leave for its last layer
MAX_TOKENS = 64


class SignalScaler(OwnStatistics):
    """Raw samples [B,D,T] minus the owner's mean of each channel, over its deviation; a gap is the mean."""

    mean: Tensor  # [D]
    scale: Tensor  # [D]; zero for a channel that the owner has never seen varying

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))

    def forward(self, samples_BDT: Tensor) -> Tensor:
        """Return standardised samples [B,D,T], all finite."""
        centred_BDT = torch.where(torch.isnan(samples_BDT), 0.0, samples_BDT - self.mean[:, None])
        return (centred_BDT * self.scale[:, None]).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)

    @torch.no_grad()
    def fit(self, samples: Tensor) -> None:
        """Take mean and deviation of every channel from samples [N,D,T]."""
        values_NDT = as_double(samples)
        is_known_NDT = ~torch.isnan(values_NDT)
        count_D = is_known_NDT.sum(dim=(0, 2)).clamp(min=1)
        mean_D = torch.where(is_known_NDT, values_NDT, 0.0).sum(dim=(0, 2)) / count_D
        apart_NDT = torch.where(is_known_NDT, values_NDT - mean_D[:, None], 0.0)
        deviation_D = ((apart_NDT**2).sum(dim=(0, 2)) / count_D).sqrt()
        self.mean.copy_(mean_D)
        self.scale.copy_(_inverse(deviation_D, mean_D))


class MelSpectrogram(OwnStatistics):
    """Raw waves [B,D,T] become pictures [B,D,M,L]: the logarithm of the power in M mel bands, standardised by band.

    Windows of 25 ms (Hann) that overlap by half, their power spectrum, triangular filters at equal distances on the mel
    scale up to half the sampling rate; frames are averaged in time until there are at most 64. All of it follows from
    sampling rate and length and is nobody's secret; mean and deviation of every band are the owner's.
    """

    mean: Tensor  # [M]
    scale: Tensor  # [M]
    waves: Tensor  # [2F,1,window]: a window of each cosine, then of each sine
    filters: Tensor  # [M,F]

    def __init__(self, channels: int, length: int, rate: int) -> None:
        super().__init__()
        self.channels, self.length = channels, length
        window = max(4, round(WINDOW_S * rate))
        self.hop = window // 2
        frames = max(MIN_FRAMES, -(-max(0, length - window) // self.hop) + 1)
        self.pooled = -(-frames // MAX_FRAMES)
        self.frames = -(-frames // self.pooled)
        # Zeros at the end, so that every frame is whole.
        self.border = max(0, (self.frames * self.pooled - 1) * self.hop + window - length)
        waves, filters = _windowed_waves(window), mel_filters(_bins(window), rate)
        self.register_buffer("mean", torch.zeros(MELS))
        self.register_buffer("scale", torch.ones(MELS))
        self.register_buffer("waves", waves, persistent=False)
        self.register_buffer("filters", filters, persistent=False)

    @property
    def size(self) -> tuple[int, int]:
        """Return height and width of the pictures."""
        return MELS, self.frames

    def forward(self, waves_BDT: Tensor) -> Tensor:
        """Return pictures [B,D,M,L]."""
        loudness = self.loudness(waves_BDT)
        standardised = (loudness - self.mean[:, None]) * self.scale[:, None]
        return standardised.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)

    def loudness(self, waves_BDT: Tensor) -> Tensor:
        """Return the logarithm of the power in every band and frame, [B,D,M,L]."""
        padded = F.pad(waves_BDT.reshape(-1, 1, self.length), (0, self.border))
        parts = F.conv1d(padded, self.waves, stride=self.hop)
        cosines, sines = parts.chunk(2, dim=1)
        bands = F.avg_pool1d(torch.matmul(self.filters, cosines**2 + sines**2), self.pooled)
        return torch.log(bands + QUIETEST).reshape(-1, self.channels, MELS, self.frames)

    @torch.no_grad()
    def fit(self, samples: Tensor) -> None:
        """Take mean and deviation of every band from waves [N,D,T]."""
        parts = [self.loudness(block).transpose(1, 2).flatten(2) for block in torch.split(samples, FIT_AT_ONCE)]
        by_band_MN = as_double(torch.cat(parts)).transpose(0, 1).flatten(1)
        mean_M = by_band_MN.mean(dim=1)
        self.mean.copy_(mean_M)
        self.scale.copy_(_inverse(by_band_MN.std(dim=1, correction=0), mean_M))


def mel_filters(bins: int, rate: int) -> Tensor:
    """Return M triangles over the frequencies of a spectrum, [M,F]; a band narrower than a bin has the nearest one."""
    frequency_F = torch.linspace(0, rate / 2, bins, dtype=torch.float64)
    highest = _mel(rate / 2)
    corners = [700 * (10 ** (highest * place / (MELS + 1) / 2595) - 1) for place in range(MELS + 2)]
    rows = []
    for low, centre, high in zip(corners, corners[1:], corners[2:], strict=False):
        rising, falling = (frequency_F - low) / (centre - low), (high - frequency_F) / (high - centre)
        triangle = torch.minimum(rising, falling).clamp(min=0)
        nearest = (torch.arange(bins) == round(centre / (rate / 2) * (bins - 1))).double()
        rows.append(torch.where(triangle.sum() > 0, triangle, nearest))
    return torch.stack(rows).float()


def _mel(frequency: float) -> float:
    return 2595 * math.log10(1 + frequency / 700)


def _bins(window: int) -> int:
    """Return how many frequencies a window tells apart: those of the next power of two."""
    return (1 << (window - 1).bit_length()) // 2 + 1


def _windowed_waves(window: int) -> Tensor:
    """Return the Fourier transform of a Hann window's length as the kernels of a convolution: an ONNX graph has it."""
    time_T = torch.arange(window, dtype=torch.float64)
    hann_T = 0.5 - 0.5 * torch.cos(2 * math.pi * time_T / window)
    angle_FT = math.pi * torch.arange(_bins(window), dtype=torch.float64)[:, None] * time_T / (_bins(window) - 1)
    # Divided by the window's sum, so that a tone is as loud in a window of any length.
    waves_FT = torch.cat([torch.cos(angle_FT), torch.sin(angle_FT)]) * hann_T / hann_T.sum()
    return waves_FT[:, None, :].float()


def _inverse(deviation: Tensor, mean: Tensor) -> Tensor:
    """Return one over a deviation, zero where rounding alone makes one."""
    is_varying = deviation > 1e-6 * mean.abs().clamp(min=1e-30)
    return torch.where(is_varying, 1 / deviation.clamp(min=1e-30), 0.0)


def _stride(length: int, layers: int) -> int:
    """Return by how much each of several layers must shorten a series for about STEPS_LEFT steps to be left."""
    return min(4, max(1, round(math.pow(length / STEPS_LEFT, 1 / layers))))


class Cnn1d(nn.Module):
    """Convolutions in time with batch norm and ReLU, each shortening the series, then its mean and maximum."""

    def __init__(self, widths: Sequence[int], *, in_channels: int, length: int, num_classes: int) -> None:
        super().__init__()
        stride = _stride(length, len(widths))
        layers: list[nn.Module] = []
        for place, (before, after) in enumerate(zip([in_channels, *widths[:-1]], widths, strict=True)):
            reach = 4 * stride if place == 0 else 4  # the first one sees waves, and they are long
            conv = nn.Conv1d(before, after, kernel_size=2 * reach + 1, stride=stride, padding=reach, bias=False)
            layers += [conv, nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(2 * widths[-1], num_classes)

    def forward(self, samples_BDT: Tensor) -> Tensor:
        """Return logits [B, C]."""
        maps_BDT: Tensor = self.features(samples_BDT)
        logits_BC: Tensor = self.head(torch.cat([maps_BDT.mean(dim=2), maps_BDT.amax(dim=2)], dim=1))
        return logits_BC


class ResNet1d(nn.Module):
    """A first convolution, then pairs of convolutions that add to what came in, and the mean over time."""

    def __init__(self, widths: Sequence[int], *, in_channels: int, length: int, num_classes: int) -> None:
        super().__init__()
        stride = _stride(length, len(widths) + 1)
        reach = 4 * stride
        first = nn.Conv1d(in_channels, widths[0], 2 * reach + 1, stride=stride, padding=reach, bias=False)
        self.first = nn.Sequential(first, nn.BatchNorm1d(widths[0]), nn.ReLU(inplace=True))
        pairs = zip([widths[0], *widths[:-1]], widths, strict=True)
        self.blocks = nn.Sequential(*(ResidualPair(before, after, stride=stride) for before, after in pairs))
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, samples_BDT: Tensor) -> Tensor:
        """Return logits [B, C]."""
        maps_BDT: Tensor = self.blocks(self.first(samples_BDT))
        logits_BC: Tensor = self.head(maps_BDT.mean(dim=2))
        return logits_BC


class ResidualPair(nn.Module):
    """Two convolutions in time beside a shortcut."""

    def __init__(self, in_width: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv1d(in_width, width, 7, stride=stride, padding=3, bias=False)
        self.conv_2 = nn.Conv1d(width, width, 7, padding=3, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        is_same = stride == 1 and in_width == width
        shortcut = nn.Conv1d(in_width, width, 1, stride=stride, bias=False)
        self.shortcut = nn.Identity() if is_same else nn.Sequential(shortcut, nn.BatchNorm1d(width))

    def forward(self, maps_BDT: Tensor) -> Tensor:
        """Return maps, shorter by the stride."""
        hidden = F.relu(self.norm_1(self.conv_1(maps_BDT)))
        return F.relu(self.norm_2(self.conv_2(hidden)) + self.shortcut(maps_BDT))


class Transformer1d(nn.Module):
    """Pieces of a series are tokens with a place, and look at each other."""

    def __init__(self, width: int, *, heads: int, blocks: int, in_channels: int, length: int, num_classes: int) -> None:
        super().__init__()
        piece = -(-length // MAX_TOKENS)
        tokens = -(-length // piece)
        self.border = tokens * piece - length
        self.pieces = nn.Conv1d(in_channels, width, kernel_size=piece, stride=piece)
        self.place = nn.Parameter(torch.randn(tokens, width) * width**-0.5)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, samples_BDT: Tensor) -> Tensor:
        """Return logits [B, C]."""
        tokens_BLE = self.pieces(F.pad(samples_BDT, (0, self.border))).transpose(1, 2) + self.place
        for block in self.blocks:
            tokens_BLE = block(tokens_BLE)
        logits_BC: Tensor = self.head(self.norm(tokens_BLE).mean(dim=1))
        return logits_BC


def _cnn1d(shape: InputShape, *, width: float) -> nn.Module:
    return _behind_scaler(shape, Cnn1d(scale_channels((32, 64, 128, 128), width), **_of_series(shape)))


def _resnet1d(shape: InputShape, *, width: float) -> nn.Module:
    return _behind_scaler(shape, ResNet1d(scale_channels((32, 64, 128), width), **_of_series(shape)))


def _transformer1d(shape: InputShape, *, width: float) -> nn.Module:
    embedding = HEADS * max(1, round(2 * EMBEDDING * width / HEADS))
    network = Transformer1d(embedding, heads=HEADS, blocks=BLOCKS, **_of_series(shape))
    return _behind_scaler(shape, network)


def _of_series(shape: InputShape) -> dict[str, int]:
    [length] = shape.image_size
    return {"in_channels": shape.in_channels, "length": length, "num_classes": shape.num_classes}


def _behind_scaler(shape: InputShape, network: nn.Module) -> nn.Module:
    return Prepared(SignalScaler(shape.in_channels), network)


def _shown_pictures(build: Builder) -> Builder:
    """Return the builder of an image network that is shown spectrograms."""

    def build_mel(shape: InputShape, *, width: float) -> nn.Module:
        layer = _mel_layer(shape)
        seen = replace(shape, image_size=layer.size, kind="image")
        return Prepared(layer, build(seen, width=width))

    return build_mel


def _mel_layer(shape: InputShape) -> MelSpectrogram:
    assert shape.rate is not None, "recordings have one"
    return MelSpectrogram(shape.in_channels, shape.image_size[0], shape.rate)


def _scaler(name: str, shape: InputShape) -> OwnStatistics:
    return SignalScaler(shape.in_channels)


def _scaler_or_mel(name: str, shape: InputShape) -> OwnStatistics:
    is_shown_pictures = name.startswith(MEL) and name in FAMILIES["audio"]
    return _mel_layer(shape) if is_shown_pictures else SignalScaler(shape.in_channels)


WITH_NORMS = with_group_norm({"cnn1d": _cnn1d, "resnet1d": _resnet1d})
FAMILIES: dict[str, dict[str, Builder]] = {
    "series": {**WITH_NORMS, "transformer1d": _transformer1d},
    "audio": {
        **WITH_NORMS,
        **{
            f"{MEL}{name}": _shown_pictures(build)
            for one in (resnet, cnn6)
            for name, build in one.FAMILIES["image"].items()
        },
    },
}
FIRST_LAYERS: dict[str, FirstLayer] = {"series": _scaler, "audio": _scaler_or_mel}
