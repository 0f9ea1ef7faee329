"""The kinds of data, one file each. A new one is its file, a line here, and its families in `crad.models`."""

from __future__ import annotations

from crad.data.kinds.image import ImageKind
from crad.data.kinds.kind import Kind, ReadOptions, Words
from crad.data.kinds.table import TableKind
from crad.data.kinds.text import TextKind

# Whoever comes first and knows a source reads it; images take whatever is left, and say what is wrong with it.
KINDS: dict[str, Kind] = {kind.name: kind for kind in (TextKind(), TableKind(), ImageKind())}


def kind_of_source(name_or_path: str, options: ReadOptions | None = None) -> Kind:
    """Return the kind of a known data set, a file or a folder, by its name; with text columns it holds texts."""
    if options is not None and options.table.text:
        return KINDS["text"]
    return next(kind for kind in KINDS.values() if kind.is_source(name_or_path))


__all__ = ["KINDS", "Kind", "ReadOptions", "Words", "kind_of_source"]
