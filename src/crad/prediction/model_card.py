"""What travels with a trained model so that it takes raw samples and names classes: in memory, in a run, in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from crad.data.columns import Column, columns_from_json, columns_to_json
from crad.data.dataset import Dataset
from crad.data.federated_data import FederatedData
from crad.data.kinds import KINDS, Kind
from crad.data.preprocessing import ImagePreprocessor, Preprocessor
from crad.data.tokenizer import RECIPE, Tokenizer
from crad.errors import RunError
from crad.models import Architecture, InputShape

FORMAT = "crad-model 1"
SIGNALS = ("series", "audio")
DTYPES = {"image": ("uint8", "uint16", "float32"), "series": ("float32",), "audio": ("int16", "float32")}
TWO_FACES = (
    "plain logits: for images from anywhere; logits + log_prior: for images in which classes are as frequent as among "
    "the owner's"
)
ONE_FACE = "trained with the plain loss: both faces are the same"


@dataclass(frozen=True)
class ModelCard:
    """How raw samples become a model's inputs, what its outputs are called, and where it comes from."""

    architecture: str
    class_names: tuple[str, ...]
    input_shape: tuple[
        int, ...
    ]  # of a sample: height, width, channels; a row's columns; a text's tokens; channels, time
    pad_to: int | None  # a border of zero pixels up to this side, before anything else
    mean: tuple[float, ...]  # per channel, of an image's pixel values; others' are in the network
    std: tuple[float, ...]
    log_prior: tuple[float, ...] | None = None  # of the owner's classes; None: both faces are the same
    origin: Mapping[str, Any] = field(default_factory=dict)  # client, round, method, data set, seed
    resize: int | None = None  # images of any size are brought to this side, before anything else
    kind: str = "image"  # of the data
    columns: tuple[Column, ...] = ()  # of a table: its schema
    details: Mapping[str, Any] = field(default_factory=dict)  # what else its kind must know: of texts the tokenizer
    stored_dtype: str | None = None  # of raw samples; None: as its kind usually has them
    rate: int | None = None  # of recordings: samples a second

    @property
    def kind_of_data(self) -> Kind:
        """Return what knows about samples of this kind."""
        return KINDS[self.kind]

    @property
    def num_classes(self) -> int:
        """Return C, the number of classes."""
        return len(self.class_names)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of raw samples."""
        return self.kind_of_data.dtype if self.stored_dtype is None else np.dtype(self.stored_dtype)

    @property
    def image_size(self) -> tuple[int, ...]:
        """Return height and width as the network sees them; of a series its length; nothing for a row."""
        sides = list(self.input_shape)
        del sides[self.kind_of_data.channel_axis]
        return tuple(self.pad_to or side for side in sides)

    @property
    def network_shape(self) -> InputShape:
        """Return what the network is built for."""
        sizes = tuple(column.size for column in self.columns)
        return InputShape(
            self.num_classes,
            self.input_shape[self.kind_of_data.channel_axis],
            self.image_size,
            self.kind,
            sizes,
            self.details.get("vocabulary", 0),
            self.rate,
        )

    def preprocessor(self) -> Preprocessor:
        """Return how samples become inputs, on the CPU and without augmentation."""
        return self.kind_of_data.preprocessor_of(self)

    def to_metadata(self) -> dict[str, str]:
        """Return all of it as texts, for the metadata of a file; values other than texts are JSON."""
        plain: dict[str, Any] = {
            "classes": list(self.class_names),
            **self._sample_metadata(),
            **({} if self.log_prior is None else {"log_prior": list(self.log_prior)}),
            "outputs": {"global": "probabilities", "local": "local_probabilities"},
            "origin": dict(self.origin),
        }
        return {
            "format": FORMAT,
            "architecture": self.architecture,
            "faces": ONE_FACE if self.log_prior is None else TWO_FACES,
            **{name: json.dumps(value) for name, value in plain.items()},
        }

    def _sample_metadata(self) -> dict[str, Any]:
        made = {"image": self._image_metadata, "table": self._table_metadata, "text": self._text_metadata}
        return made.get(self.kind, self._signal_metadata)()

    def _signal_metadata(self) -> dict[str, Any]:
        channels, length = self.input_shape
        scale = {"full_scale": "32768 is 1.0"} if self.dtype == np.int16 else {}
        return {
            "signal": {"kind": self.kind, "rate": self.rate},
            "input": {"dtype": str(self.dtype), "layout": "NCT", "channels": channels, "time": length, **scale},
        }

    def _image_metadata(self) -> dict[str, Any]:
        height, width, channels = self.input_shape
        return {
            "image_shape": [*self.image_size, channels],
            "mean": list(self.mean),
            "std": list(self.std),
            "input": {
                "dtype": str(self.dtype),
                "layout": "NHWC",
                "height": height,
                "width": width,
                "channels": channels,
            },
            "preprocessing": {
                "resize": self.resize,  # not in an ONNX graph, which takes images of the size above
                "pad_to": self.pad_to,
                "mean": list(self.mean),
                "std": list(self.std),
            },
        }

    def _table_metadata(self) -> dict[str, Any]:
        return {
            "columns": columns_to_json(self.columns),
            "input": {
                "dtype": "float32",
                "layout": "NF",
                "columns": [column.name for column in self.columns],
                "gap": "NaN",
                "category": "its place in the column's categories from 0 on; their number: an unknown one",
            },
        }

    def _text_metadata(self) -> dict[str, Any]:
        about = {"dtype": "int64", "layout": "NL", "length": self.input_shape[0], "made_by": RECIPE}
        return {"tokenizer": dict(self.details), "input": about}

    @classmethod
    def from_metadata(cls, about: Mapping[str, str], *, where: str) -> ModelCard:
        """Read what `to_metadata` wrote, or an earlier version; `where` opens the refusal of anything else."""
        try:
            prior = json.loads(about["log_prior"]) if "log_prior" in about else None
            card = cls(
                architecture=about["architecture"],
                class_names=tuple(map(str, json.loads(about["classes"]))),
                log_prior=None if prior is None else tuple(map(float, prior)),
                origin=json.loads(about.get("origin", "{}")),
                **_sample_form(about),
            )
            card._check()
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise RunError(f"{where} is no model that crad exported: its metadata lacks or spoils {error}") from error
        return card

    def _check(self) -> None:
        if self.kind == "image" and not (
            len(self.mean) == len(self.std) == self.input_shape[2] and min(self.input_shape) > 0
        ):
            raise ValueError("mean, std or the image shape")
        if self.kind == "table" and not self.columns:
            raise ValueError("columns")
        if self.kind in SIGNALS and not (len(self.input_shape) == 2 and min(self.input_shape) > 0):
            raise ValueError("the shape of the series")
        if self.kind == "audio" and not self.rate:
            raise ValueError("the sampling rate")
        if self.kind in DTYPES and str(self.dtype) not in DTYPES[self.kind]:
            raise ValueError("the type of the samples")
        if self.resize not in (None, self.input_shape[0]):
            raise ValueError("the size that images are brought to")
        if self.log_prior is not None and len(self.log_prior) != self.num_classes:
            raise ValueError("log_prior")
        Architecture.parse(self.architecture)

    def of(self, architecture: str, log_prior: tuple[float, ...] | None, **origin: object) -> ModelCard:
        """Return the card of one client's model among those of a run."""
        return replace(self, architecture=architecture, log_prior=log_prior, origin={**self.origin, **origin})


