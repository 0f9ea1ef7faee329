"""Group norm in place of batch norm: every sample by itself, so that no record is in another one's gradient."""

from __future__ import annotations

from torch import nn

from crad.models.family import Builder, InputShape

SUFFIX = "-gn"  # of the names of networks with group norm
MOST_GROUPS = 8
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def group_normed(build: Builder) -> Builder:
    """Return a builder of the same network, with the same weights, whose norms look at one sample at a time."""

    def build_normed(shape: InputShape, *, width: float) -> nn.Module:
        model = build(shape, width=width)
        _replace_norms(model)
        return model

    return build_normed


def with_group_norm(families: dict[str, Builder]) -> dict[str, Builder]:
    """Return families of networks with batch norm, and each of them with group norm beside it."""
    return {**families, **{f"{name}{SUFFIX}": group_normed(build) for name, build in families.items()}}


def _replace_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, BATCH_NORMS):
            setattr(module, name, nn.GroupNorm(_groups(child.num_features), child.num_features))
        elif isinstance(child, nn.ReLU):
            child.inplace = False  # gradients by sample are taken from what it would write over
        else:
            _replace_norms(child)


def _groups(channels: int) -> int:
    """Return the most groups, up to eight, that divide the channels and leave two of them or more in each."""
    return next((groups for groups in range(min(MOST_GROUPS, channels // 2), 1, -1) if channels % groups == 0), 1)
