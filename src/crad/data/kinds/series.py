"""Series in time: float32 [N, channels, time], all of one length; a gap is NaN.

Raw samples are what travels and what a network takes; its first layer standardises every channel by its owner's own
statistics (`crad.models.networks.series`), so nobody pools anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from crad.data.contact_sheet import line_picture
from crad.data.kinds.kind import HasPadding, Kind, ReadOptions, SampleForm, Words, form_fields, refuse_options
from crad.errors import DataError, unknown_name

if TYPE_CHECKING:
    from crad.data.dataset import Dataset
    from crad.data.readers.arrays import LabelledArrays

MIN_LENGTH = 8
SHIFT = 0.1  # of the length, at most, to either side
GAIN = 0.5  # louder or softer by at most such a factor, as the exponent of e
NOISE = 0.05  # at most, as a share of a sample's own deviation
STRONG = 2.0  # so much more of all three in a strongly changed sample
HIDDEN = 0.25  # of its time, too
SHORTEST_CROP = 0.25  # of its time, where a stretch is shown in place of the whole
AUGMENTATIONS = ("none", "shift", "shift-gain-noise")
SUFFIXES = (".npz", ".npy")


@dataclass(frozen=True)
class SignalPreprocessor:
    """Samples go into a network as they are; its first layer does the rest."""

    device: torch.device
    augmentation: str = "none"
    is_silent_outside: bool = False  # before its beginning and after its end, and where it is hidden: a recording

    def inputs(self, images: Tensor) -> Tensor:
        """Return raw samples float32 [B,channels,T]."""
        return images.float()

    def augment(self, images: Tensor, *, generator: torch.Generator) -> Tensor:
        """Move samples in time, make them louder or softer, add noise: as much of it as the augmentation says."""
        if self.augmentation == "none":
            return images
        moved = self._moved(images, generator)
        return moved if self.augmentation == "shift" else _louder_and_noisy(moved, generator, strength=1.0)

    def mix(self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator) -> Tensor:
        """Lay two samples over each other."""
        weight = share_B.view(-1, 1, 1)
        return weight * inputs + (1 - weight) * others

    def change_strongly(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Make samples much louder or softer, noisy, and hide a quarter of their time."""
        changed = _louder_and_noisy(inputs, generator, strength=STRONG)
        length = inputs.shape[2]
        hidden = max(1, round(HIDDEN * length))
        start_B = torch.randint(0, length - hidden + 1, (len(inputs), 1), generator=generator)
        time_T = torch.arange(length)
        is_hidden = ((time_T >= start_B) & (time_T < start_B + hidden)).unsqueeze(1).to(inputs.device)
        return torch.where(is_hidden, 0.0 if self.is_silent_outside else torch.nan, changed)

    def cut(
        self, inputs: Tensor, others: Tensor, share_B: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Put a stretch of another sample into each, at the same time of both."""
        is_other = self._stretches(inputs, 1 - share_B.cpu(), generator)
        own_B = 1 - is_other.float().mean(dim=(1, 2))
        return torch.where(is_other.to(inputs.device), others, inputs), own_B.to(inputs.device)

    def crop(self, inputs: Tensor, *, generator: torch.Generator) -> Tensor:
        """Leave a stretch of each sample, at least a quarter of it, where it is; the rest is silence, or a gap."""
        share_B = SHORTEST_CROP + (1 - SHORTEST_CROP) * torch.rand(len(inputs), generator=generator)
        is_shown = self._stretches(inputs, share_B, generator).to(inputs.device)
        return torch.where(is_shown, inputs, 0.0 if self.is_silent_outside else torch.nan)

    def _stretches(self, inputs: Tensor, share_B: Tensor, generator: torch.Generator) -> Tensor:
        """Return where a stretch of each sample lies that has so large a share of its time, [B,1,T]."""
        length = inputs.shape[2]
        reach_B = (share_B.clamp(0, 1) * length).round()
        start_B = (torch.rand(len(inputs), generator=generator) * (length - reach_B + 1)).floor()
        time_T = torch.arange(length)
        return ((time_T >= start_B[:, None]) & (time_T < (start_B + reach_B)[:, None])).unsqueeze(1)

    def _moved(self, images: Tensor, generator: torch.Generator) -> Tensor:
        reach = round(SHIFT * images.shape[2])
        start_B = torch.randint(0, 2 * reach + 1, (len(images), 1), generator=generator)
        place = (start_B + torch.arange(images.shape[2])).to(images.device)
        padded = F.pad(images, (reach, reach), mode="constant" if self.is_silent_outside else "replicate")
        return padded.gather(2, place.unsqueeze(1).expand(images.shape))


def _louder_and_noisy(samples: Tensor, generator: torch.Generator, *, strength: float) -> Tensor:
    drawn_B2 = torch.rand(len(samples), 2, 1, 1, generator=generator).to(samples.device)
    noise = torch.randn(samples.shape, generator=generator).to(samples.device)
    gain = torch.exp(strength * GAIN * (2 * drawn_B2[:, 0] - 1))
    spread = torch.nan_to_num(samples).std(dim=2, keepdim=True, correction=0)
    return gain * (samples + strength * NOISE * drawn_B2[:, 1] * spread * noise)


class SeriesKind(Kind):
    """Measurements in time, of one or several channels."""

    name = "series"
    words = Words("series", "series")
    models: tuple[str, ...] = ("cnn1d", "resnet1d", "transformer1d")
    input_name = "series"
    dtype: np.dtype[Any] = np.dtype(np.float32)
    channel_axis = 0
    takes_arrays = True
    dtypes: tuple[str, ...] = ("float32",)  # that samples may have

    def is_source(self, name_or_path: str) -> bool:
        """Return False: an array of numbers does not say what it is; the setting `kind` does."""
        return False

    def read(self, name_or_path: str, options: ReadOptions) -> Dataset:
        """Read a .npz file or a folder of .npy files with training and test samples."""
        refuse_options(options, self.name, name_or_path, allowed=())
        from crad.data.labels import number_labels
        from crad.data.readers.npz import read_arrays

        path = Path(name_or_path).expanduser()
        found = read_arrays(path)
        splits = number_labels(found.splits, where=str(path))
        return make_signals(
            self, splits.train_images, splits.train_labels, splits.test_images, splits.test_labels,
            classes=splits.class_names, sites=splits.train_sites, rate=found.rate, name=path.stem,
            parts=parts_in(path),
        )  # fmt: skip

    def from_arrays(self, given: LabelledArrays, *, rate: int | None, augmentation: str | None) -> Dataset:
        """Return a data set of arrays [N, T] or [N, C, T]."""
        return make_signals(
            self, given.x_train, given.train_labels, given.x_test, given.test_labels,
            classes=given.class_names, sites=given.sites, rate=rate, name=given.name, augmentation=augmentation,
        )  # fmt: skip

    def check(self, samples: NDArray[Any], dataset: Dataset, *, where: str) -> None:
        """Refuse an array that holds no series."""
        if samples.dtype != np.float32 or samples.ndim != 3:
            raise DataError(
                f"{where} is {samples.dtype} of shape {samples.shape}, expected float32 [N, channels, time]"
            )
        check_signals(samples, where=where)
        if np.isnan(samples).all():
            raise DataError(f"{where}: every value is a gap (NaN): there is nothing to learn from")

    def convert(self, x: object, *, where: str) -> NDArray[Any]:
        """Return numbers of any type, [N, time] or [N, channels, time], as this kind keeps them."""
        with np.errstate(over="ignore"):  # what is too large is infinite, and refused as such
            return to_signals(x, where=where).astype(np.float32)

    def to_tensor(self, samples: NDArray[Any], form: HasPadding) -> Tensor:
        """Return samples as a tensor of their own, float32."""
        return torch.from_numpy(np.array(samples, dtype=np.float32, order="C"))

    def preprocessor(self, dataset: Dataset, *, is_augmented: bool, device: str) -> SignalPreprocessor:
        """Return one that changes nothing but what the augmentation says."""
        return SignalPreprocessor(torch.device(device), dataset.augmentation if is_augmented else "none")

    def picture(self, dataset: Dataset, sample: NDArray[Any]) -> dict[str, Any]:
        """Return a PNG with a line per channel."""
        return {"png": line_picture(sample)}

    def batch(self, x: object, form: SampleForm) -> NDArray[Any]:
        """Return series of a model's channels and length; one is a batch of one."""
        channels, length = form.input_shape
        samples = self.convert(as_batch(x, channels), where="x")
        if samples.shape[1:] != (channels, length):
            given = "x".join(map(str, samples.shape[1:]))
            raise DataError(f"x: series are {given}, this model takes {channels}x{length} (channels x time)")
        return samples

    def read_inputs(self, path: Path, form: SampleForm, *, key: str | None) -> tuple[list[str], NDArray[Any]]:
        """Return the series in an array's file."""
        from crad.data.readers.input_files import read_array_file

        if path.suffix.lower() not in SUFFIXES:
            raise DataError(f"{path}: this model takes series [N, channels, time]: .npy or .npz")
        return [], read_array_file(path, key)

    def preprocessor_of(self, form: SampleForm) -> SignalPreprocessor:
        """Return one that changes nothing."""
        return SignalPreprocessor(torch.device("cpu"))

    def features(self, dataset: Dataset, samples: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Return mean and deviation of every channel."""
        found: dict[str, NDArray[np.float64]] = {}
        for channel in range(samples.shape[1]):
            of_channel = f" of channel {channel}" if samples.shape[1] > 1 else ""
            values = samples[:, channel].astype(np.float64)
            is_known = ~np.isnan(values)
            count = np.maximum(is_known.sum(axis=1), 1)
            mean = np.where(is_known, values, 0).sum(axis=1) / count
            apart = np.where(is_known, values - mean[:, np.newaxis], 0)
            found |= {f"mean{of_channel}": mean, f"deviation{of_channel}": np.sqrt((apart**2).sum(axis=1) / count)}
        return found

    def schema(self, dataset: Dataset) -> dict[str, Any]:
        """Return channels, length and what else members would agree on."""
        channels, length = dataset.train_samples.shape[1:]
        return {"channels": int(channels), "length": int(length), "augmentation": dataset.augmentation}

    def card_metadata(self, form: SampleForm) -> dict[str, Any]:
        """Return channels, length and, of recordings, the sampling rate."""
        channels, length = form.input_shape
        return {
            "signal": {"kind": self.name, "rate": form.rate},
            "input": {"dtype": str(form.dtype), "layout": "NCT", "channels": channels, "time": length},
        }

    def card_form(self, about: Mapping[str, str]) -> dict[str, Any] | None:
        """Read that back; None: the file is about another kind of data."""
        said = json.loads(about.get("signal", "{}"))
        if said.get("kind") != self.name:
            return None
        given = json.loads(about["input"])
        if str(given["dtype"]) not in self.dtypes:
            raise ValueError("the type of the samples")
        rate = said.get("rate")
        return {
            **form_fields(self.name, (int(given["channels"]), int(given["time"]))),
            "stored_dtype": str(given["dtype"]),
            "rate": None if rate is None else int(rate),
        }


def make_signals(
    kind: SeriesKind,
    x_train: object,
    train_labels: NDArray[Any],
    x_test: object,
    test_labels: NDArray[Any],
    *,
    classes: tuple[str, ...] | None,
    sites: tuple[str, ...] | list[str] | None,
    rate: int | None,
    name: str,
    augmentation: str | None = None,
    parts: tuple[str, str] = ("x_train", "x_test"),
) -> Dataset:
    """Put the parts of a data set of series or recordings together and check them; `parts`: what their owner wrote."""
    from crad.data.dataset import Dataset, check_dataset, numbered_labels
    from crad.data.readers.arrays import with_sites

    if augmentation is not None and augmentation not in AUGMENTATIONS:
        raise unknown_name("augmentation", augmentation, AUGMENTATIONS)
    train_numbers, test_numbers, names = numbered_labels(train_labels, test_labels, classes, where=name)
    is_recording = kind.name == "audio"
    dataset = Dataset(
        name=name,
        train_samples=kind.convert(x_train, where=parts[0]),
        train_labels=train_numbers,
        test_samples=kind.convert(x_test, where=parts[1]),
        test_labels=test_numbers,
        class_names=names,
        kind=kind.name,
        augmentation=augmentation or ("shift-gain-noise" if is_recording else "none"),
        rate=rate,
    )
    check_dataset(dataset)
    return dataset if sites is None else with_sites(dataset, sites)


def parts_in(path: Path | str) -> tuple[str, str]:
    """Return what training and test samples are called in a file of arrays, for refusals."""
    return f"{path}: train_samples", f"{path}: test_samples"


def to_signals(x: object, *, where: str) -> NDArray[Any]:
    """Return numbers [N, time] or [N, channels, time] as [N, channels, time]."""
    array = x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
    if array.dtype.kind not in "fiub" or array.ndim not in (2, 3):
        raise DataError(
            f"{where} is {array.dtype} of shape {array.shape}, expected numbers [N, time] or [N, channels, time]"
        )
    return array[:, np.newaxis] if array.ndim == 2 else array


def check_signals(samples: NDArray[Any], *, where: str) -> None:
    """Refuse what no network could take, of recordings as of series."""
    if len(samples) == 0:
        raise DataError(f"{where} is empty, expected at least one")
    if samples.shape[1] < 1 or samples.shape[2] < MIN_LENGTH:
        raise DataError(
            f"{where} has {samples.shape[1]} channels of {samples.shape[2]} steps, expected {MIN_LENGTH} steps or more"
        )
    if samples.dtype.kind == "f" and np.isinf(samples).any():
        raise DataError(f"{where}: sample {int(np.isinf(samples).any(axis=(1, 2)).argmax())} has an infinite value")


def as_batch(x: object, channels: int) -> NDArray[Any]:
    """Return one sample, [time] or [channels, time], as a batch of one; several as they are."""
    array: NDArray[Any] = x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
    if array.ndim == 1:
        return array[np.newaxis, np.newaxis]
    return array[np.newaxis] if array.ndim == 2 and channels > 1 and len(array) == channels else array
