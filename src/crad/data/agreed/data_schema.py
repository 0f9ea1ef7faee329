"""What every kind of data must be able to say of an agreement about it; `crad.network` and `crad.site` know no kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict

from crad.data.agreed.own_data import OwnClasses, OwnData
from crad.data.agreed.peer_lines import ColumnMapping, LabelMapping
from crad.data.columns import check_standardize
from crad.data.dataset import Dataset
from crad.data.kinds import KINDS, Words
from crad.data.preprocessing import Preprocessor
from crad.errors import ConfigError


@dataclass(frozen=True)
class OwnFile:
    """Where a member's own data lies, and what its peer.toml says of how that differs from the agreement."""

    source: str
    classes: OwnClasses | None = None  # what labels 0, 1, 2, ... are called here
    columns: Mapping[str, ColumnMapping] = field(default_factory=dict)  # of a table, by agreed name
    label: LabelMapping = field(default_factory=LabelMapping)

    def refuse_columns(self, samples: str) -> None:
        """Refuse what peer.toml says of a table's columns where samples are none."""
        said = "columns" if self.columns else "label.name" if self.label.name is not None else None
        if said is not None:
            raise ConfigError(f"{said} in peer.toml is for tables, and the federation agreed on {samples}: remove it")


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

    @property
    def augmentation(self) -> str:
        """Return how training samples are changed at random, for everybody alike; "none": they are not."""
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


class WrittenSchema(BaseModel):
    """What schemas under [data] share: how they are read, written and checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: str

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> Self:
        """Check plain values of a file; pydantic's ValidationError says what is wrong."""
        return cls.model_validate(dict(given))

    def to_plain(self) -> dict[str, Any]:
        """Return plain values, the same for what means the same."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def words(self) -> Words:
        """Return what people call a sample."""
        return KINDS[self.kind].words

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse agreed settings that are for tables."""
        check_standardize(settings.get("standardize", "own"), ())
