"""What travels with a trained model so that it takes raw images and names classes: in memory, in a run, in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from crad.data.federated_data import FederatedData
from crad.data.preprocessing import Preprocessor, make_preprocessor
from crad.errors import RunError
from crad.models import Architecture, InputShape

FORMAT = "crad-model 1"
TWO_FACES = (
    "plain logits: for images from anywhere; logits + log_prior: for images in which classes are as frequent as among "
    "the owner's"
)
ONE_FACE = "trained with the plain loss: both faces are the same"


@dataclass(frozen=True)
class ModelCard:
    """How raw images become a model's inputs, what its outputs are called, and where it comes from."""

    architecture: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, int, int]  # of a raw image: height, width, channels
    pad_to: int | None  # a border of zero pixels up to this side, before anything else
    mean: tuple[float, ...]  # per channel, of pixel values 0..255
    std: tuple[float, ...]
    log_prior: tuple[float, ...] | None = None  # of the owner's classes; None: both faces are the same
    origin: Mapping[str, Any] = field(default_factory=dict)  # client, round, method, data set, seed
    resize: int | None = None  # images of any size are brought to this side, before anything else

    @property
    def num_classes(self) -> int:
        """Return C, the number of classes."""
        return len(self.class_names)

    @property
    def image_size(self) -> tuple[int, int]:
        """Return height and width as the network sees them."""
        height, width, _ = self.input_shape
        return (self.pad_to or height, self.pad_to or width)

    @property
    def network_shape(self) -> InputShape:
        """Return what the network is built for."""
        return InputShape(self.num_classes, self.input_shape[2], self.image_size)

    def preprocessor(self) -> Preprocessor:
        """Return the normalisation, on the CPU and without augmentation."""
        return make_preprocessor(self.mean, self.std, augmentation="none", device="cpu")

    def to_metadata(self) -> dict[str, str]:
        """Return all of it as texts, for the metadata of a file; values other than texts are JSON."""
        height, width, channels = self.input_shape
        plain: dict[str, Any] = {
            "classes": list(self.class_names),
            "image_shape": [*self.image_size, channels],
            "mean": list(self.mean),
            "std": list(self.std),
            **({} if self.log_prior is None else {"log_prior": list(self.log_prior)}),
            "input": {"dtype": "uint8", "layout": "NHWC", "height": height, "width": width, "channels": channels},
            "preprocessing": {
                "resize": self.resize,  # not in an ONNX graph, which takes images of the size above
                "pad_to": self.pad_to,
                "mean": list(self.mean),
                "std": list(self.std),
            },
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
            read = {name: json.loads(about[name]) for name in ("classes", "image_shape", "mean", "std")}
            shape, pad_to, resize = read["image_shape"], None, None
            if "input" in about:
                given, prepared = json.loads(about["input"]), json.loads(about["preprocessing"])
                shape, pad_to = [given[key] for key in ("height", "width", "channels")], prepared["pad_to"]
                resize = prepared.get("resize")
            prior = json.loads(about["log_prior"]) if "log_prior" in about else None
            height, width, channels = map(int, shape)
            card = cls(
                architecture=about["architecture"],
                class_names=tuple(map(str, read["classes"])),
                input_shape=(height, width, channels),
                pad_to=None if pad_to is None else int(pad_to),
                mean=tuple(map(float, read["mean"])),
                std=tuple(map(float, read["std"])),
                log_prior=None if prior is None else tuple(map(float, prior)),
                origin=json.loads(about.get("origin", "{}")),
                resize=None if resize is None else int(resize),
            )
            card._check()
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise RunError(f"{where} is no model that crad exported: its metadata lacks or spoils {error}") from error
        return card

    def _check(self) -> None:
        if not (len(self.mean) == len(self.std) == self.input_shape[2] and min(self.input_shape) > 0):
            raise ValueError("mean, std or the image shape")
        if self.resize not in (None, self.input_shape[0]):
            raise ValueError("the size that images are brought to")
        if self.log_prior is not None and len(self.log_prior) != self.num_classes:
            raise ValueError("log_prior")
        Architecture.parse(self.architecture)

    def of(self, architecture: str, log_prior: tuple[float, ...] | None, **origin: object) -> ModelCard:
        """Return the card of one client's model among those of a run."""
        return replace(self, architecture=architecture, log_prior=log_prior, origin={**self.origin, **origin})


def make_card(
    data: FederatedData,
    *,
    architecture: str,
    log_prior_C: Tensor | None = None,
    origin: Mapping[str, Any] | None = None,
) -> ModelCard:
    """Describe a model that was trained on this data."""
    height, width, channels = data.dataset.train_images.shape[1:]
    return ModelCard(
        architecture=architecture,
        class_names=data.dataset.class_names,
        input_shape=(int(height), int(width), int(channels)),
        pad_to=data.dataset.pad_to,
        mean=tuple(data.preprocessor.mean.flatten().tolist()),
        std=tuple(data.preprocessor.std.flatten().tolist()),
        log_prior=None if log_prior_C is None else tuple(log_prior_C.tolist()),
        origin=origin or {},
    )
