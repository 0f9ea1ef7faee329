"""Networks for tables. The first layer of each prepares raw rows by its owner's statistics, which travel as buffers.

Shapes: B rows, F columns, D prepared values, C classes, P the most prepared values of a column, E embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.device import as_double
from crad.errors import ConfigError
from crad.models.family import Builder, FirstLayer, InputShape, scale_channels
from crad.models.own_statistics import MAX_DEVIATIONS, OwnStatistics, Prepared

MAX_RAW = 1e30  # of a number minus its mean: whatever a foreign mean is, what follows stays finite
RANGE_DEVIATIONS = 4.0  # that an agreed range counts as wide, two to each side of its middle
MAX_TOKENS = 512  # columns that attention looks at; its memory grows with their square
EMBEDDING, HEADS, BLOCKS = 32, 4, 2


class TableEncoder(OwnStatistics):
    """Raw rows [B,F] become prepared values [B,D]: numbers standardised, gaps told, categories one-hot.

    The values are: every number minus its mean, over its deviation; for every column whether it is a gap; for every
    category whether it is that one, the unknown one last. Mean and deviation are those of the owner's training rows
    (`fit`), buffers that a snapshot carries. What the owner has never seen varying (a column that is empty or constant
    there, a gap, a category) has scale zero: a network knows nothing about it, and its first weights shall not guess.
    """

    mean: Tensor  # [F] of the numbers
    scale: Tensor  # [D]
    numbers: Tensor
    place_column: Tensor
    place_code: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        """Make one for columns of these sizes: how many categories, 0 for numbers."""
        super().__init__()
        self.sizes = tuple(sizes)
        numbers = [column for column, size in enumerate(sizes) if size == 0]
        places = [(column, code) for column, size in enumerate(sizes) if size for code in range(size + 1)]
        self.width = len(numbers) + len(sizes) + len(places)
        # Which prepared value belongs to which column, in their order.
        self.column_of = (*numbers, *range(len(sizes)), *(column for column, _ in places))
        self.register_buffer("mean", torch.zeros(len(numbers)))
        self.register_buffer("scale", torch.ones(self.width))
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.int64), persistent=False)
        self.register_buffer("place_column", torch.tensor([c for c, _ in places], dtype=torch.int64), persistent=False)
        self.register_buffer("place_code", torch.tensor([float(c) for _, c in places]), persistent=False)

    def forward(self, rows_BF: Tensor) -> Tensor:
        """Return prepared values [B,D], all finite."""
        is_gap_BF = torch.isnan(rows_BF)
        numbers_BF = rows_BF[:, self.numbers]
        centred_BF = torch.where(torch.isnan(numbers_BF), 0.0, numbers_BF - self.mean).clamp(-MAX_RAW, MAX_RAW)
        is_place_BP = rows_BF[:, self.place_column] == self.place_code
        told_BD = torch.cat([centred_BF, is_gap_BF.to(rows_BF.dtype), is_place_BP.to(rows_BF.dtype)], dim=1)
        return (told_BD * self.scale).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)

    @torch.no_grad()
    def fit_ranges(self, ranges: Sequence[tuple[float, float] | None]) -> None:
        """Take the middle and a quarter of every column's agreed range; gaps and categories are all told."""
        agreed = [ranges[column] for column in self.numbers.tolist()]
        low_F = torch.tensor([one[0] for one in agreed if one is not None], dtype=torch.float64)
        high_F = torch.tensor([one[1] for one in agreed if one is not None], dtype=torch.float64)
        self.mean.copy_((low_F + high_F) / 2)
        told = torch.ones(self.width - len(agreed), dtype=torch.float64)
        self.scale.copy_(torch.cat([RANGE_DEVIATIONS / (high_F - low_F), told]))

    def seen_channels(self, in_channels: int) -> int:
        """Return D: a network behind it is given prepared values."""
        return self.width

    @torch.no_grad()
    def fit(self, samples: Tensor) -> None:
        """Take mean and deviation from rows [N,F], and note what is never seen in them."""
        rows_NF = samples
        numbers_NF = as_double(rows_NF[:, self.numbers])
        is_known_NF = ~torch.isnan(numbers_NF)
        count_F = is_known_NF.sum(dim=0).clamp(min=1)
        mean_F = torch.where(is_known_NF, numbers_NF, 0.0).sum(dim=0) / count_F
        square_F = torch.where(is_known_NF, (numbers_NF - mean_F) ** 2, 0.0).sum(dim=0) / count_F
        deviation_F = square_F.sqrt()
        # Rounding leaves a constant column a tiny deviation.
        is_varying_F = deviation_F > 1e-6 * mean_F.abs().clamp(min=1e-30)
        inverse_F = torch.where(is_varying_F, 1 / deviation_F.clamp(min=1e-30), 0.0)
        is_seen_F = torch.isnan(rows_NF).any(dim=0)
        is_seen_P = (rows_NF[:, self.place_column] == self.place_code).any(dim=0)
        self.mean.copy_(mean_F)
        self.scale.copy_(torch.cat([inverse_F, is_seen_F.to(inverse_F), is_seen_P.to(inverse_F)]))


def fit_agreed_ranges(model: nn.Module, ranges: Sequence[tuple[float, float] | None]) -> None:
    """Fill a network's first layer from the ranges that all have agreed on, and from nobody's rows."""
    for module in model.modules():
        if isinstance(module, TableEncoder):
            module.fit_ranges(ranges)


