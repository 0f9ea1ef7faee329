"""Images: [N, H, W, C] of 8 or 16 bits or floats, padded, augmented and normalised by the data set's statistics."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from crad.data.contact_sheet import as_bytes, contact_sheet
from crad.data.dataset import Images, check_images
from crad.data.kinds.kind import HasPadding, Kind, ReadOptions, SampleForm, Words, form_fields, refuse_options
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

DTYPES = ("uint8", "uint16", "float32")


class ImageKind(Kind):
    """Pictures of one size, gray, in colour or of any number of channels."""

    name = "image"
    words = Words("image", "images")
    models: tuple[str, ...] = ("resnet18", "resnet18-half", "cnn6")
    input_name = "pixels"
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    channel_axis = -1
    takes_arrays = True  # as `readers/arrays.py` makes them

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

    def card_metadata(self, form: SampleForm) -> dict[str, Any]:
        """Return the shape, with and without its border, and the normalisation."""
        height, width, channels = form.input_shape
        mean, std = list(form.mean), list(form.std)
        resize = form.resize  # not in an ONNX graph, which takes images of the size below
        return {
            "image_shape": [form.pad_to or height, form.pad_to or width, channels],
            "mean": mean,
            "std": std,
            "input": {
                "dtype": str(form.dtype),
                "layout": "NHWC",
                "height": height,
                "width": width,
                "channels": channels,
            },
            "preprocessing": {"resize": resize, "pad_to": form.pad_to, "mean": mean, "std": std},
        }

    def card_form(self, about: Mapping[str, str]) -> dict[str, Any] | None:
        """Read that back, or what an earlier version wrote; what is about no other kind is taken for images."""
        read = {name: json.loads(about[name]) for name in ("image_shape", "mean", "std")}
        shape, pad_to, resize, dtype = read["image_shape"], None, None, None
        if "input" in about:
            given, prepared = json.loads(about["input"]), json.loads(about["preprocessing"])
            shape, pad_to = [given[key] for key in ("height", "width", "channels")], prepared["pad_to"]
            resize, dtype = prepared.get("resize"), given.get("dtype")
        height, width, channels = map(int, shape)
        mean, std = tuple(map(float, read["mean"])), tuple(map(float, read["std"]))
        if not len(mean) == len(std) == channels:
            raise ValueError("mean, std or the image shape")
        if dtype not in (None, *DTYPES):
            raise ValueError("the type of the samples")
        if resize not in (None, height):
            raise ValueError("the size that images are brought to")
        return {
            **form_fields(self.name, (height, width, channels)),
            "pad_to": None if pad_to is None else int(pad_to),
            "mean": mean,
            "std": std,
            "resize": None if resize is None else int(resize),
            "stored_dtype": None if dtype in (None, "uint8") else str(dtype),
        }

    def preparation(self, form: SampleForm) -> nn.Module:
        """Return the border and the normalisation."""
        return PixelPreparation(form)


class PixelPreparation(nn.Module):
    """Raw pixels [B,H,W,channels] become a network's inputs."""

    def __init__(self, form: SampleForm) -> None:
        super().__init__()
        preprocessor = make_preprocessor(form.mean, form.std, augmentation="none", device="cpu")
        self.mean, self.std = nn.Buffer(preprocessor.mean), nn.Buffer(preprocessor.std)
        height, width, _ = form.input_shape
        below, right = (max(0, (form.pad_to or 0) - side) for side in (height, width))
        self.border = (right // 2, right - right // 2, below // 2, below - below // 2)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return inputs [B,channels,H,W]."""
        images = pixels.permute(0, 3, 1, 2).to(torch.float32)
        if any(self.border):
            images = F.pad(images, self.border)
        return (images - self.mean) / self.std


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
