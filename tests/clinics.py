"""A small federation of real processes on this machine: keys, agreement, data and a folder each."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import torch

import crad.cli
from crad.config import Experiment
from crad.data.agreed.shard_files import write_shard
from crad.data.preprocessing import channel_statistics
from crad.federation.context import build_run_context
from crad.network.agreement import Agreement, Member, agreement_to_toml, make_agreement
from crad.network.identity import Identity, create_identity, load_identity
from crad.site.settings import template
from crad.site.setup import member_entry
from tests.forked import fork_or_start
from tests.organisations import Authority
from tests.ports import free_port

SETTINGS = {"rounds": 3, "lr": 0.05, "batch_size": 16, "distill_weight": 0.4}
CALL = "import base64, pickle, sys; call, args = pickle.loads(base64.b64decode(sys.argv[1])); call(*args)"
SMALL = {"preset": "demo", "train_limit": 300, "test_limit": 50, "proxy_size": 0, "width": 0.125, "models": ("cnn6",)}


def experiment(clients: int = 3, **settings: Any) -> Experiment:
    """The simulation that the clinics must equal."""
    return Experiment(**{**SMALL, **SETTINGS, "clients": clients, "seed": 5, "workers": 1, "eval_every": 1, **settings})


class Process(Protocol):
    """What of a process is needed here, however it was started."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self) -> int | None: ...


@dataclass
class Clinics:
    """Folders of several members under one; `join` starts one of them."""

    folder: Path
    agreement: Agreement
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    forked: list[Forked] = field(default_factory=list)

    def site(self, number: int) -> Path:
        return self.folder / f"clinic-{number}" / "peer.toml"

    def identity(self, number: int) -> Identity:
        return load_identity(self.site(number).parent / "keys")

    def state(self, number: int) -> Path:
        return self.folder / f"clinic-{number}" / "state" / self.agreement.hash[:12]

    def join(self, number: int, *words: str, log: IO[str] | None = None) -> subprocess.Popen[str]:
        """Start a member; what it says goes into pipes, or into a log that never fills up."""
        process = subprocess.Popen(
            [sys.executable, "-m", "crad", "peer", "join", "--site", str(self.site(number)), *words],
            stdout=subprocess.PIPE if log is None else log,
            stderr=subprocess.PIPE if log is None else log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.running.append(process)
        return process

    def join_forked(self, number: int, *, log: Path) -> Forked:
        """The same in a fraction of the time, without the export to ONNX."""
        self.forked.append(Forked(_join_here, self.site(number), log))
        return self.forked[-1]

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for one in self.forked:
            one.kill()
            one.wait()


class Forked:
    """A call in a process forked from one that has everything imported, which is most of what a start costs."""

    def __init__(self, call: Callable[..., None], *args: object) -> None:
        word = base64.b64encode(pickle.dumps((call, args))).decode()
        self._process = fork_or_start([sys.executable, "-c", CALL, word], text=True)
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int | None:
        return self._process.wait()


def _join_here(site: Path, log: Path) -> None:
    """`crad peer join` in this very process, without the export to ONNX, which takes seconds."""
    place = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream_number in (1, 2):
        os.dup2(place, stream_number)
    torch.set_num_threads(1)
    sys.modules["onnx"] = None  # type: ignore[assignment]  # as if it were not installed
    sys.argv = ["crad", "peer", "join", "--site", str(site)]
    crad.cli.main()


def found_clinics(
    folder: Path, *, clients: int = 3, exchange: str = "https", authority: Authority | None = None, **agreed: Any
) -> Clinics:
    """Everything that the members need, as `crad peer init`, `invite` and `trust` would leave it.

    Certificates are pinned, or issued by an authority.
    """
    context = build_run_context(experiment(clients))
    means, deviations = channel_statistics(context.data.dataset.train_images)
    members = []
    for number in range(clients):
        home = folder / f"clinic-{number}"
        identity = create_identity(home / "keys", f"clinic-{number}")
        address = f"127.0.0.1:{free_port()}"
        if authority is None:
            member = member_entry(identity, address=address, architecture="cnn6@0.125")
        else:
            authority.issue(identity)
            member = Member(name=identity.name, address=address, architecture="cnn6@0.125")
        members.append(member)
        write_shard(context.data.dataset, context.data.shards[number], home / "own.npz")
        text = template(f"clinic-{number}").replace('data = "data"', 'data = "own.npz"')
        text = text.replace("0.0.0.0:8443", address).replace('"federation.toml"', '"../federation.toml"')
        (home / "peer.toml").write_text(text)
    table = {
        "name": "trial",
        "classes": list(context.data.dataset.class_names),
        "image_shape": [*context.data.dataset.image_size, context.data.dataset.in_channels],
        "mean": means,
        "std": deviations,
        "augmentation": context.data.dataset.augmentation,
        "seed": 5,
        "exchange": exchange,
        "deadline_s": 120.0,
        "settings": SETTINGS,
        **agreed,
        "members": [member.model_dump(mode="json", exclude_none=True) for member in members],
    }
    if authority is not None:
        table["authority"] = authority.pem
    agreement = make_agreement(table)
    (folder / "federation.toml").write_text(agreement_to_toml(agreement))
    return Clinics(folder, agreement)
