"""A member's own series or recordings in the agreed form: class folders of WAV files, or arrays.

What does not fit is refused in one line with the file's name and what to do. N samples, D channels, T steps in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crad.data.agreed.own_data import AS_AGREED, OwnData, OwnSamples, agreed_numbers, divide_parts, own_names
from crad.data.agreed.peer_lines import ColumnMapping, check_known, listed, nearest, toml_key, toml_line
from crad.data.dataset import Dataset
from crad.data.kinds.series import SUFFIXES, SeriesKind, make_signals, parts_in
from crad.data.labels import number_texts
from crad.data.readers.class_folders import Listing, find_class_folders, first_suffix
from crad.data.readers.image_folder import PICTURE
from crad.data.readers.npz import is_npy_folder, read_arrays
from crad.data.readers.wav import WAV, WavFormat, as_type, read_wav_format, read_waves
from crad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from crad.data.agreed.data_schema import OwnFile
    from crad.data.kinds import Kind

MANY_CUT = 0.5  # of the recordings: the agreed length is too short for them


@dataclass(frozen=True)
class OwnArrays:
    """What a member's file holds, before anything is compared with an agreement."""

    parts: tuple[OwnSamples, ...]  # training, perhaps validation, test; labels are places in `names`
    names: tuple[str, ...]
    is_numbered: bool  # labels are numbered as agreed: the names are none of the file's
    rate: int | None
    channel_names: tuple[str, ...] | None


def load_own_signals(
    own: OwnFile,
    agreed: Dataset,
    *,
    channel_names: Sequence[str] | None = None,
    held_out: float,
    rng: np.random.Generator,
) -> OwnData:
    """Read a member's samples in the form and the classes that an empty data set has."""
    path = Path(own.source).expanduser()
    if agreed.kind == "audio":
        own.refuse_columns("recordings")
        if is_wav_folder(path):
            return _load_waves(path, own, agreed, held_out=held_out, rng=rng)
    found = read_own_arrays(own, agreed.kind_of_data, classes=agreed.class_names)
    if agreed.kind == "audio":
        _check_rate(found.rate, agreed, where=own.source)
    found = found if channel_names is None else _arranged(found, own, channel_names)
    if channel_names is None:
        own.refuse_columns("series whose channels have no names")
    _check_form(found.parts[0].samples, agreed, where=own.source)
    names = None if found.is_numbered else found.names
    to_agreed = agreed_numbers(
        names, agreed.class_names, num_classes=len(found.names), meanings=own.label.classes, where=own.source
    )
    parts = [
        OwnSamples(samples, to_agreed[part.labels]) for samples, part in zip(_alike(found), found.parts, strict=True)
    ]
    own_data = divide_parts(parts, agreed, held_out=held_out, rng=rng, where=own.source)
    return replace(own_data, **_said_of_channels(found, channel_names))


def is_wav_folder(path: Path) -> bool:
    """Return whether a folder has recordings as files."""
    if not path.is_dir() or is_npy_folder(path):
        return False
    return first_suffix(path, {*WAV.suffixes, *PICTURE.suffixes}) in WAV.suffixes


# --- arrays


def read_own_arrays(own: OwnFile, kind: Kind, *, classes: Sequence[str] | None) -> OwnArrays:
    """Read a .npz file or a folder of .npy files; `classes` are the agreed ones, None: there is no agreement yet."""
    path, where = Path(own.source).expanduser(), own.source
    if path.suffix.lower() not in SUFFIXES[:1] and not is_npy_folder(path):
        folders = ", a folder of class folders of WAV files" if kind.name == "audio" else ""
        raise DataError(
            f"{where}: the federation's data are {kind.words.several}: name a .npz file{folders} or a folder of .npy "
            "files as data in peer.toml"
        )
    assert isinstance(kind, SeriesKind), "series, or recordings"
    found = read_arrays(path, with_validation=True)
    splits = number_texts(found.splits, classes=None if own.classes == AS_AGREED else own.classes, where=where)
    said = own_names(splits.class_names, own.classes, where=where, listed=classes or ())
    numbered = classes or _numbers(splits.train_labels, splits.test_labels)
    names = tuple(numbered if said is None else said)
    pairs = [(splits.test_images, splits.test_labels)]
    if splits.validation_images is not None and splits.validation_labels is not None:
        pairs.insert(0, (splits.validation_images, splits.validation_labels))
    checked = [
        make_signals(
            kind, splits.train_images, splits.train_labels, samples, labels,
            classes=names, sites=None, rate=found.rate or 1, name=where, parts=parts_in(where),
        )
        for samples, labels in pairs
    ]  # fmt: skip
    parts = [OwnSamples(checked[0].train_samples, checked[0].train_labels)]
    parts += [OwnSamples(one.test_samples, one.test_labels) for one in checked]
    return OwnArrays(tuple(parts), names, said is None, found.rate, found.channel_names)


