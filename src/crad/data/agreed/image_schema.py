"""Images between organisations: one shape, one normalisation, one augmentation for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crad.data.agreed.data_schema import Draft, OwnFile
from crad.data.agreed.own_data import OwnData, draft_dataset, load_own_data
from crad.data.columns import check_standardize
from crad.data.dataset import Dataset
from crad.data.kinds import KINDS, ReadOptions, Words, kind_of_source
from crad.data.kinds.kind import refuse_options
from crad.data.preprocessing import Preprocessor, make_preprocessor
from crad.errors import DataError


@dataclass(frozen=True)
class ImageSchema:
    """Height, width and channels as a model sees them, and how pixels become inputs."""

    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: str
    kind: str = "image"

    @property
    def words(self) -> Words:
        """Return what people call a sample."""
        return KINDS["image"].words

    def describe(self) -> str:
        """Return it in a few words."""
        return f"images of {'x'.join(map(str, self.image_shape))}"

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse what is for tables."""
        check_standardize(settings.get("standardize", "own"), ())

    def travels_along(self, settings: Mapping[str, Any]) -> str:
        """Return nothing: normalisation is agreed on."""
        return ""

    def empty_dataset(self, classes: Sequence[str]) -> Dataset:
        """Return no images of this shape."""
        images, labels = np.empty((0, *self.image_shape), np.uint8), np.empty(0, np.int64)
        return Dataset("agreed", images, labels, images, labels, tuple(classes))

    def preprocessor(self, device: str) -> Preprocessor:
        """Return the agreed normalisation and augmentation."""
        return make_preprocessor(self.mean, self.std, augmentation=self.augmentation, device=device)

    def load(self, own: OwnFile, *, classes: Sequence[str], held_out: float, rng: np.random.Generator) -> OwnData:
        """Read an .npz file, a folder of class folders or a known data set."""
        if kind_of_source(own.source).name != "image":
            raise DataError(
                f"{own.source}: the federation agreed on {self.describe()}: name an .npz file or a folder of class "
                "folders as data in peer.toml"
            )
        own.refuse_columns(self.words.several)
        return load_own_data(
            own.source,
            classes=classes,
            image_shape=self.image_shape,
            augmentation=self.augmentation,
            held_out=held_out,
            rng=rng,
            own_classes=own.classes,
            meanings=own.label.classes,
        )


def draft_images(own: OwnFile, options: ReadOptions) -> Draft:
    """Take class names, shape and normalisation from the own images."""
    refuse_options(options, "image", own.source, allowed=())
    dataset = draft_dataset(own.source, own_classes=own.classes)
    return Draft(dataset.class_names, dataset.kind_of_data.schema(dataset))
