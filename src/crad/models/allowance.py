"""What a network would cost, known before it is built; and what one organisation lets run on its machine.

A network is sketched on torch's meta device, where tensors have a shape and no memory.

Shapes: B images, C classes, D channels, H and W the sides of the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from crad.errors import ConfigError, CradError, printable
from crad.models.families import ARCHITECTURES
from crad.models.family import InputShape
from crad.models.operations import CountedOperations
from crad.models.registry import Architecture, build_model, check_fits_kind, resolve_architecture, resolve_foreign

MEGABYTE, GIGAFLOP = 10**6, 10**9


@dataclass(frozen=True)
class Allowance:
    """Which networks of others may run here: the built-in ones and these names, up to a size and a time."""

    architectures: frozenset[str] = frozenset()
    max_mb: float = 2048.0
    max_gflops: float = 200.0  # for one image

    def has(self, architecture: Architecture) -> bool:
        """Return whether the name is built in or allowed by hand; nothing is imported to tell."""
        return architecture.name in ARCHITECTURES or architecture.name in self.architectures

    def refusal(self, architecture: Architecture, shape: InputShape, *, batch_size: int = 1) -> str | None:
        """Return why a network is not built here, in words that follow its owner's name; None: it may be.

        Its memory is that of its weights and of its largest activation for a batch.
        """
        if not self.has(architecture):
            return self.refusal_of_name(architecture)
        name = printable(architecture.id)
        try:
            size = estimate_size(architecture, shape)
        except CradError as error:
            return f"its network {name} cannot be built here: {error}"
        activation_bytes = batch_size * size.activation_bytes
        if size.nbytes > self.max_mb * MEGABYTE:
            have, key, limit = f"{size.nbytes / MEGABYTE:,.0f} MB of weights", "max_teacher_mb", self.max_mb
        elif size.nbytes + activation_bytes > self.max_mb * MEGABYTE:
            weights, layer = f"{size.nbytes / MEGABYTE:,.0f} MB of weights", f"{activation_bytes / MEGABYTE:,.0f} MB"
            have = f"{weights} and {layer} for one layer's output of {batch_size} samples"
            key, limit = "max_teacher_mb", self.max_mb
        elif size.flops > self.max_gflops * GIGAFLOP:
            have, key, limit = f"{size.flops / GIGAFLOP:,.0f} GFLOP for a sample", "max_teacher_gflops", self.max_gflops
        else:
            return None
        return f"its network {name} takes {have}, our peer.toml allows {key} = {limit:g}"

    @staticmethod
    def refusal_of_name(architecture: Architecture) -> str:
        """Return what to say of a name that is neither built in nor allowed."""
        name, wanted = printable(architecture.id), printable(architecture.name)
        return (
            f'its network {name} is not built in; to learn from it write architectures = ["{wanted}"] into peer.toml '
            "after reading its code"
        )


@dataclass(frozen=True)
class ModelSize:
    """How large a network is and what one image costs; `weights` have shapes and types but no memory."""

    weights: Mapping[str, Tensor]
    parameters: int
    flops: int
    activation_bytes: int  # of the largest tensor that one image becomes on its way

    @property
    def nbytes(self) -> int:
        """Return the bytes of parameters and buffers."""
        return sum(tensor.nbytes for tensor in self.weights.values())


def estimate_size(architecture: Architecture, shape: InputShape) -> ModelSize:
    """Estimate the size of a network that is not built; refuse with one line where there can be none.

    A user's own network that cannot be sketched is built for once: its name was allowed by hand.
    """
    return (_estimate_ours if architecture.name in ARCHITECTURES else _estimate)(architecture, shape)


@lru_cache(maxsize=64)
def count_values(architecture: Architecture, shape: InputShape) -> int:
    """Count the values that a built-in network holds, without building it; refuse with one line where it cannot be."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return sum(tensor.numel() for tensor in _sketch(architecture, shape).state_dict().values())
    except ConfigError:
        raise
    except Exception as error:  # sizes beyond all numbers
        raise ConfigError(f"model {architecture.id!r} of these samples is beyond what can be computed") from error


def _estimate(architecture: Architecture, shape: InputShape) -> ModelSize:
    is_ours = architecture.name in ARCHITECTURES
    try:
        with torch.device("meta"):
            return _measure(_sketch(architecture, shape), shape)
    except ConfigError:
        raise
    except Exception as error:  # sizes beyond all numbers, or a module that wants to see values
        if is_ours:
            sides = "x".join(map(str, shape.image_size))
            raise ConfigError(f"samples of {sides} are beyond what can be computed") from error
    model = build_model(architecture, **vars(shape), seed=0)
    return _measure(model, shape)


_estimate_ours = lru_cache(maxsize=64)(_estimate)  # whoever joins asks four times; a user's own may change meanwhile


def _sketch(architecture: Architecture, shape: InputShape) -> nn.Module:
    check_fits_kind(architecture.name, shape.kind)
    if architecture.name in ARCHITECTURES:
        return ARCHITECTURES[architecture.name](shape, width=architecture.width)
    if shape.kind != "image":
        return resolve_architecture(architecture.name)(shape, width=architecture.width)
    model = resolve_foreign(architecture.name)(shape.num_classes, shape.in_channels, shape.image_size)
    if not isinstance(model, nn.Module):
        raise TypeError("no module")  # building it for once says so better
    return model


@torch.no_grad()
def _measure(model: nn.Module, shape: InputShape) -> ModelSize:
    image_BDHW = shape.empty_samples(1)
    with CountedOperations() as counted:
        model.eval()(image_BDHW)
    weights = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelSize(weights, parameters, counted.flops, max(counted.largest_bytes, image_BDHW.nbytes))
