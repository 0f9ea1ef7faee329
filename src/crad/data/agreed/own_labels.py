"""The label of a member's own table, of rows or of texts: its cells as the agreed classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crad.data.agreed.own_data import AS_AGREED
from crad.data.agreed.peer_lines import SHOWN, ColumnMapping, listed, nearest, other_columns, quoted, toml_line
from crad.data.readers.table_file import RawTable, filled, plain_code, with_gaps
from crad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from crad.data.agreed.data_schema import OwnFile


def free_columns(table: RawTable, own: OwnFile, columns: Sequence[str], *, label: str) -> tuple[str, ...]:
    """Return the columns of a file that are neither the label nor one of the agreed ones."""
    mappings = [(name, own.columns.get(name, ColumnMapping())) for name in columns]
    taken = {own.label.name or label, *(one.name or name for name, one in mappings if not one.absent)}
    return tuple(name for name in table.names if name not in taken)


def labels_of_table(
    table: RawTable, own: OwnFile, free: Sequence[str], *, label: str, classes: Sequence[str]
) -> NDArray[np.int64]:
    """Return the agreed number of every row's class."""
    name = own.label.name or label
    if name not in table.names:
        which = f"the label {name!r} of peer.toml" if own.label.name else f"the agreed label {label!r}"
        raise DataError(
            f"{table.where}: lacks {which}; {other_columns(free)}: write "
            f"{toml_line('label', name=nearest(name, free))} into peer.toml, with its name here"
        )
    cells = filled(table, name, with_gaps(table.column(name), None))
    means = {**_numbered(own, classes), **own.label.classes}
    for value, agreed_class in means.items():
        if agreed_class not in classes:
            raise ConfigError(
                f"classes in peer.toml: label {quoted(value)} means {quoted(agreed_class)} there, the agreed classes "
                f"are {listed(classes)}"
            )
    places = {one: place for place, one in enumerate(classes)}
    said = [means.get(cell, means.get(plain_code(cell), cell)) for cell in cells]
    unknown = list(dict.fromkeys(cell for cell, one in zip(cells, said, strict=True) if one not in places))
    if unknown:
        line = toml_line("label", classes=dict.fromkeys(unknown[:SHOWN], "..."))
        raise DataError(
            f"{table.where}: label column {name!r} holds {listed(unknown)}, the agreed classes are {listed(classes)}: "
            f"write {line} into peer.toml"
        )
    return np.array([places[one] for one in said], dtype=np.int64)


def _numbered(own: OwnFile, classes: Sequence[str]) -> dict[str, str]:
    """Return what labels 0, 1, 2, ... mean where peer.toml has a list of classes, or says that it is the agreed one."""
    names = classes if own.classes == AS_AGREED else own.classes or ()
    return {str(number): name for number, name in enumerate(names)}
