"""Hospitals on this machine, for the examples: a process, a key and a port each, founded with commands of `crad`."""

from __future__ import annotations

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from crad.cli import make_app
from crad.cli.terminal.terminal_tables import plain_table, table_console
from crad.errors import ConfigError, CradError
from crad.network.agreement import HTTPS, Agreement, read_agreement
from crad.report.participant import words_of

PATIENCE = {"deadline_s": 300, "give_up_s": 900}
END_S = 15.0  # for a hospital that was asked to end


@dataclass(frozen=True)
class Hospitals:
    """A federation of hospitals in folders below one, each with a network of its own; the first one invites."""

    federation: str
    models: Mapping[str, str]
    folder: Path

    @property
    def agreement_file(self) -> Path:
        """Return where the agreement of all is."""
        return self.folder / "federation.toml"

    def found_or_take_up(self, found: Callable[[], None], *, rounds: int, is_bucket: bool) -> Agreement:
        """Return the agreement in the folder, made by `found` where there is none."""
        path, folder = self.agreement_file, self.folder
        if not path.exists():
            if folder.exists() and any(folder.iterdir()):
                raise ConfigError(f"{folder} is not empty and holds no federation: choose another --folder")
            try:
                found()
            except BaseException:  # half a federation is none; what is in the folder is ours alone
                shutil.rmtree(folder, ignore_errors=True)
                raise
        agreement = read_agreement(path)
        if tuple(member.name for member in agreement.members) != tuple(self.models):
            raise ConfigError(f"{path} is not finished, or not of this example: remove {folder}, or choose another")
        if (agreement.rounds, agreement.exchange != HTTPS) != (rounds, is_bucket):
            way = "HTTPS" if agreement.exchange == HTTPS else "a bucket"
            raise ConfigError(
                f"{folder} has a federation of {agreement.rounds} rounds over {way}: choose another --folder"
            )
        return agreement

    def init(self, data: Mapping[str, str], own_lines: Mapping[str, str] | None = None) -> None:
        """Make keys, peer.toml and member.toml of every hospital; `own_lines` are what a person would add."""
        for (name, model), port in zip(self.models.items(), _free_ports(len(self.models)), strict=True):
            address, home = f"127.0.0.1:{port}", self.folder / name
            crad("peer", "init", "--name", name, "--folder", home, "--address", address, "--model", model)
            fill_in(
                home / "peer.toml",
                {"data": data[name], "listen": address, "agreement": f"../{self.agreement_file.name}"},
            )
            with (home / "peer.toml").open("a", encoding="utf-8") as file:
                file.write((own_lines or {}).get(name, ""))

    def agree(self, *words: object, is_bucket: bool, **agreed: object) -> None:
        """Have the first hospital invite, and add the others."""
        if is_bucket:
            agreed["exchange"] = f"file://{self.folder.absolute() / 'bucket'}"
        first, *others = self.models
        crad(
            *("peer", "invite", "--federation", self.federation, "--site", self.folder / first / "peer.toml"),
            *("--member", self.folder / first / "member.toml", "--output", self.agreement_file, *words),
            *(word for key, value in agreed.items() for word in ("--set", f"{key}={_said(value)}")),
        )
        crad("peer", "trust", self.agreement_file, *(self.folder / name / "member.toml" for name in others))

    def take_part(self) -> dict[str, int]:
        """Run one `crad peer join` for every hospital, all at once; return how each one ended."""
        processes: dict[str, subprocess.Popen[str]] = {}
        with _ended_with_us(processes):
            for name in self.models:
                words = ["peer", "join", "--site", str(self.folder / name / "peer.toml")]
                print(f"$ crad {shlex.join(words)} &")
                processes[name] = start(words, among=len(self.models))
            readers = [threading.Thread(target=self._pass_on, args=item, daemon=True) for item in processes.items()]
            for reader in readers:
                reader.start()
            codes = {name: process.wait() for name, process in processes.items()}
            for reader in readers:
                reader.join()
        return codes

    def outcomes(self, agreement: Agreement) -> dict[str, dict[str, Any]]:
        """Return participant.json of the hospitals that have finished."""
        files = {name: self.state(name, agreement) / "participant.json" for name in self.models}
        return {
            name: json.loads(file.read_text()) | {"folder": file.parent}
            for name, file in files.items()
            if file.exists()
        }

    def state(self, name: str, agreement: Agreement) -> Path:
        """Return where a hospital keeps its state."""
        return self.folder / name / "state" / agreement.hash[:12]

    def _pass_on(self, name: str, process: subprocess.Popen[str]) -> None:
        """Show what a hospital says, with its name in front."""
        assert process.stderr is not None, "a pipe"
        width = max(map(len, self.models))
        for line in process.stderr:
            said = line.rstrip().removeprefix(f"{name} in {self.federation}").strip()
            sys.stdout.write(f"{name:<{width}} | {said}\n")  # at once, or two hospitals share a line
            sys.stdout.flush()