def other_than_agreed(
    model: nn.Module, weights: Mapping[str, Tensor], ranges: Sequence[tuple[float, float] | None]
) -> str | None:
    """Return which statistics in weights for this network are not those of the agreed ranges; None: all are."""
    for prefix, module in model.named_modules():
        if isinstance(module, TableEncoder):
            agreed = TableEncoder(module.sizes)
            agreed.fit_ranges(ranges)
            for name, tensor in agreed.state_dict(prefix=f"{prefix}.").items():
                if not torch.equal(weights[name].cpu(), tensor):
                    return name
    return None


def mlp(sizes: Sequence[int], widths: Sequence[int], *, num_classes: int) -> nn.Module:
    """Return linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for in_width, out_width in zip([TableEncoder(sizes).width, *widths[:-1]], widths, strict=True):
        layers += [nn.Linear(in_width, out_width), nn.ReLU()]
    return Prepared(TableEncoder(sizes), nn.Sequential(*layers, nn.Linear(widths[-1], num_classes)))


class DeepMlp(nn.Module):
    """A first layer, then blocks of layer norm, linear and ReLU that add to what came in."""

    def __init__(self, in_width: int, width: int, *, blocks: int, num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(in_width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in range(blocks)
        )
        self.head = nn.Linear(width, num_classes)

    def forward(self, values_BD: Tensor) -> Tensor:
        """Return logits [B, C]."""
        hidden = self.first(values_BD)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        logits_BC: Tensor = self.head(hidden)
        return logits_BC


class TabTransformer(nn.Module):
    """Every column is a token, and columns look at each other: a small transformer over prepared values."""

    place: Tensor

    def __init__(self, sizes: Sequence[int], *, width: int, heads: int, blocks: int, num_classes: int) -> None:
        super().__init__()
        if len(sizes) > MAX_TOKENS:
            raise ConfigError(
                f"model 'tab-transformer' looks at up to {MAX_TOKENS} columns, the table has {len(sizes)}: choose mlp "
                "or mlp-deep"
            )
        encoder = TableEncoder(sizes)
        self.encoder = encoder
        per_column: list[list[int]] = [[] for _ in sizes]
        for place, column in enumerate(encoder.column_of):
            per_column[column].append(place)
        most = max(len(one) for one in per_column)
        # Values of a column side by side, filled up with a value that is always zero, the one after the last.
        filled = [one + [encoder.width] * (most - len(one)) for one in per_column]
        self.register_buffer("place", torch.tensor(filled).flatten(), persistent=False)
        self.shape = (len(sizes), most)
        self.embedding = nn.Parameter(torch.randn(len(sizes), most, width) * width**-0.5)
        self.bias = nn.Parameter(torch.randn(len(sizes), width) * width**-0.5)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, rows_BF: Tensor) -> Tensor:
        """Return logits [B, C]."""
        values_BD = F.pad(self.encoder(rows_BF), (0, 1))
        values_BFP = values_BD[:, self.place].reshape(-1, *self.shape)
        tokens_BFE = torch.einsum("bfp,fpe->bfe", values_BFP, self.embedding) + self.bias
        for block in self.blocks:
            tokens_BFE = block(tokens_BFE)
        logits_BC: Tensor = self.head(self.norm(tokens_BFE).mean(dim=1))
        return logits_BC


class AttentionBlock(nn.Module):
    """Tokens look at each other, then each by itself goes through two layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens_BFE: Tensor, is_seen: Tensor | None = None) -> Tensor:
        """Return tokens of the same shape; `is_seen` [B,1,1,F] says which of them may be looked at."""
        parts: Tensor = self.queries_keys_values(self.norm(tokens_BFE))
        batch, tokens, _ = tokens_BFE.shape
        queries, keys, values = parts.reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(queries, keys, values, attn_mask=is_seen)
        tokens_BFE = tokens_BFE + self.out(seen.transpose(1, 2).flatten(2))
        changed: Tensor = tokens_BFE + self.feed_forward(self.norm_2(tokens_BFE))
        return changed


def _mlp(shape: InputShape, *, width: float) -> nn.Module:
    return mlp(shape.columns, scale_channels((64, 64), width), num_classes=shape.num_classes)


def _mlp_deep(shape: InputShape, *, width: float) -> nn.Module:
    [hidden_width] = scale_channels((96,), width)
    encoder = TableEncoder(shape.columns)
    return Prepared(encoder, DeepMlp(encoder.width, hidden_width, blocks=3, num_classes=shape.num_classes))


def _tab_transformer(shape: InputShape, *, width: float) -> nn.Module:
    embedding = HEADS * max(1, round(EMBEDDING * width / HEADS))
    return TabTransformer(shape.columns, width=embedding, heads=HEADS, blocks=BLOCKS, num_classes=shape.num_classes)


def _first_layer(name: str, shape: InputShape) -> OwnStatistics:
    return TableEncoder(shape.columns)


FAMILIES: dict[str, dict[str, Builder]] = {
    "table": {"mlp": _mlp, "mlp-deep": _mlp_deep, "tab-transformer": _tab_transformer}
}
FIRST_LAYERS: dict[str, FirstLayer] = {"table": _first_layer}
