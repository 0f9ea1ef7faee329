"""Winograd convolution F(4x4, 3x3) on channels-last maps: a quarter of the multiplications of a direct one.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016. Every 4x4 tile of the output comes from
a 6x6 tile of the input. Both transforms are one matrix product over all tiles, and between them the convolution is 36
independent products [tiles, D] x [D, C].

Shapes: B images, P tiles, D channels in, C channels out, H and W the sides of a map, S = 36 points of a 6x6 tile.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

TILE = 4  # side of an output tile
PATCH = TILE + 2  # side of the input tile it is made from
POINTS = PATCH * PATCH
TILES_PER_PASS = 512  # enough rows for a fast matrix product, few enough to stay in the cache

# Costs in multiply-adds of a matrix product, measured once on x86 with AVX-512. They are constants and not timings, so
# the same network takes the same path, and gives the same bits, in every process.
_DIRECT_COST = 9.5  # per output value and input channel
_PRODUCT_COST = 46.0  # per tile, input and output channel: 36 products that are less regular than one large one
_INPUT_COST = 5000.0  # per tile and input channel: padding, gathering, transform
_OUTPUT_COST = 2000.0  # per tile and output channel: transform, addition, scattering


def is_winograd_faster(*, in_channels: int, out_channels: int, height: int, width: int) -> bool:
    """Return whether a 3x3 convolution of this size is faster this way; a fixed rule."""
    tiles = _tiles(height) * _tiles(width)
    direct = _DIRECT_COST * in_channels * out_channels * height * width
    per_tile = _PRODUCT_COST * in_channels * out_channels + _INPUT_COST * in_channels + _OUTPUT_COST * out_channels
    return tiles * per_tile < direct


class Workspace:
    """Scratch memory that all layers and teachers of one engine share, so that no call pays for fresh pages."""

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}
        self._padded: dict[tuple[int, ...], Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return memory of this shape with any content, valid until the name is taken again."""
        size = 1
        for side in shape:
            size *= side
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size:
            flat = self._flat[name] = torch.empty(size)
        return flat[:size].view(shape)

    def pad(self, maps_BHWD: Tensor) -> Tensor:
        """Return the maps with a pixel of zeros around them and more where the last tiles need it."""
        batch, height, width, channels = maps_BHWD.shape
        key = (height, width, channels)  # of the inside: whatever lies around it has been zero from the beginning
        known = self._padded.get(key)
        if known is None or len(known) < batch:
            sides = (_tiles(height) * TILE + 2, _tiles(width) * TILE + 2)
            known = self._padded[key] = torch.zeros(batch, *sides, channels)
        known[:batch, 1 : height + 1, 1 : width + 1] = maps_BHWD
        return known[:batch]

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        return sum(held.nbytes for store in (self._flat, self._padded) for held in store.values())


class WinogradConv:
    """A 3x3 convolution with stride 1 and padding 1, an epilogue fused into its last pass."""

    def __init__(self, weight_CDhw: Tensor, bias_C: Tensor, *, workspace: Workspace) -> None:
        out_channels, in_channels = weight_CDhw.shape[:2]
        by_tap = weight_CDhw.reshape(out_channels * in_channels, 9).t()
        self._weight_SCD = torch.mm(_transforms().weight, by_tap).view(POINTS, out_channels, in_channels)
        self._bias_C, self._workspace = bias_C, workspace

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        return self._weight_SCD.nbytes + self._bias_C.nbytes

    def __call__(self, maps_BDHW: Tensor, other_BCHW: Tensor | None, *, relu: bool) -> Tensor:
        """Convolve, add the bias and `other`, clip."""
        batch, _, height, width = maps_BDHW.shape
        out_BCHW = torch.empty((batch, len(self._bias_C), height, width), memory_format=torch.channels_last)
        images = max(1, TILES_PER_PASS // (_tiles(height) * _tiles(width)))
        for start in range(0, batch, images):
            part = slice(start, start + images)
            points_SPD = self._transform_input(maps_BDHW[part].permute(0, 2, 3, 1))
            products_SPC = self._workspace.take("products", POINTS, points_SPD.shape[1], len(self._bias_C))
            torch.bmm(points_SPD, self._weight_SCD.transpose(1, 2), out=products_SPC)
            other_BHWC = None if other_BCHW is None else other_BCHW[part].permute(0, 2, 3, 1)
            self._transform_output(products_SPC, out_BCHW[part].permute(0, 2, 3, 1), other_BHWC, relu=relu)
        return out_BCHW

    def _transform_input(self, maps_BHWD: Tensor) -> Tensor:
        batch, height, width, channels = maps_BHWD.shape
        rows, columns = _tiles(height), _tiles(width)
        padded = self._workspace.pad(maps_BHWD)
        image, row, pixel, _ = padded.stride()
        shape = (PATCH, PATCH, batch, rows, columns, channels)
        overlapping = padded.as_strided(shape, (row, pixel, image, TILE * row, TILE * pixel, 1))
        patches = self._workspace.take("patches", *shape)
        patches.copy_(overlapping)
        points_SPD = self._workspace.take("points", POINTS, batch * rows * columns, channels)
        torch.mm(_transforms().input, patches.view(POINTS, -1), out=points_SPD.view(POINTS, -1))
        return points_SPD

    def _transform_output(
        self, products_SPC: Tensor, out_BHWC: Tensor, other_BHWC: Tensor | None, *, relu: bool
    ) -> None:
        batch, height, width, channels = out_BHWC.shape
        rows, columns = _tiles(height), _tiles(width)
        # Point (1, 1) enters every pixel of its tile with factor one: there the bias costs a 36th of a pass.
        products_SPC[PATCH + 1] += self._bias_C
        tiles = self._workspace.take("tiles", TILE, TILE, batch, rows, columns, channels)
        torch.mm(_transforms().output, products_SPC.view(POINTS, -1), out=tiles.view(TILE * TILE, -1))
        values = tiles.permute(2, 3, 0, 4, 1, 5)
        if (height, width) != (rows * TILE, columns * TILE):
            whole = self._workspace.take("whole", batch, rows * TILE, columns * TILE, channels)
            whole.view(batch, rows, TILE, columns, TILE, channels).copy_(values)
            _finish(whole[:, :height, :width], other_BHWC, out_BHWC, relu=relu)
            return
        tiled = (batch, rows, TILE, columns, TILE, channels)
        _finish(values, None if other_BHWC is None else other_BHWC.reshape(tiled), out_BHWC.view(tiled), relu=relu)


def _finish(values: Tensor, other: Tensor | None, out: Tensor, *, relu: bool) -> None:
    """Write to `out`, adding and clipping on the way."""
    if other is not None:
        torch.add(values, other, out=out)
        if relu:
            out.relu_()
    elif relu:
        torch.clamp_min(values, 0.0, out=out)
    else:
        out.copy_(values)


def _tiles(side: int) -> int:
    return -(-side // TILE)


class _Transforms:
    """The three matrices of F(4x4, 3x3) at the points 0, 1, -1, 2, -2 and infinity, both directions in one."""

    def __init__(self) -> None:
        rows_in = [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ]
        rows_out = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
        rows_weight = [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]
        self.input = _both_ways(torch.tensor(rows_in, dtype=torch.float64))
        self.output = _both_ways(torch.tensor(rows_out, dtype=torch.float64))
        self.weight = _both_ways(torch.tensor(rows_weight, dtype=torch.float64) / 24)


@cache
def _transforms() -> _Transforms:
    return _Transforms()


def _both_ways(matrix: Tensor) -> Tensor:
    return torch.kron(matrix, matrix).float()
