"""Folders of class folders, whatever lies in them: which files there are, of which class, for what, and whose.

Either `train/<class>/*` and `test/<class>/*`, or class folders alone; in place of `<class>` also `<site>/<class>`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crad.data.dataset import Labels
from crad.data.subsets import SPLIT_SEED, TEST_SHARE, stratified_split
from crad.errors import DataError
from crad.randomness import stream

FOLDER, FILENAME = "folder", "filename"  # what `site` may be of a folder
DIVIDER = "_"  # a file's name up to it says whose it is


@dataclass(frozen=True)
class FileType:
    """What is looked for in class folders."""

    suffixes: Collection[str]
    one: str
    several: str

    @property
    def listed(self) -> str:
        """Return the suffixes for a person."""
        return ", ".join(sorted(self.suffixes))

    def has(self, file: Path) -> bool:
        """Return whether a file's name ends so."""
        return file.suffix.lower() in self.suffixes


@dataclass(frozen=True)
class Listing:
    """Files with the class of each, and whose they are where that is known."""

    files: tuple[Path, ...]
    labels: Labels
    sites: tuple[str, ...] | None

    def part(self, places: Sequence[int] | Labels) -> Listing:
        """Return some of them."""
        own = None if self.sites is None else tuple(self.sites[place] for place in places)
        return Listing(tuple(self.files[place] for place in places), self.labels[np.asarray(places)], own)


@dataclass(frozen=True)
class ClassFolders:
    """What lies in a folder of class folders; without `test/` a fixed fifth of every class is the test set."""

    class_names: tuple[str, ...]
    train: Listing
    test: Listing


@dataclass(frozen=True)
class FoundClassFolders:
    """The same as it lies there; no test set where there is no `test/`."""

    class_names: tuple[str, ...]
    train: Listing
    test: Listing | None


def list_class_folders(path: Path, kind: FileType, *, site: str | None = None) -> ClassFolders:
    """List the files of every class, in the order of their names; nothing is opened."""
    found = find_class_folders(path, kind, site=site, least_classes=2)
    if found.test is None:
        return _split(found.train, found.class_names)
    return ClassFolders(found.class_names, found.train, found.test)


def find_class_folders(
    path: Path, kind: FileType, *, site: str | None = None, least_classes: int = 1
) -> FoundClassFolders:
    """List the files of every class as they lie there: nothing is held back for a test where there is no `test/`."""
    if site not in (None, FOLDER, FILENAME):
        raise DataError(
            f"site is {site!r}, and {path} is a folder: say {FOLDER!r} if it is SITE/CLASS/file, or {FILENAME!r} if a "
            f"file's name begins with its site and {DIVIDER!r}"
        )
    split_folders = [path / split for split in ("train", "test") if (path / split).is_dir()]
    if len(split_folders) == 1:
        raise DataError(f"{path}: has {split_folders[0].name}/ alone, expected both train/ and test/, or neither")
    train_folder = split_folders[0] if split_folders else path
    class_names = _class_names(train_folder, kind, site)
    if len(class_names) < least_classes:
        raise DataError(
            f"{train_folder}: {len(class_names)} class folders, expected {least_classes} or more: one folder per class"
        )
    train = _listing(train_folder, class_names, kind, site)
    if not split_folders:
        return FoundClassFolders(class_names, train, None)
    unknown = sorted(set(_class_names(split_folders[1], kind, site)) - set(class_names))
    if unknown:
        raise DataError(f"{split_folders[1]}: class folder {unknown[0]!r} is not in {train_folder}: add it there")
    return FoundClassFolders(class_names, train, _listing(split_folders[1], class_names, kind, site))


def first_suffix(path: Path, suffixes: Collection[str]) -> str | None:
    """Return which of these suffixes the first such file below a folder has; names alone are looked at."""
    for _, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            suffix = Path(name).suffix.lower()
            if suffix in suffixes:
                return suffix
    return None


def _split(whole: Listing, class_names: tuple[str, ...]) -> ClassFolders:
    """Hold back a fifth of every class, of every site where there are some: the same files in every run."""
    groups = whole.labels
    if whole.sites is not None:
        texts = [f"{site}\0{label}" for site, label in zip(whole.sites, whole.labels.tolist(), strict=True)]
        groups = np.unique(texts, return_inverse=True)[1].astype(np.int64)
    # The name of the stream is that of the first files that were divided so.
    test, train = stratified_split(groups, share=TEST_SHARE, rng=stream(SPLIT_SEED, "image-folder", "test"))
    return ClassFolders(class_names, whole.part(train), whole.part(test))


def _class_names(folder: Path, kind: FileType, site: str | None) -> tuple[str, ...]:
    parents = _site_folders(folder, kind, site) or [folder]
    return tuple(sorted({entry.name for parent in parents for entry in _folders_in(parent)}))


def _site_folders(folder: Path, kind: FileType, site: str | None) -> list[Path]:
    """Return the sites' folders where the classes lie one level deeper; none: its folders are the classes."""
    folders = _folders_in(folder)
    has_deeper = [one for one in folders if any(_folders_in(one)) and not any(map(kind.has, one.iterdir()))]
    if len(has_deeper) == len(folders) and folders:
        return folders
    if site == FOLDER:
        flat = next((one for one in folders if one not in has_deeper), folder)
        raise DataError(f"{flat}: site is {FOLDER!r}, expected SITE/CLASS/file: this folder has no class folders in it")
    return []


def _folders_in(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not _is_hidden(entry))


def _listing(folder: Path, class_names: tuple[str, ...], kind: FileType, site: str | None) -> Listing:
    files: list[Path] = []
    labels: list[int] = []
    sites: list[str] = []
    parents = _site_folders(folder, kind, site)
    for label, class_name in enumerate(class_names):
        for parent in parents or [folder]:
            if not (parent / class_name).is_dir():
                continue  # a test set, or a site, may lack a class
            found = _class_files(parent / class_name, kind)
            files += found
            labels += [label] * len(found)
            sites += [_site_of(file, site, parent) for file in found]
    is_known = bool(parents) or site is not None
    return Listing(tuple(files), np.array(labels, dtype=np.int64), tuple(sites) if is_known else None)


def _site_of(file: Path, site: str | None, parent: Path) -> str:
    if site != FILENAME:
        return parent.name
    name, divider, _ = file.stem.partition(DIVIDER)
    if not divider or not name:
        raise DataError(f"{file}: site is {FILENAME!r}, expected a name such as SITE{DIVIDER}1{file.suffix}: rename it")
    return name


def _class_files(folder: Path, kind: FileType) -> list[Path]:
    entries = sorted(entry for entry in folder.iterdir() if not _is_hidden(entry))
    found = [entry for entry in entries if kind.has(entry)]
    if found:
        return found
    if entries:
        raise DataError(
            f"{folder}: {entries[0].name!r} is no {kind.one} we can read, expected {kind.listed}: convert it"
        )
    raise DataError(f"{folder}: the class folder is empty, expected {kind.several} ({kind.listed}): fill or remove it")


def _is_hidden(entry: Path) -> bool:
    return entry.name.startswith(".") or entry.name == "Thumbs.db"
