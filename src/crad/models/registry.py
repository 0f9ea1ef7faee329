"""Architectures by name: ours, timm's (`timm:NAME`), another package's (an entry point), a user's own (`module:build`).

Shapes: B samples, C classes, D channels, H and W the sides of the image.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from crad.errors import ConfigError
from crad.models.cnn6 import Cnn6, Cnn6Wide
from crad.models.own_statistics import OwnStatistics
from crad.models.resnet import ResNet18
from crad.models.series import Cnn1d, MelSpectrogram, PreparedSignal, ResNet1d, SignalScaler, Transformer1d
from crad.models.table import BLOCKS, EMBEDDING, HEADS, DeepMlp, PreparedRows, TableEncoder, TabTransformer, mlp
from crad.models.text import KERNELS, BagOfWords, TextCnn, TextTransformer
from crad.models.timm_models import build_timm, check_timm, is_timm
from crad.models.trees import GradientBoosting, RandomForest
from crad.plugins import call_foreign, resolve

ENTRY_POINT_GROUP = "crad.models"
MIN_SIDE = 8  # three halvings must leave a pixel
MAX_WIDTH = 4.0
MIN_CHANNELS = 4
MEL = "mel-"  # before an image family's name: it is shown spectrograms of recordings
WEIGHTS = ":weights="  # before the file, in an entry of the setting `models`
# A network that is not ours, from the number of classes, the channels and the sides of the images.
ForeignBuilder = Callable[[int, int, tuple[int, ...]], object]


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


@dataclass(frozen=True)
class Architecture:
    """A model's name and the factor on its channel counts; `id` is what peers and files call it.

    Where its first weights come from is its owner's own affair, and no part of the id.
    """

    name: str
    width: float = 1.0
    weights: Path | None = None  # a safetensors file; None: drawn by the seed
    id: str = field(init=False, repr=False, compare=False)  # the name, followed by `@width` unless the width is 1

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name:
            raise ConfigError(f"model name {self.name!r} must not be empty or contain '@'")
        if not 0 < self.width <= MAX_WIDTH:  # refuses nan too
            raise ConfigError(f"model {self.name!r}: width {self.width!r} must be over 0 and at most {MAX_WIDTH:g}")
        suffix = "" if self.width == 1 else f"@{float(self.width)!r}".removesuffix(".0")
        object.__setattr__(self, "id", f"{self.name}{suffix}")

    @classmethod
    def parse(cls, text: str, *, width: float = 1.0) -> Architecture:
        """Parse `resnet18`, `resnet18@0.125` or `timm:resnet18:weights=FILE`; `width` is for one that says none."""
        said, has_weights, file = text.partition(WEIGHTS)
        if has_weights and not file:
            raise ConfigError(f"model {text!r}: a file must follow after {WEIGHTS!r}")
        name, at, own_width = said.partition("@")
        try:
            return cls(name, float(own_width) if at else width, Path(file) if file else None)
        except ValueError:
            raise ConfigError(f"model {text!r}: the width after '@' must be a number, got {own_width!r}") from None

    def __str__(self) -> str:
        return self.id


def build_model(
    architecture: Architecture,
    *,
    num_classes: int,
    in_channels: int,
    image_size: tuple[int, ...],
    kind: str = "image",
    columns: tuple[int, ...] = (),
    vocabulary: int = 0,
    rate: int | None = None,
    seed: int,
) -> nn.Module:
    """Build the untrained network; its weights depend on the seed alone, and torch's random state is left as it was."""
    if kind == "image" and min(image_size) < MIN_SIDE:
        sides = "x".join(map(str, image_size))
        raise ConfigError(f"images of {sides} are too small: both sides must be at least {MIN_SIDE}")
    if num_classes < 1 or in_channels < 1:
        raise ConfigError(f"a model needs a class and a channel, got {num_classes} and {in_channels}")
    shape = InputShape(num_classes, in_channels, image_size, kind, columns, vocabulary, rate)
    check_fits_kind(architecture.name, kind)
    build = resolve_architecture(architecture.name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs as well
        return build(shape, width=architecture.width)


def check_fits_kind(name: str, kind: str) -> None:
    """Refuse a family that is for another kind of data, naming those that fit; a user's own is taken at their word."""
    others = [other for other, families in FAMILIES.items() if name in families or (other == "image" and is_timm(name))]
    if others and kind not in others:
        fitting = ", ".join(FAMILIES[kind])
        raise ConfigError(
            f"model {name!r} is for data of kind {others[0]!r}, and this is of kind {kind!r}: choose {fitting}"
        )


def resolve_architecture(name: str) -> Builder:
    """Return the builder of a known name, timm's `timm:NAME`, an entry point or an import path `package.module:build`.

    All but the first import code: never pass a name that came from a peer and is not in the own settings.
    """
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    return functools.partial(_build_foreign, name, resolve_foreign(name))


def resolve_foreign(name: str) -> ForeignBuilder:
    """Import timm or a user's own function of (num_classes, in_channels) as it is; the result is not looked at."""
    if is_timm(name):
        check_timm(name)
        return functools.partial(build_timm, name)
    build = resolve_builder(name)
    return lambda num_classes, in_channels, image_size: build(num_classes, in_channels)


def resolve_builder(name: str) -> Callable[[int, int], object]:
    """Import a user's own function of (num_classes, in_channels) by its path or entry point."""
    build = resolve("model", name, known=ARCHITECTURES, group=ENTRY_POINT_GROUP)
    if not callable(build):
        kind = type(build).__name__
        raise ConfigError(f"model {name!r}: expected a function of (num_classes, in_channels), got {kind}")
    found: Callable[[int, int], object] = build
    return found


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


def _build_foreign(name: str, build: ForeignBuilder, shape: InputShape, *, width: float) -> nn.Module:
    """Build a user's network, tried on two empty samples before anything trusts it; width is not its concern.

    For a table it is given prepared values: `in_channels` is their number, and no gap is among them; of recordings and
    series standardised samples. For texts it is given token ids: `in_channels` is their number in a text.
    """
    encoder = preparing_layer(name, shape)
    in_channels = encoder.width if isinstance(encoder, TableEncoder) else shape.in_channels
    samples_BDHW = replace(shape, in_channels=in_channels).empty_samples(2)
    batch = f"a batch of {list(samples_BDHW.shape)}"
    call = f"build({shape.num_classes}, {in_channels})"
    model = call_foreign("model", name, call, build, shape.num_classes, in_channels, shape.image_size)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {name!r}: {call} must return a torch.nn.Module, got {type(model).__name__}")
    logits_BC = call_foreign("model", name, batch, _try_forward, model, samples_BDHW)
    fault = _fault_of_logits(logits_BC, (len(samples_BDHW), shape.num_classes))
    if fault:
        expected = f"finite floats of shape [{len(samples_BDHW)}, {shape.num_classes}]"
        raise ConfigError(f"model {name!r}: {batch} must give {expected}, got {fault}")
    if encoder is None:
        return model
    return PreparedRows(shape.columns, model) if shape.kind == "table" else PreparedSignal(encoder, model)


@torch.no_grad()
def _try_forward(model: nn.Module, images_BDHW: Tensor) -> object:
    modes = [(module, module.training) for module in model.modules()]
    lazy = nn.parameter.is_lazy  # a lazy layer takes its shape, and so its weights, from these images
    buffers = {key: buffer.clone() for key, buffer in model.named_buffers() if not lazy(buffer)}
    model.eval()
    try:
        return torch.func.functional_call(model, buffers, (images_BDHW,))
    finally:
        for module, was_training in modes:
            module.training = was_training


def _fault_of_logits(logits: object, shape: tuple[int, int]) -> str:
    if not isinstance(logits, Tensor):
        return type(logits).__name__
    if logits.shape != shape or not logits.is_floating_point():
        return f"{list(logits.shape)} of {logits.dtype}"
    return "" if logits.isfinite().all() else "a value that is not finite"
