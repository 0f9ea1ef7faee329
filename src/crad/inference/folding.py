"""Batch norms of a frozen network folded into the convolutions before them, for GPUs: half the kernels to launch.

On the CPU a plan does more than that (`fused.py`). Which norm follows which convolution is found once by tracing; every
snapshot of the architecture is then folded by a few operations on its weights. For the built-in networks: a user's own
may do something between the two that a trace does not see.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

Pairs = tuple[tuple[str, str], ...]  # by name: a convolution, and the norm of its outputs


def find_pairs(model: nn.Module) -> Pairs:
    """Return the convolutions whose outputs go into one batch norm and nowhere else; none where nobody can tell."""
    if not type(model).__module__.startswith("crad.models.networks."):
        return ()
    try:
        nodes = list(torch.fx.symbolic_trace(model).graph.nodes)
    except Exception:  # what a forward does with values cannot be traced: it runs as it is
        return ()
    called = [node.target for node in nodes if node.op == "call_module"]
    pairs = []
    for node in nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, torch.fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        convolution, norm = model.get_submodule(str(before.target)), model.get_submodule(str(node.target))
        is_pair = type(convolution) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.running_var is not None
        if is_pair and called.count(before.target) == called.count(node.target) == 1:
            pairs.append((str(before.target), str(node.target)))
    return tuple(pairs)


def fold_norms(model: nn.Module, pairs: Pairs) -> None:
    """Fold the norms of a frozen model, which is changed; its outputs are the same up to rounding."""
    for convolution, norm in pairs:
        before, after = model.get_submodule(convolution), model.get_submodule(norm)
        assert isinstance(before, nn.Conv2d)
        assert isinstance(after, nn.BatchNorm2d)
        _put(model, convolution, fuse_conv_bn_eval(before, after))
        _put(model, norm, nn.Identity())


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(owner), own_name, module)
