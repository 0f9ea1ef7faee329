"""Rows as pandas' frames; pandas is imported when the first one is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crad.errors import ConfigError, install_hint

if TYPE_CHECKING:
    import pandas


def frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return the rows as a frame."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(f"to_frame needs pandas: {install_hint('notebook')}") from error
    return pandas.DataFrame.from_records(list(rows))
