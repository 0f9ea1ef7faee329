"""Architectures by name: ours, timm's (`timm:NAME`), another package's (an entry point), a user's own (`module:build`).

Shapes: B samples, C classes, D channels, H and W the sides of the image.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from crad.errors import ConfigError
from crad.models.families import ARCHITECTURES, FAMILIES, preparing_layer
from crad.models.family import Builder, InputShape
from crad.models.group_norm import SUFFIX
from crad.models.own_statistics import Prepared
from crad.models.timm_models import build_timm, check_timm, is_timm
from crad.plugins import call_foreign, resolve

ENTRY_POINT_GROUP = "crad.models"
MIN_SIDE = 8  # three halvings must leave a pixel
MAX_WIDTH = 4.0
WEIGHTS = ":weights="  # before the file, in an entry of the setting `models`
# A network that is not ours, from the number of classes, the channels and the sides of the images.
ForeignBuilder = Callable[[int, int, tuple[int, ...]], object]


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
        fitting = ", ".join(one for one in FAMILIES[kind] if not one.endswith(SUFFIX))
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


def _build_foreign(name: str, build: ForeignBuilder, shape: InputShape, *, width: float) -> nn.Module:
    """Build a user's network, tried on two empty samples before anything trusts it; width is not its concern.

    For a table it is given prepared values: `in_channels` is their number, and no gap is among them; of recordings and
    series standardised samples. For texts it is given token ids: `in_channels` is their number in a text.
    """
    encoder = preparing_layer(name, shape)
    in_channels = shape.in_channels if encoder is None else encoder.seen_channels(shape.in_channels)
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
    return model if encoder is None else Prepared(encoder, model)


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
