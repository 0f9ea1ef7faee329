"""One convolution of a frozen network with everything that follows it: batch norm, an addition, a ReLU.

Shapes: B images, D channels in, C channels out, H and W the sides of a map, h and w those of a kernel.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.inference.winograd import WinogradConv, Workspace, is_winograd_faster


class Kernel(Protocol):
    """A convolution with its weights: maps in, maps out, both channels-last."""

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        ...

    def __call__(self, maps_BDHW: Tensor, other_BCHW: Tensor | None, *, relu: bool) -> Tensor:
        """Convolve, add the bias and `other`, clip."""
        ...


@dataclass(frozen=True)
class Geometry:
    """What a convolution does besides its weights."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @classmethod
    def of(cls, conv: nn.Conv2d) -> Geometry:
        """Return the geometry of a convolution that pads with zeros, by numbers."""
        sides = (conv.kernel_size, conv.stride, conv.padding, conv.dilation)
        kernel, stride, padding, dilation = ((int(side[0]), int(side[1])) for side in sides)
        return cls(kernel, stride, padding, dilation, conv.groups)

    @property
    def is_winograd(self) -> bool:
        """Return whether it is the kind of convolution that Winograd's algorithm is for."""
        return self == Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)

    def out_shape(self, maps_BDHW: Tensor, out_channels: int) -> tuple[int, ...]:
        """Return the shape of the maps it makes."""
        sides = [
            (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, padding, dilation in zip(
                maps_BDHW.shape[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        ]
        return (len(maps_BDHW), out_channels, *sides)


class FusedConv:
    """A convolution of one snapshot, its kernel chosen by the size of the first maps it sees.

    Every kernel is right for every size, so the choice stays; `sizes` remembers it for the next snapshot.
    """

    def __init__(
        self,
        conv: nn.Conv2d,
        norm: nn.BatchNorm2d | None,
        *,
        relu: bool,
        name: str,
        sizes: dict[str, tuple[int, int]],
        workspace: Workspace,
    ) -> None:
        self._geometry, self._relu, self._name, self._sizes = Geometry.of(conv), relu, name, sizes
        self._workspace = workspace
        self._out_channels = conv.out_channels
        self._folded: tuple[Tensor, Tensor] | None = fold(conv, norm)
        self._kernel: Kernel | None = None
        if name in sizes:
            self._kernel = self._make_kernel(*sizes[name])

    @property
    def nbytes(self) -> int:
        """Return the bytes held, after the first call those of the kernel alone."""
        held = 0 if self._folded is None else sum(tensor.nbytes for tensor in self._folded)
        return held + (0 if self._kernel is None else self._kernel.nbytes)

    def __call__(self, maps_BDHW: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the convolution's maps, `other` added before the ReLU."""
        maps_BDHW = maps_BDHW.contiguous(memory_format=torch.channels_last)
        if self._kernel is None:
            self._kernel = self._make_kernel(maps_BDHW.shape[2], maps_BDHW.shape[3])
        if other is None:
            return self._kernel(maps_BDHW, None, relu=self._relu)
        if other.shape != self._geometry.out_shape(maps_BDHW, self._out_channels) or other.dtype != maps_BDHW.dtype:
            sum_BCHW = torch.add(self._kernel(maps_BDHW, None, relu=False), other)  # broadcast, or a wider type
            return sum_BCHW.relu_() if self._relu else sum_BCHW
        return self._kernel(maps_BDHW, other.contiguous(memory_format=torch.channels_last), relu=self._relu)

    def _make_kernel(self, height: int, width: int) -> Kernel:
        assert self._folded is not None
        weight_CDhw, bias_C = self._folded
        self._folded = None
        self._sizes[self._name] = (height, width)
        out_channels, in_channels = weight_CDhw.shape[:2]
        if self._geometry.is_winograd and is_winograd_faster(
            in_channels=in_channels, out_channels=out_channels, height=height, width=width
        ):
            return WinogradConv(weight_CDhw, bias_C, workspace=self._workspace)
        if _has_onednn():
            return OneDnnConv(weight_CDhw, bias_C, self._geometry)
        return PlainConv(weight_CDhw, bias_C, self._geometry)


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> tuple[Tensor, Tensor]:
    """Fold a norm with its running statistics into a convolution: weight [C,D,h,w] and bias [C], copied."""
    weight_CDhw = conv.weight.detach()
    bias_C = torch.zeros(conv.out_channels) if conv.bias is None else conv.bias.detach().clone()
    if norm is None:
        return weight_CDhw.clone(), bias_C
    assert norm.running_mean is not None
    assert norm.running_var is not None
    # In double precision: it is one number per channel, and folding then rounds once.
    scale_C = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale_C = scale_C * norm.weight.detach().double()
    bias_C = (bias_C.double() - norm.running_mean.double()) * scale_C
    if norm.bias is not None:
        bias_C = bias_C + norm.bias.detach().double()
    return weight_CDhw * scale_C.float()[:, None, None, None], bias_C.float()


class OneDnnConv:
    """Direct convolution by oneDNN with packed weights; the addition happens while the result is in registers."""

    def __init__(self, weight_CDhw: Tensor, bias_C: Tensor, geometry: Geometry) -> None:
        self._where = (list(geometry.padding), list(geometry.stride), list(geometry.dilation), geometry.groups)
        self.nbytes = weight_CDhw.nbytes + bias_C.nbytes  # a packed tensor does not tell its own
        self._weight = torch.ops.mkldnn._reorder_convolution_weight(weight_CDhw, *self._where)
        self._bias_C = bias_C

    def __call__(self, maps_BDHW: Tensor, other_BCHW: Tensor | None, *, relu: bool) -> Tensor:
        """Convolve, add the bias and `other`, clip."""
        weights = (self._weight, self._bias_C, *self._where)
        if other_BCHW is None:
            made = torch.ops.mkldnn._convolution_pointwise(maps_BDHW, *weights, "none", [], "")
        else:
            add = torch.ops.mkldnn._convolution_pointwise.binary
            made = add(maps_BDHW, other_BCHW, *weights, "add", None, None, [], "")
        assert isinstance(made, Tensor)
        # oneDNN's own ReLU makes zeros of NaN, and a teacher that overflows would look sound.
        return made.relu_() if relu else made


class PlainConv:
    """Direct convolution by torch, for processors without the above."""

    def __init__(self, weight_CDhw: Tensor, bias_C: Tensor, geometry: Geometry) -> None:
        self._weight_CDhw, self._bias_C = weight_CDhw.contiguous(memory_format=torch.channels_last), bias_C
        self._where = (geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
        self.nbytes = weight_CDhw.nbytes + bias_C.nbytes

    def __call__(self, maps_BDHW: Tensor, other_BCHW: Tensor | None, *, relu: bool) -> Tensor:
        """Convolve, add the bias and `other`, clip."""
        made_BCHW = F.conv2d(maps_BDHW, self._weight_CDhw, self._bias_C, *self._where)
        if other_BCHW is not None:
            made_BCHW += other_BCHW
        return made_BCHW.relu_() if relu else made_BCHW


def _has_onednn() -> bool:
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
