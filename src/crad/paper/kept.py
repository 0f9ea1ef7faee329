"""Finished runs as small files, kept in one folder or in many: where they lie, and which presets they were run with."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from crad.config import PRESETS, Experiment, stored_experiment
from crad.errors import RunError
from crad.files import read_toml
from crad.privacy.accountant import noise_question
from crad.runs.directory import RunDirectory

RUNS = "runs"


def kept_folders(root: Path) -> tuple[Path, ...]:
    """Return the folders of kept runs in a folder: it, its `runs`, or those of what it holds; refused without any."""
    if not root.is_dir():
        raise RunError(f"{root} is no folder: name one with kept runs, such as evidence/ of a clone")
    found = [root / RUNS, *sorted(path / RUNS for path in root.iterdir() if path.is_dir()), root]
    folders = tuple(folder for folder in found if folder.is_dir() and kept_runs([folder]))
    if not folders:
        raise RunError(f"{root} holds no kept run: those are written by crad reproduce WHAT --keep {root}")
    return folders


def kept_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the complete runs in these folders, each once by its name, which its settings decide."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if RunDirectory(path).summary_file.is_file() and RunDirectory(path).experiment_file.is_file():
                found.setdefault(path.name, path)
    return list(found.values())


def kept_presets(folders: Sequence[Path]) -> list[str]:
    """Return the presets that kept runs were run with, in the order in which presets are told."""
    said = {
        read_toml(RunDirectory(path).experiment_file, what="the experiment file").get("preset")
        for path in kept_runs(folders)
    }
    return [preset for preset in PRESETS if preset in said]


def kept_noise(folders: tuple[Path, ...], experiment: Experiment) -> float | None:
    """Return how much noise kept runs of private training needed for the same; None where none of them tells."""
    return _known_noise(folders).get(noise_question(experiment))


@functools.cache
def _known_noise(folders: tuple[Path, ...]) -> Mapping[tuple[object, ...], float]:
    found = dict[tuple[object, ...], float]()
    for path in kept_runs(folders):
        one = stored_experiment(RunDirectory(path).experiment_file)
        if one.private_training is not None and one.noise_multiplier is not None:
            found[noise_question(one)] = one.noise_multiplier
    return found
