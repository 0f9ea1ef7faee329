"""Networks for texts: token ids int64 [B,L] in, 0 where there is no word; three ways to look at the words' embeddings.

Ids mean the same words to everybody, for a tokenizer is agreed on and not fitted, so a teacher reads a student's texts
as its owner's. Shapes: B texts, L tokens, E embedding, C classes, K channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.errors import ConfigError
from crad.models.family import Builder, InputShape, scale_channels
from crad.models.networks.table import BLOCKS, EMBEDDING, HEADS, AttentionBlock

PADDING = 0
KERNELS = (2, 3, 4)  # words that a convolution sees at once
MAX_ATTENDED = 512  # tokens that attention looks at; its memory grows with their square


class BagOfWords(nn.Module):
    """The mean of a text's words, then linear layers: order says nothing."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, *, num_classes: int) -> None:
        super().__init__()
        self.embedding = word_embedding(vocabulary, embedding)
        self.head = nn.Sequential(nn.Linear(embedding, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))

    def forward(self, ids_BL: Tensor) -> Tensor:
        """Return logits [B, C]."""
        count_B1 = (ids_BL != PADDING).sum(dim=1, keepdim=True).clamp(min=1)
        logits_BC: Tensor = self.head(self.embedding(ids_BL).sum(dim=1) / count_B1)
        return logits_BC


class TextCnn(nn.Module):
    """Convolutions over two, three and four words in a row; of each the place where it speaks loudest (Kim 2014)."""

    def __init__(
        self, vocabulary: int, embedding: int, channels: int, *, kernels: Sequence[int], num_classes: int
    ) -> None:
        super().__init__()
        self.embedding = word_embedding(vocabulary, embedding)
        # So wide a border that the shortest text has a place for the widest one.
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, channels, size, padding=size - 1) for size in kernels)
        self.head = nn.Linear(channels * len(kernels), num_classes)

    def forward(self, ids_BL: Tensor) -> Tensor:
        """Return logits [B, C]."""
        words_BEL = self.embedding(ids_BL).transpose(1, 2)
        loudest = [torch.relu(convolution(words_BEL)).amax(dim=2) for convolution in self.convolutions]
        logits_BC: Tensor = self.head(torch.cat(loudest, dim=1))
        return logits_BC


class TextTransformer(nn.Module):
    """Words with their places look at each other and at a place that every text has; the mean of all tells."""

    def __init__(self, vocabulary: int, length: int, *, width: int, heads: int, blocks: int, num_classes: int) -> None:
        super().__init__()
        if length > MAX_ATTENDED:
            raise ConfigError(
                f"model 'text-transformer' looks at up to {MAX_ATTENDED} tokens, text_length is {length}: choose bag "
                "or text-cnn"
            )
        self.embedding = word_embedding(vocabulary, width)
        self.place = nn.Parameter(torch.randn(length, width) * width**-0.5)
        self.first = nn.Parameter(torch.randn(width) * width**-0.5)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, ids_BL: Tensor) -> Tensor:
        """Return logits [B, C]."""
        words_BLE = self.embedding(ids_BL) + self.place
        tokens_BLE = torch.cat([self.first.expand(words_BLE.shape[0], 1, -1), words_BLE], dim=1)
        is_there_BL = F.pad(ids_BL != PADDING, (1, 0), value=True)  # so that an empty text has something to look at
        for block in self.blocks:
            tokens_BLE = block(tokens_BLE, is_there_BL[:, None, None, :])
        weight_BL1 = is_there_BL.to(tokens_BLE.dtype).unsqueeze(2)
        mean_BE = (self.norm(tokens_BLE) * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1)
        logits_BC: Tensor = self.head(mean_BE)
        return logits_BC


def word_embedding(vocabulary: int, width: int) -> nn.Embedding:
    """Return an embedding whose words begin short: torch's own of length one per value take long to be heard apart."""
    embedding = nn.Embedding(vocabulary, width, padding_idx=PADDING)
    with torch.no_grad():
        embedding.weight.mul_(width**-0.5)
    return embedding


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


FAMILIES: dict[str, dict[str, Builder]] = {
    "text": {"bag": _bag, "text-cnn": _text_cnn, "text-transformer": _text_transformer}
}
