"""Three hospitals on this machine: a process, a key, a port, data and an architecture each, and no server.

    python examples/three_hospitals/run.py

Ctrl-C ends all three; the same command goes on where they were. The commands that it shows are those that real
organisations would type, each on its own machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from crad.cli import make_app
from crad.cli.terminal.terminal_tables import plain_table
from crad.data.catalog import locate
from crad.errors import ConfigError, CradError, DataError
from crad.network.agreement import HTTPS, Agreement, read_agreement

FEDERATION = "three-hospitals"
HOSPITALS = {"north": "resnet18@0.125", "south": "resnet18-half@0.125", "west": "cnn6@0.25"}
LEARNING = {"lr": 0.05, "batch_size": 16, "distill_weight": 0.4}  # few images and few rounds want large steps
PATIENCE = {"deadline_s": 300, "give_up_s": 900}
END_S = 15.0  # for a hospital that was asked to end


def main() -> int:
    """Found the federation or take up the one that is there, let the hospitals learn, and show what came of it."""
    wishes = _read_words()
    folder: Path = wishes.folder
    try:
        agreement = found_or_take_up(folder, rounds=wishes.rounds, is_bucket=wishes.bucket, dataset=wishes.dataset)
        codes = take_part(folder) if len(read_outcomes(folder, agreement)) < len(HOSPITALS) else {}
    except CradError as error:
        print(f"three_hospitals: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("Stopped. The same command continues.", file=sys.stderr)
        return 130
    show(read_outcomes(folder, agreement), agreement)
    for name in (name for name, code in codes.items() if code != 0):
        print(f"three_hospitals: {name} ended early; the same command continues", file=sys.stderr)
    return 1 if any(codes.values()) else 0


def found_or_take_up(folder: Path, *, rounds: int, is_bucket: bool, dataset: str | None) -> Agreement:
    """The agreement in the folder, made with the commands of `crad` where there is none."""
    path = folder / "federation.toml"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty and holds no federation: choose another --folder")
        try:
            found(folder, rounds=rounds, is_bucket=is_bucket, dataset=dataset or _dataset_here())
        except BaseException:  # half a federation is none; what is in the folder is ours alone
            shutil.rmtree(folder, ignore_errors=True)
            raise
    agreement = read_agreement(path)
    if tuple(member.name for member in agreement.members) != tuple(HOSPITALS):
        raise ConfigError(f"{path} is not finished, or not of this example: remove {folder}, or choose another")
    if (agreement.rounds, agreement.exchange != HTTPS) != (rounds, is_bucket):
        way = "HTTPS" if agreement.exchange == HTTPS else "a bucket"
        raise ConfigError(f"{folder} has a federation of {agreement.rounds} rounds over {way}: choose another --folder")
    return agreement


def found(folder: Path, *, rounds: int, is_bucket: bool, dataset: str) -> None:
    """Data, keys, peer.toml and member.toml of every hospital, and the agreement of all."""
    _crad(
        *("data", "split", "--dataset", dataset, "--clients", len(HOSPITALS), "--seed", 1, "--alpha", 0.5),
        *("--train-limit", 600, "--proxy-size", 0, "--output", folder / "data"),
    )
    for (name, model), port in zip(HOSPITALS.items(), _free_ports(len(HOSPITALS)), strict=True):
        address = f"127.0.0.1:{port}"
        _crad("peer", "init", "--name", name, "--folder", folder / name, "--address", address, "--model", model)
        number = list(HOSPITALS).index(name)
        values = {"data": f"../data/client-{number}.npz", "listen": address, "agreement": "../federation.toml"}
        fill_in(folder / name / "peer.toml", values)
    agreed: dict[str, Any] = {"rounds": rounds, **LEARNING, **PATIENCE}
    if dataset == "pathmnist":
        agreed["augmentation"] = "flips"  # tissue has no up and down
    if is_bucket:
        agreed["exchange"] = f"file://{folder.absolute() / 'bucket'}"
    first, *others = HOSPITALS
    _crad(
        *("peer", "invite", "--federation", FEDERATION, "--site", folder / first / "peer.toml"),
        *("--member", folder / first / "member.toml", "--output", folder / "federation.toml"),
        *(word for key, value in agreed.items() for word in ("--set", f"{key}={value}")),
    )
    _crad("peer", "trust", folder / "federation.toml", *(folder / name / "member.toml" for name in others))


def fill_in(path: Path, values: dict[str, str]) -> None:
    """What a person would change in peer.toml with an editor."""
    text = path.read_text(encoding="utf-8")
    for key, value in values.items():
        text, count = re.subn(rf"^{key} = .*$", f'{key} = "{value}"', text, flags=re.MULTILINE)
        assert count == 1, f"peer.toml has one line for {key}"
    path.write_text(text, encoding="utf-8")


def take_part(folder: Path) -> dict[str, int]:
    """One `crad peer join` for every hospital, all at once; how each one ended."""
    processes: dict[str, subprocess.Popen[str]] = {}
    with _ended_with_us(processes):
        for name in HOSPITALS:
            words = ["peer", "join", "--site", str(folder / name / "peer.toml")]
            print(f"$ crad {shlex.join(words)} &")
            processes[name] = _start(words)
        readers = [threading.Thread(target=_pass_on, args=item, daemon=True) for item in processes.items()]
        for reader in readers:
            reader.start()
        codes = {name: process.wait() for name, process in processes.items()}
        for reader in readers:
            reader.join()
    return codes


def read_outcomes(folder: Path, agreement: Agreement) -> dict[str, dict[str, Any]]:
    """participant.json of the hospitals that have finished."""
    files = {name: _state(folder, name, agreement) / "participant.json" for name in HOSPITALS}
    return {
        name: json.loads(file.read_text()) | {"folder": file.parent} for name, file in files.items() if file.exists()
    }


def show(outcomes: dict[str, dict[str, Any]], agreement: Agreement) -> None:
    """Did joining help, hospital by hospital; and where the reports are."""
    rows = [
        [
            name,
            agreement.member(name).architecture,
            str(sum(row["test_samples"] for row in outcome["per_class"])),
            *(f"{outcome[which]['local_accuracy']:.2f}" for which in ("alone", "federated")),
            f"{outcome['difference']:+.2f}",
        ]
        for name, outcome in outcomes.items()
    ]
    header = ("hospital", "model", "test images", "alone %", "federated %", "difference")
    Console().print(plain_table(header, rows))
    for name, outcome in outcomes.items():
        print(f"Report of {name}: {outcome['folder'] / 'report.html'}")


def _read_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Three hospitals learn from each other on this machine.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/three-hospitals"), help="where all their files go")
    parser.add_argument("--bucket", action="store_true", help="exchange through a folder that all reach, not HTTPS")
    parser.add_argument("--dataset", help="what is divided among them [default: pathmnist if it is here, else digits]")
    return parser.parse_args()


def _dataset_here() -> str:
    try:
        locate("pathmnist")
    except DataError:
        return "digits"
    return "pathmnist"


def _crad(*words: object) -> None:
    """A command of `crad`, shown and done."""
    texts = [str(word) for word in words]
    print(f"$ crad {shlex.join(texts)}", flush=True)
    make_app(texts)(texts, standalone_mode=False)


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]  # all open at once: no port twice
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    # A group of its own: Ctrl-C comes to this process alone, which then ends the others one by one.
    threads = str(max(1, (os.cpu_count() or 1) // len(HOSPITALS)))
    return subprocess.Popen(  # noqa: S603  # our own command
        [sys.executable, "-m", "crad", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={"OMP_NUM_THREADS": threads, **os.environ},
        process_group=0,
    )


def _pass_on(name: str, process: subprocess.Popen[str]) -> None:
    """What a hospital says, with its name in front."""
    assert process.stderr is not None, "a pipe"
    for line in process.stderr:
        said = line.rstrip().removeprefix(f"{name} in {FEDERATION}").strip()
        print(f"{name:<5} | {said}", flush=True)


@contextmanager
def _ended_with_us(processes: dict[str, subprocess.Popen[str]]) -> Iterator[None]:
    """However the block ends, none of these processes is left; a hang-up or a SIGTERM is like Ctrl-C."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
        for process in processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _state(folder: Path, name: str, agreement: Agreement) -> Path:
    return folder / name / "state" / agreement.hash[:12]


if __name__ == "__main__":
    sys.exit(main())
