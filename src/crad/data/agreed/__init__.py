"""What members of a federation agree on about their samples, and how one member's own file becomes that.

One file per kind of data, or for two that are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from crad.data.agreed.data_schema import DataSchema, Draft, OwnFile, StoredSchema
from crad.data.agreed.image_schema import ImageSchema, draft_images
from crad.data.agreed.peer_lines import ColumnMapping, LabelMapping
from crad.data.agreed.signal_schema import AudioSchema, SeriesSchema, draft_recordings, draft_series
from crad.data.agreed.table_schema import TableSchema, draft_table
from crad.data.agreed.text_schema import TextSchema, draft_texts
from crad.data.kinds import ReadOptions, kind_of_source
from crad.errors import first_fault

# By kind: the first says what stands under [data] of an agreement (of images it stands outside, as ever), the second
# makes it from the data of the member that invites.
SCHEMAS: dict[str, Callable[[Mapping[str, Any]], StoredSchema]] = {
    "table": TableSchema.from_plain,
    "text": TextSchema.from_plain,
    "series": SeriesSchema.from_plain,
    "audio": AudioSchema.from_plain,
}
DRAFTS: dict[str, Callable[[OwnFile, ReadOptions], Draft]] = {
    "image": draft_images,
    "table": draft_table,
    "text": draft_texts,
    "series": draft_series,
    "audio": draft_recordings,
}


def complete_schema(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an agreement says under [data], checked and in full; ValueError says what is wrong in one line."""
    return read_schema(given).to_plain()


def read_schema(given: Mapping[str, Any]) -> StoredSchema:
    """Return the schema under [data]; ValueError says what is wrong in one line."""
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in SCHEMAS:
        raise ValueError(f"kind = {str(kind)[:100]!r}: expected {' or '.join(SCHEMAS)} (of images there is no [data])")
    try:
        return SCHEMAS[kind](given)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None


def draft_schema(own: OwnFile, options: ReadOptions) -> Draft:
    """Return class names and schema as the member that invites brings them."""
    return DRAFTS[kind_of_source(own.source, options).name](own, options)


__all__ = [
    "AudioSchema",
    "ColumnMapping",
    "DataSchema",
    "Draft",
    "ImageSchema",
    "LabelMapping",
    "OwnFile",
    "ReadOptions",
    "SeriesSchema",
    "TableSchema",
    "TextSchema",
    "complete_schema",
    "draft_schema",
    "read_schema",
]
