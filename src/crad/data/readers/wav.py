"""Reads recordings: WAV files of 8, 16, 24 and 32 bits or floats, alone and in class folders, all of one length.

Several channels are mixed into one. What is damaged is refused by its name. N recordings, T samples in time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.data.readers.class_folders import FileType
from crad.errors import DataError

WAV = FileType(frozenset({".wav", ".wave"}), "recording", "recordings")
INT16_FULL = 32_768  # full scale of 16 bits
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZE = 0x7FFFF000  # bytes; a program that writes into a pipe says as many or more, and means: to the end
_MAX_BYTES = 8 << 30  # of all recordings together


@dataclass(frozen=True)
class WavFormat:
    """What a file says of its samples."""

    rate: int  # samples a second
    channels: int
    bits: int
    is_float: bool
    frames: int  # samples in time

    @property
    def seconds(self) -> float:
        """Return how long it is."""
        return self.frames / self.rate

    @property
    def fits_int16(self) -> bool:
        """Return whether 16 bits hold every sample of it as it is."""
        return not self.is_float and self.bits <= 16 and self.channels == 1


def read_wav_format(file: Path) -> WavFormat:
    """Read what a file says of its samples; they themselves are not read, but counted."""
    return _parse(file)[0]


def read_waves(files: Sequence[Path], *, length: int, rate: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read files as [N, 1, T] of one length: shorter ones get silence at their end, longer ones are cut.

    As int16, or as float32 of -1 to 1. A file of another sampling rate is refused.
    """
    if len(files) * length * dtype.itemsize > _MAX_BYTES:
        raise DataError(
            f"{files[0].parent}: {len(files)} recordings of {length / rate:g} seconds are more than "
            f"{_MAX_BYTES >> 30} GB: set seconds to less"
        )
    waves = np.zeros((len(files), 1, length), dtype=dtype)
    for place, file in enumerate(files):
        said, samples = _parse(file)
        check_rate(said, rate, file)
        kept = _mono(samples, said)[:length]
        waves[place, 0, : len(kept)] = as_type(kept, dtype)
    return waves


def check_rate(said: WavFormat, rate: int, file: Path) -> None:
    """Refuse a file of another sampling rate."""
    if said.rate != rate:
        raise DataError(f"{file}: has {said.rate} samples a second, the others {rate}: resample it to {rate}")


def as_type(waves: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return waves as int16, or as floats of -1 to 1; integers are taken as int16."""
    is_float = waves.dtype.kind == "f"
    if dtype == np.int16 and is_float:
        waves = np.clip(np.rint(waves * INT16_FULL), -INT16_FULL, INT16_FULL - 1)
    elif dtype != np.int16 and not is_float:
        waves = waves / np.float32(INT16_FULL)
    return waves.astype(dtype)


def _parse(file: Path) -> tuple[WavFormat, bytes]:
    """Return what a RIFF file says, and the bytes of its samples."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
    if not content:
        raise DataError(f"{file}: is an empty file, expected a recording: record it again or remove it")
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise DataError(f"{file}: is no WAV file, whatever its name says: convert it to WAV")
    chunks = _chunks(content, file)
    if b"fmt " not in chunks or len(chunks[b"fmt "]) < 16:
        raise DataError(f"{file}: does not say what its samples are (no fmt chunk): write it again")
    code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", chunks[b"fmt "][:16])
    if code == _EXTENSIBLE and len(chunks[b"fmt "]) >= 26:
        [code] = struct.unpack("<H", chunks[b"fmt "][24:26])
    if (code, bits) not in {(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)}:
        raise DataError(f"{file}: is compressed or of {bits} bits (format {code}): write it as PCM of 8 to 32 bits")
    if not channels or not rate:
        raise DataError(f"{file}: says {channels} channels and {rate} samples a second: write it again")
    samples, size = chunks.get(b"data", b""), channels * bits // 8
    if len(samples) < size:
        raise DataError(f"{file}: has no samples: record it again or remove it")
    said = WavFormat(rate, channels, bits, code == _FLOAT, len(samples) // size)
    if said.is_float and not np.isfinite(_values(samples, said)).all():
        raise DataError(f"{file}: has a sample that is no number (NaN or infinite): write it again or remove it")
    return said, samples


def _chunks(content: bytes, file: Path) -> dict[bytes, bytes]:
    """Return the parts of a RIFF file by name; of several with one name the first."""
    found: dict[bytes, bytes] = {}
    start = 12
    while start + 8 <= len(content):
        name, size = content[start : start + 4], int.from_bytes(content[start + 4 : start + 8], "little")
        part = content[start + 8 : start + 8 + size]
        if name == b"data" and len(part) < size < _UNKNOWN_SIZE:
            raise DataError(f"{file}: is cut off, {len(part)} of {size} bytes of sound are there: copy it again")
        found.setdefault(name, part)
        start += 8 + size + size % 2
    return found


def _mono(samples: bytes, said: WavFormat) -> NDArray[Any]:
    """Return samples [T]: int16 where that holds them as they are, else floats of -1 to 1; channels are averaged."""
    values = _values(samples, said)
    if said.channels == 1:
        return values
    mixed: NDArray[Any] = as_type(values, np.dtype(np.float32)).reshape(-1, said.channels).mean(axis=1)
    return mixed


def _values(samples: bytes, said: WavFormat) -> NDArray[Any]:
    """Return the samples of all channels in turn."""
    size = said.bits // 8
    raw = np.frombuffer(samples, dtype=np.uint8, count=said.frames * said.channels * size)
    if said.is_float:
        with np.errstate(over="ignore"):  # of 64 bits: refused as infinite
            return raw.view(_little(f"f{size}")).astype(np.float32)
    if size == 1:
        return (raw.astype(np.int16) - 128) * 256  # 8 bits are the only ones without a sign
    if size == 3:
        padded = np.zeros((len(raw) // 3, 4), dtype=np.uint8)
        padded[:, 1:] = raw.reshape(-1, 3)
        return (padded.view(_little("i4"))[:, 0] / 2.0**31).astype(np.float32)
    values: NDArray[Any] = raw.view(_little(f"i{size}"))
    return (values / 2.0**31).astype(np.float32) if size == 4 else values


def _little(name: str) -> np.dtype[Any]:
    return np.dtype(name).newbyteorder("little")
