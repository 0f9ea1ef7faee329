"""A column of a large table's texts in a few bytes each: a string of its own takes sixty, and there may be millions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, overload

SEPARATOR = "\x1f"  # the unit separator of ASCII, which hardly any table has in a field


class PackedTexts(Sequence[str]):
    """Texts in blocks, each one string of bytes; they are unpacked block by block as they are read."""

    def __init__(self) -> None:
        self._blocks: list[bytes | tuple[str, ...]] = []
        self._ends: list[int] = []  # how many texts there are up to the end of each block

    def append_block(self, texts: Sequence[str]) -> None:
        """Add some texts, one or more."""
        joined = SEPARATOR.join(texts)
        is_plain = joined.count(SEPARATOR) == len(texts) - 1
        self._blocks.append(joined.encode() if is_plain else tuple(texts))
        self._ends.append(len(self) + len(texts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            yield from _unpacked(block)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return list(self)[place]
        place = range(len(self))[place]
        block = bisect_right(self._ends, place)
        return _unpacked(self._blocks[block])[place - (self._ends[block - 1] if block else 0)]

    def index(self, value: Any, *within: Any) -> int:  # noqa: ANN401  # as every sequence has it
        """Return the first place of a text."""
        return list(self).index(value, *within)


def _unpacked(block: bytes | tuple[str, ...]) -> Sequence[str]:
    return block.decode().split(SEPARATOR) if isinstance(block, bytes) else block
