"""What a kind of data must say of itself; the data flow asks here and knows no kind.

What only some kinds can do names them where it is done: FedGD and dreams paint images, triggers are stamped on images,
the inspector draws them, and `crad data split` writes a file for each kind.

Shapes: N samples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from crad.data.columns import Column, columns_from_json, columns_to_json
from crad.data.preprocessing import Preprocessor
from crad.data.readers.table_file import TableOptions
from crad.errors import ConfigError

if TYPE_CHECKING:
    from crad.data.dataset import Dataset
    from crad.data.readers.arrays import LabelledArrays


# Whose an option is; those that are not here are of tables.
OPTION_OF = {"resize": "images", "seconds": "recordings in folders", "site": "tables and folders"}


@dataclass(frozen=True)
class Words:
    """What people call a sample of this kind."""

    one: str
    several: str


@dataclass(frozen=True)
class ReadOptions:
    """What settings say about how a file is read; a kind refuses those that are not for it."""

    resize: int | None = None
    table: TableOptions = field(default_factory=TableOptions)
    data_dir: Path | None = None
    seconds: float | None = None  # that recordings are brought to
    kind: str | None = None  # as a person says it; None: as the source shows


OF_TABLES = tuple(vars(TableOptions()))  # what settings say of a table's columns


def refuse_options(options: ReadOptions, kind: str, name_or_path: str, *, allowed: Sequence[str]) -> None:
    """Refuse a setting that is said and means nothing for data of this kind."""
    said = {"resize": options.resize, "seconds": options.seconds, **vars(options.table)}
    usual = {"resize": None, "seconds": None, **vars(TableOptions())}
    for name, value in said.items():
        if value != usual[name] and name not in allowed:
            whose = OPTION_OF.get(name, "tables (.csv, .parquet)")
            raise ConfigError(f"{name} is for {whose}, and {name_or_path} is of kind {kind!r}: leave it out")


class HasPadding(Protocol):
    """What says how large images become before a network sees them."""

    @property
    def pad_to(self) -> int | None:
        """Return the side that images are padded to; None: they are not."""
        ...


class SampleForm(HasPadding, Protocol):
    """What a trained model says of the samples that it takes."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of a raw sample."""
        ...

    @property
    def mean(self) -> tuple[float, ...]:
        """Return the mean per channel, of images."""
        ...

    @property
    def std(self) -> tuple[float, ...]:
        """Return the standard deviation per channel, of images."""
        ...

    @property
    def resize(self) -> int | None:
        """Return the side that images of any size are brought to; None: they must have their size."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the schema, of a table."""
        ...

    @property
    def details(self) -> Mapping[str, Any]:
        """Return what else its kind must know of a sample, as plain values."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of raw samples."""
        ...

    @property
    def rate(self) -> int | None:
        """Return the samples a second, of recordings."""
        ...


class Kind(Protocol):
    """One kind of data: how it is read and checked, how samples become inputs, and how a person looks at one.

    The last four, which are about arrays in memory and files of trained models, a new kind may leave as they are.
    """

    name: str
    words: Words
    models: tuple[str, ...]  # families that its clients get in turn where nobody says others
    input_name: str  # of an exported graph
    dtype: np.dtype[Any]  # of its samples, where a data set does not have another
    channel_axis: int  # which of a sample's axes its channels are
    takes_arrays: bool = False  # arrays of numbers in memory can be said to be of it, by `kind=`

    def is_source(self, name_or_path: str) -> bool:
        """Return whether a data set of this name, or at this path, is of this kind; nothing is read to tell."""
        ...

    def read(self, name_or_path: str, options: ReadOptions) -> Dataset:
        """Read and check a data set."""
        ...

    def check(self, samples: NDArray[Any], dataset: Dataset, *, where: str) -> None:
        """Refuse, with a `DataError`, an array that holds no samples of this kind."""
        ...

    def to_tensor(self, samples: NDArray[Any], form: HasPadding) -> Tensor:
        """Return samples as they lie on a device: not yet inputs."""
        ...

    def preprocessor(self, dataset: Dataset, *, is_augmented: bool, device: str) -> Preprocessor:
        """Return how samples become inputs, for everybody alike."""
        ...

    def batch(self, x: object, form: SampleForm) -> NDArray[Any]:
        """Return whatever a user gives a model as samples of its form."""
        ...

    def read_inputs(self, path: Path, form: SampleForm, *, key: str | None) -> tuple[list[str], NDArray[Any]]:
        """Return what samples in a file are called (perhaps nothing), and the samples, to predict on."""
        ...

    def preprocessor_of(self, form: SampleForm) -> Preprocessor:
        """Return how samples become inputs of a trained model, on the CPU and without augmentation."""
        ...

    def picture(self, dataset: Dataset, sample: NDArray[Any]) -> dict[str, Any]:
        """Return how the inspector shows one sample."""
        ...

    def features(self, dataset: Dataset, samples: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Return a few plain numbers [N] of samples by what they are called, NaN where one has none.

        By them the report shows how clients' samples differ.
        """
        ...

    def schema(self, dataset: Dataset) -> dict[str, Any]:
        """Return what members of a federation would have to agree on, as plain values."""
        ...

    def from_arrays(self, given: LabelledArrays, *, rate: int | None, augmentation: str | None) -> Dataset:
        """Return a data set of arrays that a person said are of this kind, where it takes any."""
        raise ConfigError(f"kind {self.name!r} takes no arrays: leave kind out, or name a file")

    def card_metadata(self, form: SampleForm) -> dict[str, Any]:
        """Return what a file of a trained model says of the samples that it takes, as plain values."""
        about = {"kind": self.name, "rate": form.rate, "details": dict(form.details)}
        return {
            "samples": {**about, "columns": columns_to_json(form.columns)},
            "input": {"dtype": str(form.dtype), "shape": list(form.input_shape)},
        }

    def card_form(self, about: Mapping[str, str]) -> dict[str, Any] | None:
        """Read that back as fields of a model card; None: the file is about another kind of data."""
        said = json.loads(about.get("samples", "{}"))
        if said.get("kind") != self.name:
            return None
        given = json.loads(about["input"])
        return {
            **form_fields(self.name, tuple(map(int, given["shape"]))),
            "columns": columns_from_json(said["columns"]),
            "details": dict(said["details"]),
            "stored_dtype": str(np.dtype(given["dtype"])),
            "rate": None if said["rate"] is None else int(said["rate"]),
        }

    def preparation(self, form: SampleForm) -> nn.Module:
        """Return what makes inputs of raw samples in an exported graph: nothing, where they are inputs."""
        return nn.Identity()


def form_fields(kind: str, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields of a model card that every kind has; only images are prepared before the network."""
    if not input_shape or min(input_shape) < 1:
        raise ValueError("the shape of the samples")
    return {"kind": kind, "input_shape": input_shape, "pad_to": None, "mean": (), "std": ()}
