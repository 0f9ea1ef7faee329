"""How a text becomes numbers: its words, each hashed to an id, as a name and two sizes say.

Nothing is fitted and nothing is pooled: two members that agree on the name, the vocabulary and the length read a text
alike, whatever machine and Python they have. N texts, L tokens.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from crad.errors import ConfigError, unknown_name

TokenIds = NDArray[np.int64]  # [N, L]
PADDING = 0
WORDS = "words-1"  # a change of what it does is another name
RECIPE = (
    "NFKC, casefold, words (a letter of Chinese or Japanese, or a picture sign, is one), the first `length` of them, "
    "each 1 + crc32(its UTF-8 bytes) mod (vocabulary - 1); 0 after the last"
)

# Fixed code points in place of the interpreter's idea of a letter, which follows its version of Unicode, and which
# takes the vowel signs of Hindi for gaps between words.
_NOT_SEEN = {0xAD: None, 0x200C: None, 0x200D: None, 0xFE0E: None, 0xFE0F: None}  # soft hyphen, joiners, variants
_BETWEEN = (
    "\x00-/:-@\\[-`{-\xbf\xd7\xf7\u0589\u05be\u060c\u061b\u061f\u06d4\u0964\u0965\u1361-\u1368\u1680"
    "\u2000-\u20cf\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030"
)
_ALONE = "\u2190-\u2bff\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U0001f000-\U0003ffff"
_WORD = re.compile(f"[{_ALONE}]|[^{_BETWEEN}{_ALONE}]+")


@dataclass(frozen=True)
class Tokenizer:
    """Words hashed to ids from 1 to `vocabulary` - 1; 0 fills a text up to `length`, and what is longer is cut."""

    vocabulary: int = 8192
    length: int = 64
    name: str = WORDS

    def __post_init__(self) -> None:
        if self.name != WORDS:
            raise unknown_name("tokenizer", self.name, [WORDS])
        if self.vocabulary < 2 or self.length < 1:
            raise ConfigError(f"a tokenizer of {self.vocabulary} ids and {self.length} tokens reads nothing")

    def id_of(self, word: str) -> int:
        """Return the id of a word as `words_of` gives it."""
        return 1 + crc32(word.encode("utf-8", "surrogatepass")) % (self.vocabulary - 1)

    def ids(self, texts: Iterable[str]) -> TokenIds:
        """Return the ids of texts, [N, L]."""
        known: dict[str, int] = {}  # a word comes again, and a look-up is quicker than a hash
        rows = []
        for text in texts:
            words = words_of(text)[: self.length]
            for word in words:
                if word not in known:
                    known[word] = self.id_of(word)
            rows.append(np.array([known[word] for word in words], dtype=np.int64))
        filled = np.full((len(rows), self.length), PADDING, dtype=np.int64)
        for place, row in enumerate(rows):
            filled[place, : len(row)] = row
        return filled

    def to_json(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return it as plain values, with the columns that hold the texts of a table."""
        return {**asdict(self), "columns": list(columns)}

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> Tokenizer:
        """Read what `to_json` wrote."""
        return cls(int(about["vocabulary"]), int(about["length"]), str(about["name"]))


def words_of(text: str) -> list[str]:
    """Return the words of a text, all of them, as the tokenizer `words-1` sees them."""
    plain = unicodedata.normalize("NFKC", text).casefold()  # Unicode promises that these two never change
    return _WORD.findall(plain.translate(_NOT_SEEN))
