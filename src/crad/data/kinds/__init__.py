"""The kinds of data, one file each. A new one is its file, a line here, and a module of networks for it."""

from __future__ import annotations

from crad.data.kinds.audio import AudioKind
from crad.data.kinds.image import ImageKind
from crad.data.kinds.kind import Kind, ReadOptions, Words
from crad.data.kinds.series import SeriesKind
from crad.data.kinds.table import TableKind
from crad.data.kinds.text import TextKind
from crad.data.known_files import KNOWN_FILES
from crad.errors import unknown_name

# Whoever comes first and knows a source reads it; images take whatever is left, and say what is wrong with it.
KINDS: dict[str, Kind] = {kind.name: kind for kind in (TextKind(), TableKind(), AudioKind(), SeriesKind(), ImageKind())}


def kind_of_source(name_or_path: str, options: ReadOptions | None = None) -> Kind:
    """Return the kind of a data set, a file or a folder, as it is said or by its name; with text columns it is text."""
    options = options or ReadOptions()
    if options.kind is not None and options.kind not in KINDS:
        raise unknown_name("kind", options.kind, KINDS)
    if options.kind is not None:
        return KINDS[options.kind]
    if name_or_path in KNOWN_FILES:
        return KINDS[KNOWN_FILES[name_or_path].kind]
    if options.table.text:
        return KINDS["text"]
    return next(kind for kind in KINDS.values() if kind.is_source(name_or_path))


__all__ = ["KINDS", "Kind", "ReadOptions", "Words", "kind_of_source"]
