"""What every kind of data must be able to say of an agreement about it; `crad.network` and `crad.site` know no kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from crad.data.agreed.own_table import ColumnMapping, LabelMapping
from crad.data.dataset import Dataset
from crad.data.preprocessing import Preprocessor
from crad.data.site_data import OwnClasses, OwnData

if TYPE_CHECKING:
    from crad.data.kinds import Words


@dataclass(frozen=True)
class OwnFile:
    """Where a member's own data lies, and what its peer.toml says of how that differs from the agreement."""

    source: str
    classes: OwnClasses | None = None  # what labels 0, 1, 2, ... are called here
    columns: Mapping[str, ColumnMapping] = field(default_factory=dict)  # of a table, by agreed name
    label: LabelMapping = field(default_factory=LabelMapping)


@dataclass(frozen=True)
class Draft:
    """Class names, and what else of an agreement follows from the data, as plain values."""

    classes: tuple[str, ...]
    agreed: dict[str, Any]


class DataSchema(Protocol):
    """What all have agreed on about their samples."""

    @property
    def kind(self) -> str:
        """Return the name of the kind of data."""
        ...

    @property
    def words(self) -> Words:
        """Return what people call a sample."""
        ...

    def describe(self) -> str:
        """Return it in a few words: "images of 28x28x3"."""
        ...

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse agreed settings that cannot be for such samples."""
        ...

    def travels_along(self, settings: Mapping[str, Any]) -> str:
        """Return what of a member's data every snapshot has in it beside trained weights; empty where it is nothing."""
        ...

    def empty_dataset(self, classes: Sequence[str]) -> Dataset:
        """Return a data set of such samples without any, from which the size of networks follows."""
        ...

    def preprocessor(self, device: str) -> Preprocessor:
        """Return how samples become inputs, for everybody alike."""
        ...

    def load(self, own: OwnFile, *, classes: Sequence[str], held_out: float, rng: np.random.Generator) -> OwnData:
        """Read a member's own file under this schema; refuse it with what to correct, or to write into peer.toml."""
        ...


class StoredSchema(DataSchema, Protocol):
    """One that stands under [data] of an agreement; that of images stands outside, as it ever did."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values, the same for what means the same."""
        ...
