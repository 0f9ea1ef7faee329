"""The networks that are built in, by the kind of data that they are for: how each is made for samples of a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from crad.models.cnn6 import Cnn6, Cnn6Wide
from crad.models.own_statistics import OwnStatistics
from crad.models.resnet import ResNet18
from crad.models.series import Cnn1d, MelSpectrogram, PreparedSignal, ResNet1d, SignalScaler, Transformer1d
from crad.models.table import BLOCKS, EMBEDDING, HEADS, DeepMlp, PreparedRows, TableEncoder, TabTransformer, mlp
from crad.models.text import KERNELS, BagOfWords, TextCnn, TextTransformer
from crad.models.trees import GradientBoosting, RandomForest

MIN_CHANNELS = 4
MEL = "mel-"  # before an image family's name: it is shown spectrograms of recordings


@dataclass(frozen=True)
class InputShape:
    """What a network is built for: one sample [in_channels, *image_size], and how many classes it tells apart."""

    num_classes: int
    in_channels: int  # of images; of a table its columns, of texts their tokens
    image_size: tuple[int, ...]  # height and width; of a series its length; nothing for a row
    kind: str = "image"  # of the data; a key of FAMILIES
    columns: tuple[int, ...] = ()  # of a table: how many categories each column has, 0 for numbers
    vocabulary: int = 0  # of texts: how many ids a token may have
    rate: int | None = None  # of recordings: samples a second

    def empty_samples(self, count: int) -> Tensor:
        """Return inputs that hold nothing, to try a network on: numbers, or ids where tokens have some."""
        dtype = torch.int64 if self.vocabulary else torch.float32
        return torch.zeros(count, self.in_channels, *self.image_size, dtype=dtype)

    def random_samples(self, count: int, *, generator: torch.Generator) -> Tensor:
        """Return inputs of which no two are alike, to look into a network with."""
        size = (count, self.in_channels, *self.image_size)
        if self.vocabulary:
            return torch.randint(0, self.vocabulary, size, generator=generator)
        return torch.randn(size, generator=generator)


class Builder(Protocol):
    """Makes an architecture's untrained network from torch's current random state."""

    def __call__(self, shape: InputShape, *, width: float) -> nn.Module:
        """Build a network for such samples; `width` is the factor on the channel counts."""
        ...


def scale_channels(channels: Sequence[int], width: float) -> list[int]:
    """Multiply channel counts by a width, at least four each."""
    return [max(MIN_CHANNELS, round(count * width)) for count in channels]


def _resnet18(channels: Sequence[int]) -> Builder:
    def build(shape: InputShape, *, width: float) -> nn.Module:
        return ResNet18(scale_channels(channels, width), num_classes=shape.num_classes, in_channels=shape.in_channels)

    return build


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


def _mlp(shape: InputShape, *, width: float) -> nn.Module:
    return mlp(shape.columns, scale_channels((64, 64), width), num_classes=shape.num_classes)


def _mlp_deep(shape: InputShape, *, width: float) -> nn.Module:
    [hidden_width] = scale_channels((96,), width)
    deep = DeepMlp(TableEncoder(shape.columns).width, hidden_width, blocks=3, num_classes=shape.num_classes)
    return PreparedRows(shape.columns, deep)


def _tab_transformer(shape: InputShape, *, width: float) -> nn.Module:
    embedding = HEADS * max(1, round(EMBEDDING * width / HEADS))
    return TabTransformer(shape.columns, width=embedding, heads=HEADS, blocks=BLOCKS, num_classes=shape.num_classes)


def _gradient_boosting(shape: InputShape, *, width: float) -> nn.Module:
    [steps] = scale_channels((100,), width)
    return GradientBoosting(shape.columns, steps=steps, depth=4, num_classes=shape.num_classes)


def _random_forest(shape: InputShape, *, width: float) -> nn.Module:
    [trees] = scale_channels((100,), width)
    return RandomForest(shape.columns, trees=trees, depth=8, num_classes=shape.num_classes)


FITTED: dict[str, Builder] = {"gradient-boosting": _gradient_boosting, "random-forest": _random_forest}  # in one call


def _bag(shape: InputShape, *, width: float) -> nn.Module:
    embedding, hidden = scale_channels((64, 64), width)
    return BagOfWords(shape.vocabulary, embedding, hidden, num_classes=shape.num_classes)


def _text_cnn(shape: InputShape, *, width: float) -> nn.Module:
    embedding, channels = scale_channels((64, 64), width)
    return TextCnn(shape.vocabulary, embedding, channels, kernels=KERNELS, num_classes=shape.num_classes)


def _text_transformer(shape: InputShape, *, width: float) -> nn.Module:
    embedding = HEADS * max(1, round(2 * EMBEDDING * width / HEADS))
    return TextTransformer(
        shape.vocabulary,
        shape.in_channels,
        width=embedding,
        heads=HEADS,
        blocks=BLOCKS,
        num_classes=shape.num_classes,
    )


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
    return PreparedSignal(SignalScaler(shape.in_channels), network)


def _mel(build: Builder) -> Builder:
    """Return the builder of an image network that is shown spectrograms."""

    def build_mel(shape: InputShape, *, width: float) -> nn.Module:
        layer = _mel_layer(shape)
        seen = replace(shape, image_size=layer.size, kind="image")
        return PreparedSignal(layer, build(seen, width=width))

    return build_mel


def _mel_layer(shape: InputShape) -> MelSpectrogram:
    assert shape.rate is not None, "recordings have one"
    return MelSpectrogram(shape.in_channels, shape.image_size[0], shape.rate)


def preparing_layer(name: str, shape: InputShape) -> OwnStatistics | None:
    """Return the first layer of a network of this name, which has its owner's statistics; None: it has none."""
    if shape.kind == "table":
        return TableEncoder(shape.columns)
    if shape.kind not in ("audio", "series"):
        return None
    return _mel_layer(shape) if name in ARCHITECTURES and name.startswith(MEL) else SignalScaler(shape.in_channels)


FAMILIES: dict[str, dict[str, Builder]] = {  # by the kind of data that they are for
    "image": {
        "resnet18": _resnet18((64, 128, 256, 512)),
        "resnet18-half": _resnet18((32, 64, 128, 256)),
        "cnn6": _cnn6,
        "cnn6-wide": _cnn6_wide,
    },
    "table": {"mlp": _mlp, "mlp-deep": _mlp_deep, "tab-transformer": _tab_transformer, **FITTED},
    "text": {"bag": _bag, "text-cnn": _text_cnn, "text-transformer": _text_transformer},
    "series": {"cnn1d": _cnn1d, "resnet1d": _resnet1d, "transformer1d": _transformer1d},
}
FAMILIES["audio"] = {
    "cnn1d": _cnn1d,
    "resnet1d": _resnet1d,
    **{f"{MEL}{name}": _mel(build) for name, build in FAMILIES["image"].items()},
}
ARCHITECTURES: dict[str, Builder] = {name: build for families in FAMILIES.values() for name, build in families.items()}
POOL = ("resnet18", "resnet18-half", "cnn6")  # what the paper deals out to its clients in turn
