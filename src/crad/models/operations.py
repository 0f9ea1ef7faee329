"""What a forward pass computes: operations counted with torch's formulas, and its largest tensor.

torch's own `FlopCounterMode` counts the same, but it and every other mode is tied to torch.compile: its first operation
imports torch._dynamo, more than a second of processor time in every process, nearly as much as torch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


def _alike(batch: Tensor) -> Tensor:
    return batch.new_empty(batch.shape)


def _normalised(batch: Tensor, *_learned: object) -> object:
    return _alike(batch), batch.new_empty(0), batch.new_empty(0)


def _product(bias: Tensor, left: Tensor, right: Tensor) -> object:
    if left.shape[1] != right.shape[0] or bias.shape != right.shape[1:]:
        return NotImplemented
    return left.new_empty(left.shape[0], right.shape[1])


def _convolved(
    batch: Tensor,
    weight: Tensor,
    _bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    is_transposed: bool,
    _more: Sequence[int],
    groups: int,
) -> object:
    if is_transposed or batch.ndim != weight.ndim or batch.shape[1] != weight.shape[1] * groups:
        return NotImplemented
    sides = _windows(batch.shape[2:], weight.shape[2:], stride, padding, dilation)
    return NotImplemented if sides is None else batch.new_empty(len(batch), len(weight), *sides)


def _largest(
    batch: Tensor, window: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0, 0), *more: object
) -> object:
    sides = _windows(batch.shape[2:], window, stride or window, padding, (1, 1))
    if more or batch.ndim != 4 or sides is None:
        return NotImplemented
    shape = (*batch.shape[:2], *sides)
    return batch.new_empty(shape), batch.new_empty(shape, dtype=torch.int64)


def _windows(
    sides: Sequence[int], window: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int] | None:
    """Return how often a window fits along each side; None unless it is said for every side, and fits."""
    if not len(sides) == len(window) == len(stride) == len(padding) == len(dilation):
        return None
    room = [
        side + 2 * around - apart * (size - 1) - 1
        for side, size, around, apart in zip(sides, window, padding, dilation, strict=True)
    ]
    return None if min(room) < 0 else [one // step + 1 for one, step in zip(room, stride, strict=True)]


def _sum(left: Tensor, right: object) -> object:
    is_plain = isinstance(right, Tensor) and (right.shape, right.dtype) == (left.shape, left.dtype)
    return _alike(left) if is_plain else NotImplemented


def _mean(batch: Tensor, sides: Sequence[int] | None, keeps_sides: bool = False) -> object:
    if not sides or not batch.is_floating_point():
        return NotImplemented
    taken = {side % batch.ndim for side in sides}
    sizes = [1 if side in taken else size for side, size in enumerate(batch.shape) if keeps_sides or side not in taken]
    return batch.new_empty(sizes)


# What the networks of images do on the meta device, where torch works it out in Python and is tied likewise: what comes
# out, without numbers; NotImplemented for all but the plain case, which is left to torch, as what is wrong.
SKETCHES: dict[object, Callable[..., object]] = {
    torch.ops.aten._native_batch_norm_legit_no_training.default: _normalised,
    torch.ops.aten.add.Tensor: _sum,
    torch.ops.aten.addmm.default: _product,
    torch.ops.aten.convolution.default: _convolved,
    torch.ops.aten.max_pool2d_with_indices.default: _largest,
    torch.ops.aten.mean.dim: _mean,
    torch.ops.aten.native_group_norm.default: _normalised,
    torch.ops.aten.relu.default: _alike,
}


class CountedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of a forward pass, those outside modules too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.largest_bytes = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in here, so torch need not shield this from its compiler."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Do one operation, or those that it consists of, and count."""
        named = kwargs or {}
        if func is not torch.ops.prim.device.default:
            with self:
                output = func.decompose(*args, **named)
            if output is not NotImplemented:
                return output
        is_sketched = func in SKETCHES and not named and all(one.is_meta for one in args if isinstance(one, Tensor))
        output = SKETCHES[func](*args) if is_sketched else NotImplemented
        if output is NotImplemented:
            output = func(*args, **named)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += int(count(*args, **named, out_val=output))
        is_new = all(returned.alias_info is None for returned in func._schema.returns)  # not a view, of weights perhaps
        if is_new:
            tensors = [one for one in tree_leaves(output) if isinstance(one, Tensor)]
            self.largest_bytes = max([self.largest_bytes, *(tensor.nbytes for tensor in tensors)])
        return output
