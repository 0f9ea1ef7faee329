"""The data sets known by name, where their files are looked for, and `load_dataset` for those and for a path."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from crad.data.dataset import Dataset, Labels, Splits, build_dataset, check_images, with_channels
from crad.data.known_files import KNOWN_FILES
from crad.data.labels import number_labels
from crad.data.readers.cifar import read_cifar
from crad.data.readers.embedded import read_digits, read_mnist5k
from crad.data.readers.image_folder import read_image_folder
from crad.data.readers.npz import is_npy_folder, read_npz
from crad.data.readers.table_file import TableOptions
from crad.data.subsets import balanced_subset
from crad.errors import ConfigError, DataError, unknown_name
from crad.plugins import is_object, passed_object
from crad.randomness import stream

if TYPE_CHECKING:
    from crad.data.kinds import ReadOptions

Reader = Callable[[Path], Splits]

_TORONTO = "https://www.cs.toronto.edu/~kriz"
_ZENODO = "https://zenodo.org/records/10519652/files"

_DIGITS = tuple("0123456789")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_WORDS = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
    lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
    pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
    shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_CIFAR100 = tuple(_CIFAR100_WORDS.split())
_PATHMNIST = (
    "adipose",
    "background",
    "debris",
    "lymphocytes",
    "mucus",
    "smooth muscle",
    "normal colon mucosa",
    "cancer-associated stroma",
    "colorectal adenocarcinoma epithelium",
)


@dataclass(frozen=True)
class Archive:
    """An official file: its name, where it is published, and how to know it."""

    file_name: str
    url: str
    md5: str
    size_bytes: int | None


@dataclass(frozen=True)
class StoredForm:
    """One form a data set may have in the data directory, and what reads it."""

    form: str
    file_name: str
    reader: Reader


@dataclass(frozen=True)
class Source:
    """A data set known by name. The first archive is the one `crad data fetch` takes."""

    name: str
    about: str
    class_names: tuple[str, ...]
    augmentation: str
    pad_to: int | None = None
    archives: tuple[Archive, ...] = ()
    places: tuple[StoredForm, ...] = ()
    embedded: Callable[[], Splits] | None = None
    is_table: bool = False  # inside a package, and its kind reads it


@dataclass(frozen=True)
class FoundFile:
    """Where a data set was found: `path` is None for one that comes inside a package."""

    name: str
    form: str
    path: Path | None
    read: Callable[[], Splits]
    source: Source | None  # None for a user's own file


def _cifar_places(name: str, *, number: int, folders: tuple[str, str]) -> tuple[StoredForm, ...]:
    python = partial(read_cifar, name=name, version="python")
    binary = partial(read_cifar, name=name, version="binary")
    return (
        StoredForm("npz file", f"{name}.npz", read_npz),
        StoredForm("python folder", folders[0], python),
        StoredForm("python archive", f"cifar-{number}-python.tar.gz", python),
        StoredForm("binary folder", folders[1], binary),
        StoredForm("binary archive", f"cifar-{number}-binary.tar.gz", binary),
    )


def _toronto(file_name: str, *, md5: str, size_bytes: int) -> Archive:
    return Archive(file_name, f"{_TORONTO}/{file_name}", md5, size_bytes)


# The binary archives come first: no pickle, and a little smaller.
_SOURCES = (
    Source(
        "cifar10",
        "60,000 photographs, 32x32",
        _CIFAR10,
        "crop-flip",
        archives=(
            _toronto("cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530", size_bytes=170_052_171),
            _toronto("cifar-10-python.tar.gz", md5="c58f30108f718f92721af3b95e74349a", size_bytes=170_498_071),
        ),
        places=_cifar_places("cifar10", number=10, folders=("cifar-10-batches-py", "cifar-10-batches-bin")),
    ),
    Source(
        "cifar100",
        "60,000 photographs, 32x32",
        _CIFAR100,
        "crop-flip",
        archives=(
            _toronto("cifar-100-binary.tar.gz", md5="03b5dce01913d631647c71ecec9e9cb8", size_bytes=168_513_733),
            _toronto("cifar-100-python.tar.gz", md5="eb9058c3a382ffc7106e4002c42a8d85", size_bytes=169_001_437),
        ),
        places=_cifar_places("cifar100", number=100, folders=("cifar-100-python", "cifar-100-binary")),
    ),
    Source(
        "pathmnist",
        "97,176 tissue patches, 28x28",
        _PATHMNIST,
        "flips",
        pad_to=32,
        archives=(
            Archive(
                "pathmnist.npz",
                f"{_ZENODO}/pathmnist.npz?download=1",
                md5="a8b06965200029087d5bd730944a56c1",
                size_bytes=205_615_438,
            ),
        ),
        places=(StoredForm("npz file", "pathmnist.npz", read_npz),),
    ),
    Source("digits", "1,797 digits, 8x8 gray", _DIGITS, "none", embedded=read_digits),
    Source("mnist5k", "5,000 digits, 28x28 gray", _DIGITS, "none", embedded=read_mnist5k),
    Source("breast-cancer", "569 biopsies, 30 numbers: a table", ("benign", "malignant"), "none", is_table=True),
)
DATASETS: dict[str, Source] = {source.name: source for source in _SOURCES}


def absolute_name(name_or_path: str) -> str:
    """Return a known name as it is; anything else that exists as its full path."""
    is_known = name_or_path in DATASETS or name_or_path in KNOWN_FILES or is_object(name_or_path)
    if is_known or not Path(name_or_path).expanduser().exists():
        return name_or_path
    return str(Path(name_or_path).expanduser().resolve())


def load_dataset(
    name_or_path: str,
    *,
    train_limit: int | None = None,
    test_limit: int | None = None,
    resize: int | None = None,
    table: TableOptions | None = None,
    kind: str | None = None,
    seconds: float | None = None,
    seed: int,
    data_dir: Path | None = None,
) -> Dataset:
    """Load a known data set, a .npz file, a folder of images or recordings, a table or what was passed.

    The limits keep a balanced subset; `table` says which of a table's columns is what, `kind` what an array holds.
    """
    from crad.data.kinds import ReadOptions, kind_of_source  # late: they need torch, and a list of names does not

    if is_object(name_or_path):
        if resize is not None or seconds is not None:
            word = "resize" if resize is not None else "seconds"
            raise ConfigError(f"{word} is for files: bring arrays that are passed in Python to their size before")
        if kind is not None:
            raise ConfigError("kind is for files: say it when the data set is made in Python")
        if table not in (None, TableOptions()):
            raise ConfigError(
                "label, site and other columns are for files: name them when the data set is made in Python"
            )
        dataset: Dataset = passed_object("data set", name_or_path)
    else:
        options = ReadOptions(resize, table or TableOptions(), data_dir, seconds, kind)
        path, options = source_of(name_or_path, options)
        dataset = kind_of_source(name_or_path, options).read(path, options)
        dataset = replace(dataset, name=name_or_path) if name_or_path in KNOWN_FILES else dataset
    if train_limit is not None:
        kept = _limit(dataset.train_labels, limit=train_limit, split="train", dataset=dataset, seed=seed)
        dataset = replace(
            dataset,
            train_samples=dataset.train_samples[kept],
            train_labels=dataset.train_labels[kept],
            train_sites=None if dataset.train_sites is None else dataset.train_sites[kept],
        )
    if test_limit is not None:
        kept = _limit(dataset.test_labels, limit=test_limit, split="test", dataset=dataset, seed=seed)
        dataset = replace(dataset, test_samples=dataset.test_samples[kept], test_labels=dataset.test_labels[kept])
    return dataset


def source_of(name_or_path: str, options: ReadOptions) -> tuple[str, ReadOptions]:
    """Return the path of a known file, with what is known of its columns; anything else as it is."""
    known = KNOWN_FILES.get(name_or_path)
    if known is None:
        return name_or_path, options
    folder = options.data_dir or data_directory()
    return str(known.locate(folder)), replace(options, table=known.options_with(options.table, folder))


def data_directory() -> Path:
    """Return where data files live: the environment's CRAD_DATA, else the user's cache directory."""
    import platformdirs

    return Path(os.environ.get("CRAD_DATA") or platformdirs.user_cache_dir("crad")).expanduser()


def known_source(name: str) -> Source:
    """Return the source of that name, or an error that lists the known ones."""
    if name in KNOWN_FILES:
        raise DataError(f"data set {name!r} is not fetched: get it from {KNOWN_FILES[name].published}")
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return DATASETS[name]


def check_present(name_or_path: str) -> None:
    """Refuse a data set whose files are not there, with how to get them; nothing is read."""
    known = KNOWN_FILES.get(name_or_path)
    if known is not None:
        known.locate(data_directory())
    elif name_or_path in DATASETS or not Path(name_or_path).expanduser().exists():
        locate(name_or_path)


def locate(name_or_path: str, *, data_dir: Path | None = None) -> FoundFile:
    """Find the files without reading them; a known name wins over a path of the same name."""
    if name_or_path not in DATASETS:
        return _locate_path(name_or_path)
    source = DATASETS[name_or_path]
    if source.is_table:
        return FoundFile(source.name, "inside a package", None, partial(_refuse_as_images, source.name), source)
    if source.embedded is not None:
        return FoundFile(source.name, "inside a package", None, source.embedded, source)
    folder = data_dir or data_directory()
    for place in source.places:
        path = folder / place.file_name
        if path.exists():
            return FoundFile(source.name, place.form, path, partial(place.reader, path), source)
    looked_for = ", ".join(place.file_name for place in source.places)
    raise DataError(
        f"data set {source.name!r} is not in {folder} (looked for {looked_for}): get it with"
        f" `crad data fetch {source.name}`, or point CRAD_DATA at the folder that has it"
    )


def _refuse_as_images(name: str) -> Splits:
    raise DataError(f"data set {name!r} is a table, and images are wanted here")


def read_found(found: FoundFile) -> Dataset:
    """Read and check what `locate` found."""
    splits, where = found.read(), str(found.path or found.name)
    if found.source is None:
        return build_dataset(splits, name=found.name, where=where)
    return build_dataset(
        replace(splits, class_names=found.source.class_names),
        name=found.name,
        where=where,
        augmentation=found.source.augmentation,
        pad_to=found.source.pad_to,
    )


def as_asked(found: FoundFile, *, resize: int | None = None, site: str | None = None) -> FoundFile:
    """Return where to read from such that labels are numbers from 0 on and images have the size that is asked for."""
    read = found.read
    if site is not None and found.path is not None:
        read = partial(read_image_folder, found.path, site=site)
    if resize is not None:
        read = partial(_read_resized, found, resize, site)
        source = None if found.source is None else replace(found.source, pad_to=None)
        found = replace(found, source=source)
    if found.source is not None:
        return replace(found, read=read)
    return replace(found, read=lambda: number_labels(read(), where=str(found.path)))


def _read_resized(found: FoundFile, side: int, site: str | None) -> Splits:
    from crad.data.resizing import resize_images

    if found.source is None and found.path is not None and found.path.is_dir() and not is_npy_folder(found.path):
        return read_image_folder(found.path, resize=side, site=site)  # where images of several sizes may lie
    splits, where = found.read(), str(found.path or found.name)
    train, test = with_channels(splits.train_images), with_channels(splits.test_images)
    check_images(train, where=f"{where}: train_images", is_small_allowed=True)
    check_images(test, where=f"{where}: test_images", is_small_allowed=True)
    return replace(splits, train_images=resize_images(train, side), test_images=resize_images(test, side))


def _locate_path(text: str) -> FoundFile:
    path = Path(text).expanduser()
    if is_npy_folder(path):
        return FoundFile(path.resolve().name, "folder of .npy files", path, partial(read_npz, path), None)
    if path.is_dir():
        return FoundFile(path.resolve().name, "image folder", path, partial(read_image_folder, path), None)
    if path.suffix.lower() == ".npz":
        return FoundFile(path.stem, "npz file", path, partial(read_npz, path), None)
    if path.exists():
        raise DataError(
            f"{path}: expected a table (.csv, .parquet), a .npz file or a folder of class folders with images"
        )
    raise unknown_name("data set", text, (*DATASETS, *KNOWN_FILES))


def _limit(labels: Labels, *, limit: int, split: str, dataset: Dataset, seed: int) -> Labels:
    """Return where the samples of a balanced subset are."""
    if not 1 <= limit <= len(labels):
        words = dataset.kind_of_data.words
        raise DataError(
            f"{split}_limit is {limit}, but there are only {len(labels)} {split} {words.several}: lower it or say none"
        )
    return balanced_subset(labels, size=limit, rng=stream(seed, "subset", split))
