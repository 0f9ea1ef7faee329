"""Reads a folder of class folders of WAV files, brought to one length, and says what was found in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crad.data.dataset import Splits
from crad.data.partition import MIN_SAMPLES
from crad.data.readers.class_folders import ClassFolders, list_class_folders
from crad.data.readers.wav import WAV, WavFormat, check_rate, read_wav_format, read_waves
from crad.errors import DataError

MOSTLY = 0.95  # so many recordings fit into the length that is proposed


@dataclass(frozen=True)
class RecordingReport:
    """A folder of recordings as a run would read it."""

    path: str
    train: int
    test: int
    rate: int
    bits: tuple[str, ...]  # of the files, such as "16 bits mono"
    shortest_s: float
    median_s: float
    longest_s: float
    seconds: float  # the length that all are brought to
    padded: int  # shorter than that
    cut: int  # longer than that
    classes: dict[str, int]
    sites: dict[str, int] | None
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Recordings:
    """All files of a folder with what each says of itself."""

    folders: ClassFolders
    formats: tuple[WavFormat, ...]  # of the training files, then of the test files
    length: int  # samples in time that all are brought to

    @property
    def rate(self) -> int:
        """Return the samples a second, the same in all files."""
        return self.formats[0].rate

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return int16 where it holds all files as they are."""
        is_small = all(one.fits_int16 for one in self.formats)
        return np.dtype(np.int16 if is_small else np.float32)


def find_recordings(path: Path, *, seconds: float | None = None, site: str | None = None) -> Recordings:
    """List the files and read their headers; the length is `seconds`, or that of the longest."""
    folders = list_class_folders(path, WAV, site=site)
    files = (*folders.train.files, *folders.test.files)
    formats = tuple(map(read_wav_format, files))
    for file, said in zip(files, formats, strict=True):
        check_rate(said, formats[0].rate, file)
    longest = max(said.frames for said in formats)
    length = longest if seconds is None else round(seconds * formats[0].rate)
    if length < 1:
        raise DataError(f"{path}: seconds is {seconds:g}, less than a sample at {formats[0].rate} a second")
    return Recordings(folders, formats, length)


def read_recordings(found: Recordings) -> Splits:
    """Read all files as [N, 1, T]."""
    folders = found.folders
    train, test = (
        read_waves(part.files, length=found.length, rate=found.rate, dtype=found.dtype)
        for part in (folders.train, folders.test)
    )
    return Splits(
        train, folders.train.labels, test, folders.test.labels, folders.class_names, train_sites=folders.train.sites
    )


def check_recordings(path: Path, *, seconds: float | None, site: str | None) -> RecordingReport:
    """Say what was understood of a folder; what a run would refuse is refused here."""
    found = find_recordings(path, seconds=seconds, site=site)
    folders, frames = found.folders, np.array([said.frames for said in found.formats])
    sites = None if folders.train.sites is None else dict(sorted(Counter(folders.train.sites).items()))
    labels = np.concatenate([folders.train.labels, folders.test.labels])
    counts = np.bincount(labels, minlength=len(folders.class_names))
    return RecordingReport(
        path=str(path),
        train=len(folders.train.files),
        test=len(folders.test.files),
        rate=found.rate,
        bits=tuple(sorted({_called(said) for said in found.formats})),
        shortest_s=float(frames.min() / found.rate),
        median_s=float(np.median(frames) / found.rate),
        longest_s=float(frames.max() / found.rate),
        seconds=found.length / found.rate,
        padded=int((frames < found.length).sum()),
        cut=int((frames > found.length).sum()),
        classes=dict(zip(folders.class_names, counts.tolist(), strict=True)),
        sites=sites,
        warnings=tuple(_warnings(frames, found, sites, is_said=seconds is not None)),
    )


def _called(said: WavFormat) -> str:
    channels = {1: "mono", 2: "stereo"}.get(said.channels, f"{said.channels} channels")
    return f"{said.bits} bits{' as floats' if said.is_float else ''} {channels}"


def _warnings(
    frames: np.ndarray[Any, Any], found: Recordings, sites: dict[str, int] | None, *, is_said: bool
) -> list[str]:
    warnings = []
    most = float(np.quantile(frames, MOSTLY)) / found.rate
    if not is_said and frames.max() / found.rate > 1.5 * most:
        enough = np.ceil(10 * most) / 10
        warnings.append(
            f"all are brought to the longest, {frames.max() / found.rate:.1f} s, but {100 * MOSTLY:.0f} % are "
            f"{enough:.1f} s or shorter: seconds={enough:.1f} would save time"
        )
    for site, count in (sites or {}).items():
        if count < MIN_SAMPLES + 2:
            warnings.append(f"site {site!r} has {count} recordings: too few for a client of its own")
    return warnings