def _sample_form(about: Mapping[str, str]) -> dict[str, Any]:
    if "tokenizer" in about:
        return _text_form(about)
    if "signal" in about:
        return _signal_form(about)
    return _table_form(about) if "columns" in about else _image_form(about)


def _signal_form(about: Mapping[str, str]) -> dict[str, Any]:
    said, given = json.loads(about["signal"]), json.loads(about["input"])
    if said["kind"] not in SIGNALS:
        raise ValueError("the kind of the series")
    rate = said.get("rate")
    return {
        "input_shape": (int(given["channels"]), int(given["time"])),
        "pad_to": None,
        "mean": (),
        "std": (),
        "kind": said["kind"],
        "stored_dtype": str(given["dtype"]),
        "rate": None if rate is None else int(rate),
    }


def _text_form(about: Mapping[str, str]) -> dict[str, Any]:
    details = json.loads(about["tokenizer"])
    tokenizer = Tokenizer.from_json(details)
    details = tokenizer.to_json([str(name) for name in details["columns"]])
    shape = (tokenizer.length,)
    return {"input_shape": shape, "pad_to": None, "mean": (), "std": (), "kind": "text", "details": details}


def _table_form(about: Mapping[str, str]) -> dict[str, Any]:
    columns = columns_from_json(json.loads(about["columns"]))
    shape: tuple[int, ...] = (len(columns),)
    return {"input_shape": shape, "pad_to": None, "mean": (), "std": (), "kind": "table", "columns": columns}


def _image_form(about: Mapping[str, str]) -> dict[str, Any]:
    read = {name: json.loads(about[name]) for name in ("image_shape", "mean", "std")}
    shape, pad_to, resize, dtype = read["image_shape"], None, None, None
    if "input" in about:
        given, prepared = json.loads(about["input"]), json.loads(about["preprocessing"])
        shape, pad_to = [given[key] for key in ("height", "width", "channels")], prepared["pad_to"]
        resize, dtype = prepared.get("resize"), given.get("dtype")
    height, width, channels = map(int, shape)
    return {
        "input_shape": (height, width, channels),
        "pad_to": None if pad_to is None else int(pad_to),
        "mean": tuple(map(float, read["mean"])),
        "std": tuple(map(float, read["std"])),
        "resize": None if resize is None else int(resize),
        "stored_dtype": None if dtype in (None, "uint8") else str(dtype),
    }


def stored_dtype(dataset: Dataset) -> str | None:
    """Return the type of a data set's samples where it is not the usual one of their kind."""
    dtype = dataset.train_samples.dtype
    return None if dataset.kind not in DTYPES or dtype == dataset.kind_of_data.dtype else str(dtype)


def make_card(
    data: FederatedData,
    *,
    architecture: str,
    log_prior_C: Tensor | None = None,
    origin: Mapping[str, Any] | None = None,
) -> ModelCard:
    """Describe a model that was trained on this data."""
    statistics = data.preprocessor if isinstance(data.preprocessor, ImagePreprocessor) else None
    return ModelCard(
        architecture=architecture,
        class_names=data.dataset.class_names,
        input_shape=tuple(map(int, data.dataset.train_samples.shape[1:])),
        pad_to=data.dataset.pad_to,
        mean=() if statistics is None else tuple(statistics.mean.flatten().tolist()),
        std=() if statistics is None else tuple(statistics.std.flatten().tolist()),
        kind=data.dataset.kind,
        columns=data.dataset.columns,
        details=data.dataset.details,
        stored_dtype=stored_dtype(data.dataset),
        rate=data.dataset.rate,
        log_prior=None if log_prior_C is None else tuple(log_prior_C.tolist()),
        origin=origin or {},
    )