def _alike(found: OwnArrays) -> list[NDArray[Any]]:
    """Return the samples of all parts in one type: whole numbers are of another scale than floats."""
    arrays = [part.samples for part in found.parts]
    is_one = len({array.dtype for array in arrays}) == 1
    return arrays if is_one else [as_type(array, np.dtype(np.float32)) for array in arrays]


def _numbers(*labels: NDArray[Any]) -> tuple[str, ...]:
    """Return the names of classes that have none: their numbers."""
    highest = max((int(part.max()) for part in labels if part.size), default=0)
    return tuple(map(str, range(highest + 1)))


def _check_form(samples: NDArray[Any], agreed: Dataset, *, where: str) -> None:
    several, form = agreed.kind_of_data.words.several, agreed.train_samples.shape[1:]
    channels, length = samples.shape[1:]
    if channels != form[0]:
        raise DataError(f"{where}: {several} have {channels} channels, the federation agreed on {form[0]}: write those")
    if length != form[1]:
        raise DataError(
            f"{where}: {several} have {length} steps in time, the federation agreed on {form[1]}: cut them, fill "
            "them up, or measure again at so many"
        )


def _check_rate(rate: int | None, agreed: Dataset, *, where: str) -> None:
    """Refuse recordings of another sampling rate than agreed: the one place that knows it."""
    if rate is None:
        raise DataError(f"{where}: does not say its sampling rate: add rate = {agreed.rate} to the file if it is that")
    if rate != agreed.rate:
        raise DataError(
            f"{where}: has {rate} samples a second, the federation agreed on {agreed.rate}: resample it to "
            f"{agreed.rate}"
        )


# --- channels by name


def _arranged(found: OwnArrays, own: OwnFile, agreed: Sequence[str]) -> OwnArrays:
    """Return the channels in the agreed order, in the agreed units; one that is absent is a gap throughout."""
    check_known(own.columns, agreed)
    mappings = [own.columns.get(name, ColumnMapping()) for name in agreed]
    for name, mapping in zip(agreed, mappings, strict=True):
        _check_channel(name, mapping)
    there = found.channel_names
    if there is None:
        if any(mapping.name is not None or mapping.absent for mapping in mappings):
            raise ConfigError(
                f"{own.source}: does not name its channels, and columns in peer.toml does: add channel_names to it"
            )
        places: list[int | None] = list(range(found.parts[0].samples.shape[1]))
        if len(places) != len(agreed):
            return found  # refused for their number
    else:
        places = [
            None if mapping.absent else _place(own.source, name, mapping.name or name, there)
            for name, mapping in zip(agreed, mappings, strict=True)
        ]
    parts = [OwnSamples(_taken(part.samples, places, mappings), part.labels) for part in found.parts]
    return replace(found, parts=tuple(parts))


def _check_channel(name: str, mapping: ColumnMapping) -> None:
    where, allowed = f"columns.{toml_key(name)} in peer.toml", ("name", "absent", "factor", "offset")
    said = [key for key in mapping.model_fields_set if key not in allowed]
    if said:
        raise ConfigError(f"{where}: {said[0]} is for tables, and this is a channel of series: remove it")
    if mapping.absent and mapping != ColumnMapping(absent=True):
        raise ConfigError(f"{where}: is absent, and something else is said of it too: remove one")
    if mapping.factor == 0:
        raise ConfigError(f"{where}: factor = 0 would make one number of all")


