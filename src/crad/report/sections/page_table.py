"""A table as the templates read it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PageTable:
    """Texts in rows and columns; the first `num_heads` columns name the row. Its file is named by its title."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    num_heads: int = 1
    title: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.header) for row in self.rows), "every row has a cell for every column"

    @property
    def name(self) -> str:
        """Return the id of its caption, which the table is labelled by."""
        return f"caption-{zlib.crc32(self.caption.encode())}"

    @property
    def is_words(self) -> list[bool]:
        """Tell of every column whether it is read as text, and so begins at the left; the first one always is."""
        return [
            column == 0 or any(row[column][:1].isalpha() for row in self.rows) for column in range(len(self.header))
        ]
