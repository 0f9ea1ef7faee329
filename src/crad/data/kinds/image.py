"""Images: [N, H, W, C] of 8 or 16 bits or floats, padded, augmented and normalised by the data set's statistics."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crad.data.contact_sheet import as_bytes, contact_sheet
from crad.data.dataset import Images, check_images
from crad.data.kinds.kind import HasPadding, ReadOptions, SampleForm, Words, refuse_options
from crad.data.preprocessing import (
    ImagePreprocessor,
    channel_statistics,
    fit_preprocessor,
    image_tensor,
    make_preprocessor,
)
from crad.errors import DataError

if TYPE_CHECKING:
    from crad.data.catalog import FoundFile
    from crad.data.dataset import Dataset, Splits


class ImageKind:
    """Pictures of one size, gray, in colour or of any number of channels."""

    name = "image"
    words = Words("image", "images")
    models: tuple[str, ...] = ("resnet18", "resnet18-half", "cnn6")
    input_name = "pixels"
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    channel_axis = -1

    def is_source(self, name_or_path: str) -> bool:
        """Return True: known names, .npz files, folders; what is none of them is refused when it is read."""
        return True

    def read(self, name_or_path: str, options: ReadOptions) -> Dataset:
        """Read a known data set, a .npz file or a folder of class folders."""
        from crad.data.catalog import as_asked, locate, read_found  # it knows data sets, and they have a kind

        found = locate(name_or_path, data_dir=options.data_dir)
        is_folder = found.form == "image folder"
        refuse_options(options, self.name, name_or_path, allowed=("resize", "site") if is_folder else ("resize",))
        asked = as_asked(found, resize=options.resize, site=options.table.site)
        if found.source is None and options.kind is None:
            asked = replace(asked, read=partial(_read_certain, asked))
        return read_found(asked)

    def check(self, samples: NDArray[Any], dataset: Dataset, *, where: str) -> None:
        """Refuse an array that holds no images."""
        check_images(samples, where=where)

    def to_tensor(self, samples: NDArray[Any], form: HasPadding) -> Tensor:
        """Return images as uint8 [N,channels,H,W], with their border."""
        return image_tensor(samples, pad_to=form.pad_to)

    def preprocessor(self, dataset: Dataset, *, is_augmented: bool, device: str) -> ImagePreprocessor:
        """Normalise by the training images' own mean and standard deviation."""
        augmentation = dataset.augmentation if is_augmented else "none"
        return fit_preprocessor(dataset.train_samples, augmentation=augmentation, device=device)

    def picture(self, dataset: Dataset, sample: NDArray[Any]) -> dict[str, Any]:
        """Return a PNG."""
        return {"png": base64.b64encode(contact_sheet(as_bytes(sample[None]), columns=1, gap=0)).decode()}

    def batch(self, x: object, form: SampleForm) -> Images:
        """Return images of a model's size, or brought to it; one image is a batch of one."""
        from crad.data.readers.arrays import to_batch

        height, width, channels = form.input_shape
        return to_batch(x, (height, width, channels), resize=form.resize, dtype=form.dtype)

    def read_inputs(self, path: Path, form: SampleForm, *, key: str | None) -> tuple[list[str], NDArray[Any]]:
        """Return images from files: pictures, folders of them, arrays."""
        from crad.data.readers.input_files import read_inputs

        return read_inputs(path, channels=form.input_shape[2], resize=form.resize, key=key, dtype=form.dtype)

    def preprocessor_of(self, form: SampleForm) -> ImagePreprocessor:
        """Return the normalisation, on the CPU and without augmentation."""
        return make_preprocessor(form.mean, form.std, augmentation="none", device="cpu")

    def features(self, dataset: Dataset, samples: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Return every image's mean and deviation."""
        axes = (1, 2, 3)
        return {
            "brightness": samples.mean(axis=axes, dtype=np.float64),
            "contrast": samples.std(axis=axes, dtype=np.float64),
        }

    def schema(self, dataset: Dataset) -> dict[str, Any]:
        """Return shape, normalisation and augmentation."""
        means, deviations = channel_statistics(dataset.train_samples)
        shape = [*dataset.image_size, dataset.in_channels]
        return {"image_shape": shape, "mean": means, "std": deviations, "augmentation": dataset.augmentation}


def _read_certain(found: FoundFile) -> Splits:
    """Read images, and refuse an array that may as well be something else: its owner has to say."""
    splits = found.read()
    images = splits.train_images
    what = f"{found.path}: train_images is {images.dtype} of shape {images.shape}"
    if images.ndim == 2:
        raise DataError(f"{what}: rows of a table, or series in time? Say kind=table or kind=series")
    if images.ndim == 3 and images.dtype.kind != "u":
        raise DataError(f"{what}: gray images, or series [N, channels, time]? Say kind=image or kind=series")
    return splits