def _place(where: str, agreed: str, name: str, there: Sequence[str]) -> int:
    if name in there:
        return there.index(name)
    said = f"the channel {name!r} of peer.toml" if name != agreed else f"the agreed channel {name!r}"
    raise DataError(
        f"{where}: lacks {said}, its channels are {listed(there)}: write "
        f"{toml_line('columns', agreed, name=nearest(name, there))} into peer.toml, with its name here, or "
        f"{toml_line('columns', agreed, absent=True)} if it is not measured here"
    )


def _taken(
    samples_NDT: NDArray[Any], places: Sequence[int | None], mappings: Sequence[ColumnMapping]
) -> NDArray[np.float32]:
    taken = np.full((len(samples_NDT), len(places), samples_NDT.shape[2]), np.nan, np.float32)
    for channel, (place, mapping) in enumerate(zip(places, mappings, strict=True)):
        if place is not None:
            values = samples_NDT[:, place]
            is_same = (mapping.factor, mapping.offset) == (1.0, 0.0)
            taken[:, channel] = values if is_same else values * mapping.factor + mapping.offset
    return taken


def _said_of_channels(found: OwnArrays, agreed: Sequence[str] | None) -> dict[str, Any]:
    if agreed is None:
        return {}
    if found.channel_names is None:
        return {
            "warnings": (
                "the file does not say which channel is which: add channel_names to it, or make sure that they are "
                f"{listed(agreed)} in this order",
            )
        }
    over = tuple(name for name in found.channel_names if name not in agreed)
    return {"understood": f"channels {listed(found.channel_names)}", "passed_over": over}


# --- files


def _load_waves(path: Path, own: OwnFile, agreed: Dataset, *, held_out: float, rng: np.random.Generator) -> OwnData:
    """Read class folders of WAV files, all brought to the agreed length.

    Without `test/` all of them are divided as a client's of a simulation, in the order of agreed classes and names.
    """
    channels, length = agreed.train_samples.shape[1:]
    if channels != 1:
        raise DataError(
            f"{own.source}: channels of WAV files are mixed into one, and the federation agreed on {channels}: write "
            "them into a .npz file"
        )
    folders = find_class_folders(path, WAV)
    names = own_names(folders.class_names, own.classes, where=own.source)
    to_agreed = agreed_numbers(
        names, agreed.class_names, num_classes=len(folders.class_names), meanings=own.label.classes, where=own.source
    )
    listings = [folders.train] if folders.test is None else [folders.train, folders.test]
    formats = [[read_wav_format(file) for file in listing.files] for listing in listings]
    said = [one for part in formats for one in part]
    for file, one in zip([file for listing in listings for file in listing.files], said, strict=True):
        _check_rate(one.rate, agreed, where=str(file))
    dtype = np.dtype(np.int16 if all(one.fits_int16 for one in said) else np.float32)
    parts = [_read_part(listing, to_agreed, length=length, agreed=agreed, dtype=dtype) for listing in listings]
    found = divide_parts(parts, agreed, held_out=held_out, rng=rng, where=own.source)
    return replace(found, **_said_of_lengths(said, length))


def _read_part(
    listing: Listing, to_agreed: NDArray[np.int64], *, length: int, agreed: Dataset, dtype: np.dtype[Any]
) -> OwnSamples:
    labels = to_agreed[listing.labels]
    order = np.argsort(labels, kind="stable")  # whatever our names of the classes are, the order is that of the agreed
    assert agreed.rate is not None, "recordings have one"
    waves = read_waves([listing.files[place] for place in order], length=length, rate=agreed.rate, dtype=dtype)
    return OwnSamples(waves, labels[order])


def _said_of_lengths(formats: Sequence[WavFormat], length: int) -> dict[str, Any]:
    seconds, frames = [one.seconds for one in formats], [one.frames for one in formats]
    padded, cut = sum(one < length for one in frames), sum(one > length for one in frames)
    understood = (
        f"{len(formats)} files of {min(seconds):.2f} to {max(seconds):.2f} s, brought to "
        f"{length / formats[0].rate:g} s: {padded} get silence at their end, {cut} are cut"
    )
    if cut <= MANY_CUT * len(formats):
        return {"understood": understood}
    longer = f"{cut} of {len(formats)} recordings are longer than agreed and are cut: agree on a larger length"
    return {"understood": understood, "warnings": (longer,)}