def run_to_the_end(
    hospitals: Hospitals, agree: Callable[[], Agreement], finish: Callable[[Agreement], int] = lambda agreement: 0
) -> int:
    """Found the federation or take up the one that is there, let the hospitals learn, and show what came of it."""
    example = hospitals.federation.replace("-", "_")
    try:
        agreement = agree()
        is_done = len(hospitals.outcomes(agreement)) == len(hospitals.models)
        codes = {} if is_done else hospitals.take_part()
        show(hospitals.outcomes(agreement), agreement)
        for name in (name for name, code in codes.items() if code != 0):
            print(f"{example}: {name} ended early; the same command continues", file=sys.stderr)
        return 1 if any(codes.values()) else finish(agreement)
    except CradError as error:
        print(f"{example}: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("Stopped. The same command continues.", file=sys.stderr)
        return 130


def show(outcomes: Mapping[str, Mapping[str, Any]], agreement: Agreement) -> None:
    """Show whether joining helped, hospital by hospital; and where the reports are."""
    together = {name: (outcome.get("committee") or {}).get("accuracy") for name, outcome in outcomes.items()}
    rows = [
        [
            name,
            agreement.member(name).architecture,
            str(sum(row["test_samples"] for row in outcome["per_class"])),
            *(f"{outcome[which]['local_accuracy']:.2f}" for which in ("alone", "federated")),
            f"{outcome['difference']:+.2f}",
            *([] if together[name] is None else [f"{together[name]:.2f}"]),
        ]
        for name, outcome in outcomes.items()
    ]
    several = next((words_of(outcome)["several"] for outcome in outcomes.values()), "samples")
    header = ["hospital", "model", f"test {several}", "alone %", "federated %", "difference"]
    header += ["together %"] if rows and len(rows[0]) > len(header) else []
    table_console().print(plain_table(header, rows))
    for name, outcome in outcomes.items():
        print(f"Report of {name}: {outcome['folder'] / 'report.html'}")


def fill_in(path: Path, values: Mapping[str, str]) -> None:
    """Change in peer.toml what a person would change with an editor."""
    text = path.read_text(encoding="utf-8")
    for key, value in values.items():
        text, count = re.subn(rf"^{key} = .*$", f'{key} = "{value}"', text, flags=re.MULTILINE)
        assert count == 1, f"peer.toml has one line for {key}"
    path.write_text(text, encoding="utf-8")


def crad(*words: object) -> None:
    """Show a command of `crad` and do it."""
    texts = [str(word) for word in words]
    print(f"$ crad {shlex.join(texts)}", flush=True)
    make_app(texts)(texts, standalone_mode=False)


def start(words: Sequence[str], *, among: int) -> subprocess.Popen[str]:
    """Start a command of `crad` as a process that has its share of this machine."""
    threads = str(max(1, (os.cpu_count() or 1) // among))
    return subprocess.Popen(  # noqa: S603  # our own command
        [sys.executable, "-m", "crad", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={"OMP_NUM_THREADS": threads, **os.environ},
        process_group=0,  # Ctrl-C comes to this process alone, which then ends the others one by one
    )


def _said(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]  # all open at once: no port twice
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def _ended_with_us(processes: Mapping[str, subprocess.Popen[str]]) -> Iterator[None]:
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
