"""Runs survive: whatever stops one, resuming ends with the weights and records of an uninterrupted run."""

from __future__ import annotations

import errno
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import crad
from crad import files
from crad.config import to_toml
from crad.errors import RunError
from crad.runs.callbacks import LambdaCallback
from crad.runs.directory import RunDirectory
from tests.conftest import change, hearing_ctrl_c
from tests.forked import fork_or_start
from tests.test_golden import without_timing


def final_state(run: Path) -> tuple[list[Any], dict[str, torch.Tensor], Any]:
    """Records without times, all tensors of the last checkpoint, and the evaluation of every peer."""
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    state = json.loads(sorted((run / "checkpoint").glob("round-*.json"))[-1].read_text())
    tensors = {
        f"{entry['index']}:{name}": tensor
        for entry in state["peers"]
        if entry["state"] is not None
        for name, tensor in safetensors.torch.load_file(run / "checkpoint" / "states" / entry["state"]).items()
    }
    return without_timing(rounds), tensors, state


def assert_same_end(run: Path, other: Path) -> None:
    assert_same_weights(run, other)
    mine, theirs = (json.loads((path / "summary.json").read_text()) for path in (run, other))
    for key in ("round_seconds", "total_seconds", "peak_memory_bytes", "hardware"):
        mine.pop(key), theirs.pop(key)
    assert mine == theirs


def assert_same_weights(run: Path, other: Path) -> None:
    """Every record, weight, momentum and random state, to the last bit."""
    rounds, tensors, state = final_state(run)
    other_rounds, other_tensors, other_state = final_state(other)
    assert rounds == other_rounds
    assert state == other_state
    assert tensors.keys() == other_tensors.keys()
    assert all(torch.equal(tensors[name], other_tensors[name]) for name in tensors)


@pytest.fixture(scope="module")
def experiment(shallow):
    return change(shallow, rounds=4, active=3, eval_every=2, committee=True)


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory) -> Path:
    """The uninterrupted run."""
    path: Path = tmp_path_factory.mktemp("whole") / "run"
    crad.run(experiment, output=path)
    return path


class StopError(Exception):
    """Something ends the run from inside."""


def run_with_stops(experiment, path: Path, *, after_steps: Iterable[int], stage: str | None = None) -> None:
    """Run to the end, stopped after so many steps (of one stage, or of any) and resumed each time.

    Steps are counted as in a run that nothing stops: those of a round that was stopped and begun again count once.
    """
    seen: Counter[int] = Counter()  # steps by round
    stop_at = 0

    def stop(step):
        if stage is None or step.stage == stage:
            seen[step.round_index] += 1
            if seen.total() == stop_at:
                raise StopError

    for times, stop_at in enumerate(after_steps):  # noqa: B007  # read above
        with pytest.raises(StopError):
            crad.run(experiment, output=path, resume=times > 0, callbacks=[LambdaCallback(on_step=stop)])
        for again in {0, 1} if max(seen) <= 1 else {max(seen)}:  # measuring, which is before round 1, begins with it
            seen.pop(again, None)
    crad.run(experiment, output=path, resume=True)


def test_a_run_stopped_inside_or_between_rounds_ends_the_same(experiment, whole, tmp_path):
    run_with_stops(experiment, tmp_path / "run", after_steps=(1, 3, 5, 8, 12, 16, 20))
    assert_same_end(tmp_path / "run", whole)


class Fault(Enum):
    """Where the disk fails."""

    LINE = "rounds.jsonl"
    STATE = "peer-0001"
    MESSAGE = "peer-0002-phase-0"
    CHECKPOINT = ".round-00002.json.writing"
    SUMMARY = ".summary.json.writing"


