"""A member's own texts under the agreed tokenizer, in columns of whatever names its own peer.toml says they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from crad.data.agreed.own_data import OwnData, OwnSamples, divide_parts
from crad.data.agreed.own_labels import free_columns, labels_of_table
from crad.data.agreed.peer_lines import ColumnMapping, check_known, nearest, other_columns, toml_key, toml_line
from crad.data.checks.text_check import check_texts
from crad.data.dataset import Dataset
from crad.data.kinds.table import raw_table_of
from crad.data.kinds.text import joined_texts
from crad.data.readers.table_file import SUFFIXES, RawTable, TableOptions
from crad.data.tokenizer import Tokenizer
from crad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from crad.data.agreed.data_schema import OwnFile


def load_own_texts(
    own: OwnFile, agreed: Dataset, *, text: Sequence[str], label: str, held_out: float, rng: np.random.Generator
) -> OwnData:
    """Read a member's texts as ids of the agreed tokenizer and classes, which an empty data set has.

    Its rows are divided as those of a client in a simulation: the same `rng` over as many rows gives the same parts.
    """
    if not own.source.lower().endswith(SUFFIXES):
        raise DataError(
            f"{own.source}: the federation agreed on texts in a table: name a {', '.join(SUFFIXES)} file as data in "
            "peer.toml"
        )
    table = raw_table_of(own.source)
    _check_mapping(own, text, label=label)
    free = free_columns(table, own, text, label=label)
    labels = labels_of_table(table, own, free, label=label, classes=agreed.class_names)
    names = _own_columns(table, own, text, free)
    tokenizer = Tokenizer.from_json(agreed.details)
    ids = tokenizer.ids(joined_texts(table, names))
    found = divide_parts([OwnSamples(ids, labels)], agreed, held_out=held_out, rng=rng, where=table.where)
    said = TableOptions(own.label.name or label, text=names, vocabulary=tokenizer.vocabulary)
    report = check_texts(table, replace(said, text_length=tokenizer.length))
    understood = (
        f"{report.texts} in {', '.join(map(repr, names))}: median {report.median_words:g} words, longest "
        f"{report.longest_words}; {report.cut_texts} are longer than {report.length} and cut"
    )
    return replace(found, understood=understood, passed_over=free, warnings=report.warnings)


def _check_mapping(own: OwnFile, text: Sequence[str], *, label: str) -> None:
    check_known(own.columns, text)
    for name, mapping in own.columns.items():
        where = f"columns.{toml_key(name)} in peer.toml"
        if mapping not in (ColumnMapping(name=mapping.name), ColumnMapping(absent=True)):
            raise ConfigError(f"{where}: holds texts, of which only name can be said, or absent: remove the rest")
        if mapping.name == (own.label.name or label):
            raise ConfigError(f"{where}: {mapping.name!r} is the label here, and nobody may learn from it")
    if all(own.columns.get(name, ColumnMapping()).absent for name in text):
        raise ConfigError(f"columns.{toml_key(text[0])} in peer.toml: is absent, and so there is no text at all")


def _own_columns(table: RawTable, own: OwnFile, text: Sequence[str], free: Sequence[str]) -> tuple[str, ...]:
    """Return what the agreed columns are called here, those that are there."""
    names = []
    for agreed in text:
        mapping = own.columns.get(agreed, ColumnMapping())
        name = mapping.name or agreed
        if not mapping.absent and name not in table.names:
            _refuse_lacking(table, agreed, name, free, is_only=len(text) == 1)
        names += [] if mapping.absent else [name]
    return tuple(names)


def _refuse_lacking(table: RawTable, agreed: str, name: str, free: Sequence[str], *, is_only: bool) -> NoReturn:
    said = f"the column {name!r} of peer.toml" if name != agreed else f"the agreed column {name!r}"
    otherwise = "" if is_only else f", or {toml_line('columns', agreed, absent=True)} if there is no such text here"
    raise DataError(
        f"{table.where}: lacks {said}, which holds texts; {other_columns(free)}: write "
        f"{toml_line('columns', agreed, name=nearest(name, free))} into peer.toml, with its name here{otherwise}"
    )
