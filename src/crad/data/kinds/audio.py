"""Recordings: int16 or float32 of -1 to 1, [N, channels, time], all of one sampling rate and length.

Raw waves are what travels and what a network takes. What it makes of them first, standardised waves or log-mel
spectrograms, is its first layer's affair, with its owner's own statistics (`crad.models.networks.series`).
"""

from __future__ import annotations

import base64
import os
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crad.data.contact_sheet import png
from crad.data.kinds.kind import HasPadding, ReadOptions, SampleForm, Words, refuse_options
from crad.data.kinds.series import (
    SUFFIXES,
    SeriesKind,
    SignalPreprocessor,
    as_batch,
    check_signals,
    make_signals,
    to_signals,
)
from crad.data.readers.class_folders import first_suffix
from crad.data.readers.image_folder import PICTURE
from crad.data.readers.npz import RATE, is_npy_folder
from crad.data.readers.wav import INT16_FULL, WAV, as_type, read_waves
from crad.errors import DataError

if TYPE_CHECKING:
    from crad.data.dataset import Dataset

PICTURE_SIZE = 64, 128  # height and width of a spectrogram in the inspector
PICTURE_RANGE = 8.0  # natural logarithms of power between white and black, about 35 decibels


class AudioKind(SeriesKind):
    """Sound: speech, machines, animals, hearts."""

    name = "audio"
    words = Words("recording", "recordings")
    models: tuple[str, ...] = ("mel-cnn6", "cnn1d", "resnet1d")
    input_name = "waves"
    dtype: np.dtype[Any] = np.dtype(np.float32)
    dtypes: tuple[str, ...] = ("int16", "float32")

    def is_source(self, name_or_path: str) -> bool:
        """Return whether a folder has WAV files, or a .npz file says its sampling rate."""
        path = Path(name_or_path).expanduser()
        if path.is_dir():
            if is_npy_folder(path):
                return (path / f"{RATE}.npy").is_file()
            return first_suffix(path, {*WAV.suffixes, *PICTURE.suffixes}) in WAV.suffixes
        if path.suffix.lower() != ".npz" or not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            return f"{RATE}.npy" in archive.namelist()

    def read(self, name_or_path: str, options: ReadOptions) -> Dataset:
        """Read class folders of WAV files, or a .npz file with the sampling rate as `rate`."""
        path = Path(name_or_path).expanduser()
        if not path.is_dir() or is_npy_folder(path):
            return super().read(name_or_path, options)
        refuse_options(options, self.name, name_or_path, allowed=("site", "seconds"))
        return _read_once(str(path), _version(path), options.seconds, options.table.site)

    def check(self, samples: NDArray[Any], dataset: Dataset, *, where: str) -> None:
        """Refuse an array that holds no recordings."""
        if samples.dtype not in (np.int16, np.float32) or samples.ndim != 3:
            raise DataError(
                f"{where} is {samples.dtype} of shape {samples.shape}, expected int16 or float32 [N, channels, time]"
            )
        if dataset.rate is None or dataset.rate < 1:
            raise DataError(f"{where}: nobody says the sampling rate: give rate, samples a second")
        check_signals(samples, where=where)
        if samples.dtype == np.float32 and np.isnan(samples).any():
            raise DataError(f"{where}: recording {int(np.isnan(samples).any(axis=(1, 2)).argmax())} has a gap (NaN)")

    def convert(self, x: object, *, where: str) -> NDArray[Any]:
        """Return waves as int16 as they are, or as float32; of other integers nobody knows what full scale is."""
        waves = to_signals(x, where=where)
        if waves.dtype.kind in "iub" and waves.dtype != np.int16:
            raise DataError(f"{where} is {waves.dtype}, expected int16, or floats of -1 to 1: convert them")
        return np.ascontiguousarray(waves if waves.dtype == np.int16 else waves.astype(np.float32))

    def to_tensor(self, samples: NDArray[Any], form: HasPadding) -> Tensor:
        """Return waves of -1 to 1, float32."""
        return torch.from_numpy(np.array(as_type(samples, np.dtype(np.float32)), order="C"))

    def preprocessor(self, dataset: Dataset, *, is_augmented: bool, device: str) -> SignalPreprocessor:
        """Return one that changes nothing but what the augmentation says."""
        augmentation = dataset.augmentation if is_augmented else "none"
        return SignalPreprocessor(torch.device(device), augmentation, is_silent_outside=True)

    def picture(self, dataset: Dataset, sample: NDArray[Any]) -> dict[str, Any]:
        """Return a spectrogram as a PNG: time to the right, low tones below, loud ones dark."""
        return {"png": spectrogram_picture(as_type(sample, np.dtype(np.float32)).mean(axis=0))}

    def batch(self, x: object, form: SampleForm) -> NDArray[Any]:
        """Return waves of a model's channels and length, as reading them does: filled up with silence or cut."""
        channels, length = form.input_shape
        waves = self.convert(as_batch(x, channels), where="x")
        if waves.shape[1] != channels:
            raise DataError(f"x has {waves.shape[1]} channels, this model takes {channels}: [N, {channels}, time]")
        kept = as_type(waves[:, :, :length], np.dtype(form.dtype))
        return np.pad(kept, ((0, 0), (0, 0), (0, length - kept.shape[2])))

    def read_inputs(self, path: Path, form: SampleForm, *, key: str | None) -> tuple[list[str], NDArray[Any]]:
        """Return recordings from files: one WAV, a folder of them, an array."""
        if path.suffix.lower() in SUFFIXES and path.is_file():
            return super().read_inputs(path, form, key=key)
        files = sorted(file for file in path.rglob("*") if WAV.has(file)) if path.is_dir() else [path]
        if not files or not (path.is_dir() or (path.is_file() and WAV.has(path))):
            raise DataError(f"{path}: this model takes recordings: a .wav, a folder of them, a .npy or a .npz")
        assert form.rate is not None, "a model of recordings has one"
        waves = read_waves(files, length=form.input_shape[1], rate=form.rate, dtype=np.dtype(form.dtype))
        return [str(file.relative_to(path)) if path.is_dir() else path.name for file in files], waves

    def preprocessor_of(self, form: SampleForm) -> SignalPreprocessor:
        """Return one that changes nothing."""
        return SignalPreprocessor(torch.device("cpu"), is_silent_outside=True)

    def features(self, dataset: Dataset, samples: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Return loudness in decibels, length without the silence at the end, and how high a recording sounds."""
        waves = as_type(samples, np.dtype(np.float32)).mean(axis=1).astype(np.float64)
        is_heard = waves != 0
        length = waves.shape[1] - is_heard[:, ::-1].argmax(axis=1)
        length = np.where(is_heard.any(axis=1), length, 1)
        power = (waves**2).sum(axis=1) / length
        crossings = (np.signbit(waves[:, 1:]) != np.signbit(waves[:, :-1])).sum(axis=1)
        return {
            "loudness": 10 * np.log10(power + 1e-10),
            "length": length.astype(np.float64),
            "zero crossings": crossings / length,
        }

    def schema(self, dataset: Dataset) -> dict[str, Any]:
        """Return channels, length, sampling rate."""
        return {**super().schema(dataset), "rate": dataset.rate}

    def card_metadata(self, form: SampleForm) -> dict[str, Any]:
        """Return channels, length, sampling rate, and of 16 bits what full scale is."""
        about = super().card_metadata(form)
        scale = {"full_scale": f"{INT16_FULL} is 1.0"} if form.dtype == np.int16 else {}
        return {**about, "input": {**about["input"], **scale}}

    def card_form(self, about: Mapping[str, str]) -> dict[str, Any] | None:
        """Read that back; None: the file is about another kind of data."""
        form = super().card_form(about)
        if form is not None and not form["rate"]:
            raise ValueError("the sampling rate")
        return form

    def preparation(self, form: SampleForm) -> nn.Module:
        """Return what makes floats of 16 bits."""
        return FullScale() if form.dtype == np.int16 else nn.Identity()


class FullScale(nn.Module):
    """Waves int16 [B,channels,T] become floats of -1 to 1."""

    def forward(self, waves: Tensor) -> Tensor:
        """Return waves [B,channels,T]."""
        return waves.to(torch.float32) / INT16_FULL


def spectrogram_picture(wave_T: NDArray[Any]) -> str:
    """Draw the power of every tone over time, on a logarithmic scale from the loudest down."""
    height, width = PICTURE_SIZE
    window = 2 * height
    starts = np.linspace(0, max(0, len(wave_T) - window), width).astype(int)
    filled = np.pad(wave_T, (0, max(0, window - len(wave_T))))
    pieces = np.stack([filled[start : start + window] for start in starts]) * np.hanning(window)
    power = np.abs(np.fft.rfft(pieces, axis=1))[:, 1:] ** 2
    loudness = np.log(power + 1e-10)
    shade = 255 * np.clip((loudness.max() - loudness) / PICTURE_RANGE, 0, 1)
    gray = np.rint(shade.T[::-1]).astype(np.uint8)
    return base64.b64encode(png(np.repeat(gray[:, :, np.newaxis], 3, axis=2))).decode()


def _version(path: Path) -> tuple[int, int, int]:
    """Return what changes when files of a folder do: how many there are, their size, the latest change."""
    stats = [os.stat(file) for file in path.rglob("*") if WAV.has(file)]
    return len(stats), sum(one.st_size for one in stats), max((one.st_mtime_ns for one in stats), default=0)


@lru_cache(maxsize=1)  # a comparison reads the same files for every run
def _read_once(path: str, version: tuple[int, int, int], seconds: float | None, site: str | None) -> Dataset:
    from crad.data.readers.wav_folder import find_recordings, read_recordings

    found = find_recordings(Path(path), seconds=seconds, site=site)
    splits = read_recordings(found)
    return make_signals(
        AudioKind(), splits.train_images, splits.train_labels, splits.test_images, splits.test_labels,
        classes=splits.class_names, sites=splits.train_sites, rate=found.rate, name=Path(path).resolve().name,
    )  # fmt: skip
