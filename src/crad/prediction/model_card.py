"""What travels with a trained model so that it takes raw samples and names classes: in memory, in a run, in a file."""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from crad.data.columns import Column
from crad.data.dataset import Dataset
from crad.data.federated_data import FederatedData
from crad.data.kinds import KINDS, Kind
from crad.data.preprocessing import ImagePreprocessor, Preprocessor
from crad.errors import RunError, printable
from crad.models import Architecture, InputShape

FORMAT = "crad-model 1"
TWO_FACES = (
    "plain logits: for images from anywhere; logits + log_prior: for images in which classes are as frequent as among "
    "the owner's"
)
LARGEST_SAMPLE = 2**26  # values of one sample: a gray image of 8192 x 8192
LARGEST_NUMBER, SMALLEST_NUMBER = 1e30, 1e-30  # that a network's float32 can still compute with
# Characters that a terminal takes for orders or lines, or that turn the direction of what follows.
CONTROLS = frozenset(("Cc", "Cs", "Zl", "Zp"))
TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ONE_FACE = "trained with the plain loss: both faces are the same"
# What reading values that anybody may have written ends in.
SPOILT = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)


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
            **self.kind_of_data.card_metadata(self),
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

    @classmethod
    def from_metadata(cls, about: Mapping[str, str], *, where: str) -> ModelCard:
        """Read what `to_metadata` wrote, or an earlier version; `where` opens the refusal of anything else."""
        try:
            prior = json.loads(about["log_prior"]) if "log_prior" in about else None
            card = cls(
                architecture=about["architecture"],
                class_names=_class_names(json.loads(about["classes"])),
                log_prior=None if prior is None else tuple(map(float, prior)),
                origin=json.loads(about.get("origin", "{}")),
                **_sample_form(about),
            )
            card._check()
        except SPOILT as error:
            fault = "too deeply nested JSON" if isinstance(error, RecursionError) else printable(error)
            raise RunError(f"{where} is no model that crad exported: its metadata lacks or spoils {fault}") from error
        return card

    def _check(self) -> None:
        check_class_names(self.class_names)
        if self.log_prior is not None:
            # A class that is not there has -1e9.
            is_usable = all(abs(value) <= LARGEST_NUMBER for value in self.log_prior)
            if len(self.log_prior) != self.num_classes or not is_usable:
                raise ValueError("log_prior")
        if not isinstance(self.origin, dict):
            raise ValueError("origin")
        if not all(abs(value) <= LARGEST_NUMBER for value in self.mean):
            raise ValueError("mean")
        if not all(SMALLEST_NUMBER <= value <= LARGEST_NUMBER for value in self.std):
            raise ValueError("std")
        self._check_size()
        Architecture.parse(self.architecture)

    def _check_size(self) -> None:
        """Refuse samples so large that nobody has any, before anything is made of that size."""
        channels = self.input_shape[self.kind_of_data.channel_axis]
        for shape in (self.input_shape, (channels, *self.image_size)):
            if min(shape) < 1 or math.prod(shape) > LARGEST_SAMPLE:
                sides = "x".join(map(str, shape))
                raise ValueError(f"the shape of the samples: {sides} values, at most {LARGEST_SAMPLE} can be")
        if self.dtype.kind not in "iuf":
            raise ValueError("the type of the samples")

    def of(self, architecture: str, log_prior: tuple[float, ...] | None, **origin: object) -> ModelCard:
        """Return the card of one client's model among those of a run."""
        return replace(self, architecture=architecture, log_prior=log_prior, origin={**self.origin, **origin})


def _class_names(said: object) -> tuple[str, ...]:
    if not isinstance(said, list) or not said:
        raise ValueError("classes")
    return tuple(map(str, said))


def check_class_names(names: Sequence[str]) -> None:
    """Refuse, with a ValueError, a name twice, and names that would do something to a terminal or hide what is said."""
    for name in names:
        if any(unicodedata.category(one) in CONTROLS or one in TURNING for one in name):
            raise ValueError(f"a class name with control characters, '{printable(name)}'")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"the class name '{twice}' twice")


def _sample_form(about: Mapping[str, str]) -> dict[str, Any]:
    forms = (kind.card_form(about) for kind in KINDS.values())
    return next(form for form in forms if form is not None)


def stored_dtype(dataset: Dataset) -> str | None:
    """Return the type of a data set's samples where it is not the usual one of their kind."""
    dtype = dataset.train_samples.dtype
    return None if dtype == dataset.kind_of_data.dtype else str(dtype)


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
