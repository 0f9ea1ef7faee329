"""Texts between organisations: which columns hold them, and how everybody makes ids of their words.

The schema is a text that somebody else may have written: its numbers are bounded before anything is built from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from crad.config import TextLine
from crad.data.agreed.data_schema import Draft, OwnFile, WrittenSchema
from crad.data.agreed.own_data import OwnData
from crad.data.agreed.own_text import load_own_texts
from crad.data.dataset import Dataset
from crad.data.kinds import ReadOptions
from crad.data.kinds.kind import OF_TABLES, refuse_options
from crad.data.kinds.table import check_columns_said, raw_table_of
from crad.data.kinds.text import TextPreprocessor, joined_texts
from crad.data.readers.table_file import labels_of
from crad.data.tokenizer import WORDS, Tokenizer
from crad.errors import ConfigError

MAX_TEXT_COLUMNS = 100
MAX_VOCABULARY, MAX_LENGTH = 1_000_000, 8192  # as the settings of a simulation


class TextSchema(WrittenSchema):
    """The columns whose texts are one text, in this order, which one is the label, and the tokenizer."""

    kind: Literal["text"] = "text"
    label: TextLine
    text: Annotated[tuple[TextLine, ...], Field(min_length=1, max_length=MAX_TEXT_COLUMNS, strict=False)]
    tokenizer: Literal["words-1"] = "words-1"
    vocabulary: Annotated[int, Field(ge=2, le=MAX_VOCABULARY)]
    text_length: Annotated[int, Field(ge=1, le=MAX_LENGTH)]

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        [(name, count)] = Counter(self.text).most_common(1)
        if count > 1:
            raise ValueError(f"text: {name!r} stands there twice")
        if self.label in self.text:
            raise ValueError(f"label = {self.label!r}: is among the texts too; nobody may learn from the label")
        return self

    @property
    def augmentation(self) -> str:
        """Return "none": nothing is changed at random."""
        return "none"

    def describe(self) -> str:
        """Return it in a few words."""
        return (
            f"texts of {self.text_length} words in {', '.join(map(repr, self.text))}, {self.vocabulary} ids, label "
            f"{self.label!r}"
        )

    def travels_along(self, settings: Mapping[str, Any]) -> str:
        """Return what embeddings give away: those that no text has touched are as the agreed seed drew them."""
        return "which words occur in the training texts (embeddings of all others stay as they were drawn)"

    def empty_dataset(self, classes: Sequence[str]) -> Dataset:
        """Return no texts of this tokenizer."""
        ids, labels = np.empty((0, self.text_length), np.int64), np.empty(0, np.int64)
        details = Tokenizer(self.vocabulary, self.text_length, self.tokenizer).to_json(self.text)
        return Dataset("agreed", ids, labels, ids, labels, tuple(classes), kind="text", details=details)

    def preprocessor(self, device: str) -> TextPreprocessor:
        """Return one that changes nothing: texts are ids since they were read."""
        return TextPreprocessor(torch.device(device))

    def load(self, own: OwnFile, *, classes: Sequence[str], held_out: float, rng: np.random.Generator) -> OwnData:
        """Read a table's texts, under the names that peer.toml says its columns have."""
        agreed = self.empty_dataset(classes)
        return load_own_texts(own, agreed, text=self.text, label=self.label, held_out=held_out, rng=rng)


def draft_texts(own: OwnFile, options: ReadOptions) -> Draft:
    """Take columns and classes from the own file as it lies there, and the tokenizer's sizes from what is said."""
    table = options.table
    refuse_options(options, "text", own.source, allowed=OF_TABLES)
    check_columns_said(table, where=own.source)
    if table.site is not None or table.test_data is not None:
        said = "site" if table.site is not None else "test_data"
        raise ConfigError(f"{said} is for simulations: between organisations every member has a file of its own")
    raw = raw_table_of(own.source)
    joined_texts(raw, table.text)  # refused here if there are none
    sizes = {"vocabulary": table.vocabulary, "text_length": table.text_length}
    data = {"kind": "text", "label": table.label, "text": list(table.text), "tokenizer": WORDS, **sizes}
    return Draft(tuple(sorted(set(labels_of(raw, table)))), {"data": data})
