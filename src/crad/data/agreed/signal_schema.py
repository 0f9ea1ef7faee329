"""Series and recordings between organisations: channels and length, of recordings the sampling rate too.

The schema is a text that somebody else may have written: its numbers are bounded before anything is built from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from crad.config import TextLine
from crad.data.agreed.data_schema import Draft, OwnFile, WrittenSchema
from crad.data.agreed.own_data import OwnData
from crad.data.agreed.own_signals import is_wav_folder, load_own_signals, read_own_arrays
from crad.data.dataset import Dataset
from crad.data.kinds import KINDS, ReadOptions
from crad.data.kinds.kind import refuse_options
from crad.data.kinds.series import MIN_LENGTH
from crad.data.preprocessing import Preprocessor
from crad.data.readers.wav_folder import find_recordings
from crad.errors import DataError

OF_RECORDINGS = "shift-gain-noise"  # their augmentation, as a simulation has it
MAX_CHANNELS = 1000
MAX_LENGTH = 10_000_000  # steps in time
MAX_VALUES = 10_000_000  # of a sample, all channels together
MAX_RATE = 192_000  # samples a second: a filter bank for a higher one takes much memory


class _SignalSchema(WrittenSchema):
    """What series and recordings have in common."""

    channels: Annotated[int, Field(ge=1, le=MAX_CHANNELS)]
    length: Annotated[int, Field(ge=MIN_LENGTH, le=MAX_LENGTH)]
    augmentation: Literal["none", "shift", "shift-gain-noise"] = "none"

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        values = self.channels * self.length
        if values > MAX_VALUES:
            raise ValueError(f"length: a sample would have {values} values, at most {MAX_VALUES} can be agreed on")
        return self

    def empty_dataset(self, classes: Sequence[str]) -> Dataset:
        """Return no samples of this form."""
        samples, labels = np.empty((0, self.channels, self.length), np.float32), np.empty(0, np.int64)
        return Dataset(
            "agreed", samples, labels, samples, labels, tuple(classes),
            kind=self.kind, augmentation=self.augmentation, rate=getattr(self, "rate", None),
        )  # fmt: skip

    def preprocessor(self, device: str) -> Preprocessor:
        """Return one that changes nothing but what the augmentation says: the first layer prepares samples."""
        return KINDS[self.kind].preprocessor(self.empty_dataset(()), is_augmented=True, device=device)


class SeriesSchema(_SignalSchema):
    """Measurements in time: how many channels, how they are called where that is said, and how many steps."""

    kind: Literal["series"] = "series"
    channel_names: Annotated[tuple[TextLine, ...], Field(max_length=MAX_CHANNELS, strict=False)] | None = None
    units: Annotated[tuple[TextLine, ...], Field(max_length=MAX_CHANNELS, strict=False)] | None = None  # for people

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for what, said in (("channel_names", self.channel_names), ("units", self.units)):
            if said is not None and len(said) != self.channels:
                raise ValueError(f"{what}: {len(said)} of them for {self.channels} channels")
        if self.channel_names is not None and len(set(self.channel_names)) < self.channels:
            raise ValueError("channel_names: one stands there twice")
        return self

    def describe(self) -> str:
        """Return it in a few words."""
        names = f" ({', '.join(self.channel_names[:12])})" if self.channel_names else ""
        return f"series of {self.channels} channels{names} and {self.length} steps"

    def travels_along(self, settings: Mapping[str, Any]) -> str:
        """Return the statistics in the first layer."""
        return "mean and deviation of every channel of the training series"

    def load(self, own: OwnFile, *, classes: Sequence[str], held_out: float, rng: np.random.Generator) -> OwnData:
        """Read arrays; channels that have names by these, under those that peer.toml says they have here."""
        names = self.channel_names
        return load_own_signals(own, self.empty_dataset(classes), channel_names=names, held_out=held_out, rng=rng)


class AudioSchema(_SignalSchema):
    """Recordings: samples a second, how many of them, and channels."""

    kind: Literal["audio"] = "audio"
    rate: Annotated[int, Field(ge=1, le=MAX_RATE)]

    def describe(self) -> str:
        """Return it in a few words."""
        channels = "" if self.channels == 1 else f" in {self.channels} channels"
        return f"recordings of {self.length / self.rate:g} s ({self.length} samples, {self.rate} a second){channels}"

    def travels_along(self, settings: Mapping[str, Any]) -> str:
        """Return the statistics in the first layer."""
        return "mean and deviation of the training recordings (of their waves, or of the loudness in every mel band)"

    def load(self, own: OwnFile, *, classes: Sequence[str], held_out: float, rng: np.random.Generator) -> OwnData:
        """Read class folders of WAV files, brought to the agreed length, or arrays."""
        return load_own_signals(own, self.empty_dataset(classes), held_out=held_out, rng=rng)


def draft_series(own: OwnFile, options: ReadOptions) -> Draft:
    """Take channels, their names, length and classes from the own arrays."""
    refuse_options(options, "series", own.source, allowed=())
    return _draft_arrays(own, "series")


def draft_recordings(own: OwnFile, options: ReadOptions) -> Draft:
    """Take sampling rate, length and classes from the own files; the length is that of the longest, or as said."""
    path = Path(own.source).expanduser()
    if not is_wav_folder(path):
        refuse_options(options, "audio", own.source, allowed=())
        return _draft_arrays(own, "audio")
    refuse_options(options, "audio", own.source, allowed=("seconds",))
    found = find_recordings(path, seconds=options.seconds)
    data = {"kind": "audio", "rate": found.rate, "channels": 1, "length": found.length}
    return Draft(found.folders.class_names, {"data": {**data, "augmentation": OF_RECORDINGS}})


def _draft_arrays(own: OwnFile, kind: str) -> Draft:
    found = read_own_arrays(own, KINDS[kind], classes=None)
    if kind == "audio" and found.rate is None:
        raise DataError(f"{own.source}: does not say its sampling rate: add rate, samples a second, to the file")
    channels, length = found.parts[0].samples.shape[1:]
    data = {"kind": kind, "channels": int(channels), "length": int(length)}
    of_audio = {"rate": found.rate, "augmentation": OF_RECORDINGS} if kind == "audio" else {}
    of_series = {"channel_names": list(found.channel_names)} if found.channel_names and kind == "series" else {}
    return Draft(found.names, {"data": {**data, **of_audio, **of_series}})
