"""What the tests share: a tiny data set that learns in milliseconds, and the real subsets where they are."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from crad.cli import main
from crad.config import Experiment
from tests.chromium import Chromium
from tests.cpu_times import pytest_addoption, pytest_configure, read_slow_tests
from tests.forked import fork_or_start

__all__ = ["pytest_addoption", "pytest_configure"]  # the option --cpu-times

ROOT = Path(__file__).resolve().parent.parent


# No property is timed: a machine that is busy with something else is no fault of it.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# One thread each, here and in every process that a test starts: on arrays as small as these a second thread only spins,
# and takes the core of pytest's other worker (test_models.py: 23 s of processor time became 8).
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


# What is imported and collected stays until the end: nobody need look for garbage in it, now or during the tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Have the garbage of the tests collected from here on, and only theirs, in larger portions: there is little."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `slow` what was measured to be, and put the longest files first: no worker is left alone with one."""
    slow = read_slow_tests()
    files: defaultdict[str, float] = defaultdict(float)
    for name, seconds in slow.items():
        files[name.partition("::")[0]] += seconds
    items.sort(key=lambda item: -files[item.nodeid.partition("::")[0]])  # stable: within a file all stays in order
    for item in items:
        taken = slow.get(item.nodeid.partition("[")[0])
        if taken is not None:
            item.add_marker(pytest.mark.slow(reason=f"takes {taken:g} s"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """One browser for all tests of pages; skipped where there is none."""
    with Chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def tiny_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of 8x8 grayscale images: a bright quadrant on noise. 240 to train, 80 to test."""
    rng = np.random.default_rng(7)
    arrays: dict[str, Any] = {}
    for split, per_class in (("train", 60), ("test", 20)):
        labels = np.repeat(np.arange(4), per_class)
        images = rng.integers(0, 120, size=(len(labels), 8, 8), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            row, column = divmod(int(label), 2)
            image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 90
        order = rng.permutation(len(labels))
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images[order], labels[order]
    path = tmp_path_factory.mktemp("tiny") / "tiny.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_npz: Path) -> Experiment:
    """Four clients with the three architecture families on the tiny data set; a round takes a fraction of a second.

    Their committee and metrics beyond accuracy are measured where a test looks at them: each takes an eighth of the
    time of every run.
    """
    return Experiment(
        dataset=str(tiny_npz),
        clients=4,
        rounds=3,
        alpha=0.5,
        width=0.125,
        batch_size=16,
        proxy_size=8,
        seed=5,
        device="cpu",
        workers=1,
        committee=False,
        metrics=False,
    )


@pytest.fixture(scope="session")
def shallow(tiny: Experiment) -> Experiment:
    """The same with two architectures, none of them deep: half the time, for what does not depend on the networks."""
    return change(tiny, models=("cnn6", "cnn6-wide"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real CIFAR and PathMNIST subsets."""
    folder = Path(os.environ.get("CRAD_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / "cifar10.npz").is_file():
        pytest.skip(f"no real data subsets in {folder}: set CRAD_DATA to the folder with cifar10.npz")
    return folder


@pytest.fixture
def crad_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `crad WORDS` in this process: exit code, standard output, standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["crad", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return run


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers of runs in this process: the same in all they do, without two seconds of imports each."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": fork_or_start})
    monkeypatch.setattr("crad.engines.processes.subprocess", forking)


def change(experiment: Experiment, **settings: object) -> Experiment:
    """The same experiment with some settings changed."""
    return Experiment(**{**experiment.model_dump(), **settings})


@contextmanager
def hearing_ctrl_c():
    """Children started in this block hear Ctrl-C: tests that run in the background may have been told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
