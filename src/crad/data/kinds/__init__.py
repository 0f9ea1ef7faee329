"""The kinds of data, one file each. A new one is its file, a line here, and its families in `crad.models`."""

from __future__ import annotations

from crad.data.kinds.audio import AudioKind
from crad.data.kinds.image import ImageKind
from crad.data.kinds.kind import Kind, ReadOptions, Words
from crad.data.kinds.series import SeriesKind
from crad.data.kinds.table import TableKind
from crad.errors import unknown_name

# Whoever comes first and knows a source reads it; images take whatever is left, and say what is wrong with it.
KINDS: dict[str, Kind] = {kind.name: kind for kind in (TableKind(), AudioKind(), SeriesKind(), ImageKind())}


def kind_of_source(name_or_path: str, options: ReadOptions | None = None) -> Kind:
    """Return the kind of a known data set, a file or a folder: as it is said, or by its name."""
    said = None if options is None else options.kind
    if said is not None and said not in KINDS:
        raise unknown_name("kind", said, KINDS)
    if said is not None:
        return KINDS[said]
    return next(one for one in KINDS.values() if one.is_source(name_or_path))


__all__ = ["KINDS", "Kind", "ReadOptions", "Words", "kind_of_source"]