@pytest.mark.parametrize("fault", Fault)
def test_a_full_disk_loses_nothing(experiment, whole, tmp_path, monkeypatch, fault):
    write, write_bytes = files.write_flushed, Path.write_bytes
    countdown = 1 if fault in (Fault.SUMMARY, Fault.CHECKPOINT) else 2

    def is_full(path: Path) -> bool:
        nonlocal countdown
        if not path.name.removeprefix(".").startswith(fault.value.removeprefix(".")):
            return False
        countdown -= 1
        return countdown == 0

    def full(path: Path, content: bytes, *, mode: str = "wb") -> None:
        if is_full(path):
            write(path, content[: len(content) // 2], mode=mode)  # half of it still fitted
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content, mode=mode)

    def full_too(path: Path, content: bytes) -> int:
        if is_full(path):
            write_bytes(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, content)

    for module in (files, sys.modules["crad.runs.directory"]):
        monkeypatch.setattr(module, "write_flushed", full)
    monkeypatch.setattr(Path, "write_bytes", full_too)
    with pytest.raises(RunError, match=r"No space left on device.*crad run --resume"):
        crad.run(experiment, output=tmp_path / "run")
    monkeypatch.undo()
    crad.run(experiment, output=tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", whole)
    assert not list((tmp_path / "run").rglob(".*"))


def run_command(start: Callable[..., subprocess.Popen[str]], *words: object) -> subprocess.Popen[str]:
    """`crad run WORDS` in a process that was forked, or started as users do."""
    command = [sys.executable, "-m", "crad", "run", *map(str, words)]
    with hearing_ctrl_c():
        return start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_line(run: Path, lines: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    is_over = False
    while time.monotonic() < deadline and not is_over:
        is_over = process.poll() is not None  # looked at first: what it wrote before it ended counts
        file = run / "rounds.jsonl"
        if file.is_file() and file.read_text().count("\n") >= lines:
            return
        time.sleep(0.005)
    raise AssertionError(f"no {lines} rounds came: {process.communicate()}")


@pytest.fixture(scope="module")
def longer(experiment):
    """Rounds enough that a signal after the first comes before the last, on a busy machine too."""
    return change(experiment, rounds=12)


@pytest.fixture(scope="module")
def longer_whole(longer, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("longer") / "run"
    crad.run(longer, output=path)
    return path


@pytest.mark.parametrize(
    ("number", "code", "start"),
    [(signal.SIGINT, 130, subprocess.Popen), (signal.SIGTERM, 143, fork_or_start)],
    ids=["ctrl-c", "terminated"],
)
def test_an_interrupted_command_says_how_to_go_on_and_goes_on(longer, longer_whole, tmp_path, number, code, start):
    (tmp_path / "experiment.toml").write_text(to_toml(longer))
    process = run_command(start, "--config", tmp_path / "experiment.toml", "--output", tmp_path / "run")
    wait_for_line(tmp_path / "run", 1, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"continue with crad run --resume {tmp_path / 'run'}" in errors
    assert "Traceback" not in errors
    assert_resumes(tmp_path / "run", rounds=longer.rounds)
    assert_same_end(tmp_path / "run", longer_whole)


def test_a_run_killed_at_random_points_again_and_again_ends_the_same(experiment, whole, tmp_path):
    (tmp_path / "experiment.toml").write_text(to_toml(experiment))
    dice = random.Random(3)
    process = run_command(fork_or_start, "--config", tmp_path / "experiment.toml", "--output", tmp_path / "run")
    for kill in range(3):
        wait_for_line(tmp_path / "run", kill + 1, process)
        time.sleep(dice.uniform(0, 0.15))
        process.kill()
        process.communicate()
        if (tmp_path / "run" / "summary.json").exists():
            break
        process = run_command(fork_or_start, "--resume", tmp_path / "run")
    process.communicate(timeout=120)
    assert_resumes(tmp_path / "run", rounds=4)
    assert_same_end(tmp_path / "run", whole)


def assert_resumes(run: Path, *, rounds: int) -> None:
    process = run_command(fork_or_start, "--resume", run, "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["rounds"] == rounds


def test_a_complete_run_is_only_read(experiment, whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    result = crad.run(experiment, output=whole, resume=True)
    assert result.summary["best_round"] in (2, 4)
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*")}


def test_the_checkpoints_kept_are_the_newest_and_the_best(experiment, whole):
    best = json.loads((whole / "summary.json").read_text())["best_round"]
    rounds = {f"round-{best:05d}.json", "round-00004.json"}
    assert {path.name for path in (whole / "checkpoint").iterdir()} == {*rounds, "states"}
    peers = [entry for name in rounds for entry in json.loads((whole / "checkpoint" / name).read_text())["peers"]]
    named = {entry["state"] for entry in peers if entry["state"] is not None}
    assert {path.name for path in (whole / "checkpoint" / "states").iterdir()} == named


def test_the_best_round_is_kept_while_newer_ones_come_and_go(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr("crad.runs.loop.selected_round", lambda records: records[0])
    crad.run(change(experiment, method="local", rounds=3, models=("cnn6",)), output=tmp_path / "run")
    kept = {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()}
    assert kept == {"round-00001.json", "round-00003.json", "states"}


def test_changed_data_is_noticed_on_resume(experiment, tmp_path, tiny_npz):
    import numpy as np

    copy = tmp_path / "data.npz"
    copy.write_bytes(tiny_npz.read_bytes())
    moved = change(experiment, dataset=str(copy))

    def stop(record):
        raise StopError

    with pytest.raises(StopError):
        crad.run(moved, output=tmp_path / "run", callbacks=[LambdaCallback(on_round=stop)])
    arrays = dict(np.load(copy))
    arrays["train_images"] = arrays["train_images"][::-1]
    np.savez(copy, **arrays)
    with pytest.raises(RunError, match=r"has changed since"):
        crad.run(moved, output=tmp_path / "run", resume=True)


def test_a_run_is_never_continued_with_other_settings(experiment, whole, tmp_path):
    with pytest.raises(RunError, match="holds a run with other settings"):
        crad.run(change(experiment, lr=0.5), output=whole, resume=True)
    with pytest.raises(RunError, match="is no run directory"):
        crad.run(experiment, output=tmp_path / "nowhere", resume=True)


def test_a_run_that_another_process_works_on_is_refused(experiment, tmp_path):
    refused = []

    def intrude(record):
        with pytest.raises(RunError, match="is in use by another process") as refusal:
            crad.run(experiment, output=tmp_path / "run", resume=True)
        refused.append(refusal)
        raise StopError

    with pytest.raises(StopError):
        crad.run(experiment, output=tmp_path / "run", callbacks=[LambdaCallback(on_round=intrude)])
    assert len(refused) == 1


def test_a_relative_data_file_is_found_from_anywhere(experiment, tmp_path, tiny_npz, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "data.npz").write_bytes(tiny_npz.read_bytes())
    monkeypatch.chdir(tmp_path / "there")
    short = change(experiment, dataset="data.npz", method="local", rounds=1, models=("cnn6",))
    crad.run(short, output=tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    stored = RunDirectory(tmp_path / "run").experiment()
    assert crad.run(stored, output=tmp_path / "run", resume=True).summary["rounds"] == 1


@pytest.mark.parametrize("content", ["{}", "[]", "nonsense"])
def test_a_damaged_summary_is_refused_by_name(experiment, whole, tmp_path, content):
    shutil.copytree(whole, tmp_path / "copy")
    (tmp_path / "copy" / "summary.json").write_text(content)
    with pytest.raises(RunError, match=r"summary.json is damaged"):
        crad.run(experiment, output=tmp_path / "copy", resume=True)


def interrupted(experiment, path: Path, *, after: int) -> None:
    """A run that was stopped when a round was complete."""

    def stop(record):
        if record["round"] == after:
            raise StopError

    with pytest.raises(StopError):
        crad.run(experiment, output=path, callbacks=[LambdaCallback(on_round=stop)])


def test_rounds_without_a_checkpoint_are_never_thrown_away(experiment, tmp_path):
    interrupted(experiment, tmp_path / "run", after=2)
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    with pytest.raises(RunError, match="has 2 rounds but no checkpoint of them"):
        crad.run(experiment, output=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"abc", b"\x10\0\0\0\0\0\0\0[]", b"\2\0\0\0\0\0\0\0[]"])
def test_a_damaged_state_is_refused_by_name(experiment, tmp_path, content):
    interrupted(experiment, tmp_path / "run", after=1)
    state = next((tmp_path / "run" / "checkpoint" / "states").iterdir())
    state.write_bytes(content)
    with pytest.raises(RunError, match=r"checkpoint .*round-00001.json cannot be read"):
        crad.run(experiment, output=tmp_path / "run", resume=True)


def test_a_checkpoint_of_another_version_is_refused(experiment, tmp_path):
    interrupted(experiment, tmp_path / "run", after=1)
    file = tmp_path / "run" / "checkpoint" / "round-00001.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))
    with pytest.raises(RunError, match="it has schema 99, this version reads 2"):
        crad.run(experiment, output=tmp_path / "run", resume=True)


@pytest.mark.usefixtures("forked_workers")
def test_a_run_is_continued_with_another_engine_by_the_command(experiment, whole, tmp_path, crad_command):
    interrupted(change(experiment, workers=2), tmp_path / "run", after=2)
    code, _, err = crad_command("run", "--resume", tmp_path / "run", "--engine", "serial", "--quiet")
    assert code == 0, err
    assert_same_end(tmp_path / "run", whole)
