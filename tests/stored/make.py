"""Makes what a version leaves on disk, small: `python -m tests.stored.make tests/stored/v0.2`.

A set is made once, by the version whose name it bears, and never changed. This script is of today: it may use
whatever lies inside crad, while tests/test_stored.py uses the command line and the public names alone.
"""

from __future__ import annotations

import base64
import io
import json
import multiprocessing
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path

import torch
from safetensors.torch import load_file

import crad
from crad.cli import main as crad_main
from crad.federation.message import pack
from crad.files import read_toml
from crad.network import identity
from crad.network.agreement import read_agreement
from crad.network.envelope import seal
from crad.network.equivocation.proof import make_proof
from crad.network.identity import load_identity
from crad.runs.callbacks import LambdaCallback
from crad.runs.records import Record
from crad.site.join import join
from crad.site.settings import read_site
from tests.stored.own_images import MEMBERS, write_own_images

CERTIFICATES = {"now": datetime(2020, 1, 1, tzinfo=UTC), "days": 36_500}  # valid whatever a clock says, for a century
ROUNDS = 3  # of the federation
OURS = MEMBERS[0]
TINY = "--preset demo --clients 3 --train-limit 300 --test-limit 50 --proxy-size 0 --width 0.03 --workers 1"
INTERRUPTED = f"{TINY} --method crad-plus --active 2 --rounds 4 --eval-every 1 --seed 5"
FINISHED = f"{TINY} --method crad --models cnn6,cnn6-wide --liars 1 --rounds 2 --eval-every 1 --seed 6"
REPRODUCED = (
    f"attacks {TINY} --dataset digits --models cnn6 --rounds 1 --eval-every 1 --attackers 1 --seeds 1 "
    "--columns none,noise --rows uniform,crad-plus"
)
ALIASED = "\n".join(
    [
        'preset = "demo"\nmethod = "crad"\nmodels = ["cnn6", "cnn6-wide"]\nclients = 3\nrounds = 2\nseed = 6',
        "train_limit = 300\ntest_limit = 50\nproxy_size = 0\nwidth = 0.03\nworkers = 1\neval_every = 1\nliars = 1\n",
    ]
)
AGREED = {
    "method": "crad-plus",
    "rounds": ROUNDS,
    "private_counts": 1.0,
    "batch_size": 16,
    "lr": 0.05,
    "seed": 7,
    "exchange": "file://store",  # below the folder where the command is given: no path of any machine
    "deadline_s": 10.0,
    "quorum": 1,
    "give_up_s": 20.0,
}
# Every key that a peer.toml may have, for one who never joins.
ALL_KEYS = """\
name = "clinic-b"
agreement = "../federation.toml"
keys = "keys"
data = "own.npz"
classes = "as agreed"
listen = "127.0.0.1:8443"
state = "state"
device = "cpu"
architectures = ["my_pkg:build"]
methods = ["my_pkg:METHOD"]
max_teacher_mb = 100.0
max_teacher_gflops = 2.5
store = "file://store"
store_options = { auto_mkdir = true }
away_after = 3
proxy = "http://proxy.example.org:3128"
"""


class StopHereError(Exception):
    """The run has come far enough."""


def main(target: Path) -> None:
    """Make the whole set in a new folder."""
    target.mkdir(parents=True)
    identity.create_identity.__kwdefaults__ = {**CERTIFICATES}
    make_interrupted(target)
    make_finished(target)
    make_kept(target)
    make_federation(target / "federation")
    take_part(target / "federation", target / "message")
    write_proof(target / "federation", target / "proof.json")
    remove_what_is_not_kept(target)


def make_interrupted(target: Path) -> None:
    """A run of four rounds, and the same stopped after two."""
    (target / "interrupted.flags").write_text(f"{INTERRUPTED}\n")
    call("run", *shlex.split(INTERRUPTED), "--output", target / "whole", "--quiet")
    experiment = crad.Experiment(**read_toml(target / "whole" / "experiment.toml"))
    with suppress(StopHereError):
        crad.run(experiment, output=target / "interrupted", callbacks=[stopping(after=2)])
    (target / "interrupted-end").mkdir()
    for name in ("rounds.jsonl", "summary.json"):
        shutil.move(target / "whole" / name, target / "interrupted-end" / name)
    shutil.rmtree(target / "whole")


def make_finished(target: Path) -> None:
    """A complete run under an old name of a setting, the same as a settings file, and one target explained."""
    (target / "finished.flags").write_text(f"{FINISHED}\n")
    (target / "finished.settings.toml").write_text(ALIASED)
    call("run", *shlex.split(FINISHED), "--output", target / "finished", "--quiet")
    said = call("explain", target / "finished", "--student", 0, "--image", 0, "--json")
    (target / "finished.explained.json").write_text(said)


def make_kept(target: Path) -> None:
    """Four runs of a table as small files, in folders that are found by what identifies an experiment."""
    (target / "kept.flags").write_text(f"{REPRODUCED}\n")
    words = ("--output", target / "work", "--keep", target / "kept", "--quiet")
    call("reproduce", *shlex.split(REPRODUCED), *words)
    shutil.rmtree(target / "work")


def make_federation(home: Path) -> None:
    """Three members with keys and data, and what they agreed on."""
    (home / "store").mkdir(parents=True)
    with inside(home):
        for name in MEMBERS:
            address = f"{name}.example.org:8443"
            call("peer", "init", "--name", name, "--folder", name, "--address", address, "--model", "cnn6@0.03")
            write_own_images(Path(name, "own.npz"), member=name)
            text = Path(name, "peer.toml").read_text().replace('data = "data"', 'data = "own.npz"')
            Path(name, "peer.toml").write_text(text.replace('"federation.toml"', '"../federation.toml"'))
        words = [word for key, value in AGREED.items() for word in ("--set", f"{key}={value}")]
        own = ("--site", f"{OURS}/peer.toml", "--member", f"{OURS}/member.toml")
        call("peer", "invite", "--federation", "three clinics", *own, *words)
        call("peer", "trust", "federation.toml", *(f"{name}/member.toml" for name in MEMBERS[1:]))
        Path("hash.txt").write_text(f"{read_agreement(Path('federation.toml')).hash}\n")


def take_part(home: Path, message: Path) -> None:
    """Two rounds of all, a third one of the others; then, elsewhere, ours, to know what we publish in it."""
    reached = {name: ROUNDS - (name == OURS) for name in MEMBERS}
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=join_until, args=(home, name, last)) for name, last in reached.items()]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0, "a member failed"
    elsewhere = home.with_name("elsewhere")
    shutil.copytree(home, elsewhere)
    join_until(elsewhere, OURS, ROUNDS)
    keep_message(elsewhere, message)
    (records,) = (elsewhere / OURS / "state").glob("*/rounds.jsonl")
    home.with_name("federation-end").mkdir()
    shutil.copy(records, home.with_name("federation-end") / "rounds.jsonl")
    shutil.rmtree(elsewhere)


def join_until(home: Path, name: str, last: int) -> None:
    """Take part as this member until this round is complete."""
    torch.set_num_threads(1)
    with inside(home), suppress(StopHereError):
        site = read_site(Path(name, "peer.toml"))
        join(read_agreement(site.agreement), site, callback=stopping(after=last))


def keep_message(home: Path, target: Path) -> None:
    """Keep what we published in the last round: the envelope, and in plain sight the manifest and the tensors."""
    (published,) = (home / "store").glob(f"*/{OURS}/round-{ROUNDS:05d}")
    target.mkdir()
    envelope = (published / "snapshot.manifest").read_bytes()
    (body,) = published.glob("snapshot-*.safetensors")
    shutil.copy(body, target / "body.safetensors")
    (target / "envelope.json").write_bytes(envelope)
    (target / "manifest.json").write_bytes(base64.b64decode(json.loads(envelope)["manifest"]))
    tensors = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in load_file(body).items()}
    (target / "tensors.json").write_text(json.dumps(tensors, indent=1) + "\n")


def write_proof(home: Path, path: Path) -> None:
    """Write a proof that one member signed two messages for one round."""
    agreement, liar = read_agreement(home / "federation.toml"), load_identity(home / MEMBERS[2] / "keys")
    messages = [
        pack({"weight": torch.full((2,), value)}, kind="snapshot", peer=2, round_index=1) for value in (0.0, 1.0)
    ]
    first, second = (
        seal(message.manifest, kind="snapshot", identity=liar, agreement=agreement) for message in messages
    )
    path.write_bytes(make_proof(agreement, (first, second)))


def remove_what_is_not_kept(target: Path) -> None:
    """Remove pages, which are large and only for people, and all of the others that nobody needs."""
    for page in target.rglob("report.html"):
        page.unlink()
    for name in MEMBERS:
        (target / "federation" / name / "own.npz").unlink()
    for name in MEMBERS[1:]:
        shutil.rmtree(target / "federation" / name / "keys")
        shutil.rmtree(target / "federation" / name / "state")
    (target / "federation" / "clinic-b" / "peer.toml").write_text(ALL_KEYS)


def stopping(*, after: int) -> LambdaCallback:
    """Hooks that end a run as soon as this round is on disk."""

    def on_round(record: Record) -> None:
        if record["round"] >= after:
            raise StopHereError

    return LambdaCallback(on_round=on_round)


def call(*words: object) -> str:
    """Return what a command of crad says; it must succeed."""
    sys.argv, said, code = ["crad", *map(str, words)], io.StringIO(), None
    with redirect_stdout(said):
        try:
            crad_main()
        except SystemExit as ended:
            code = ended.code
    assert not code, f"crad {shlex.join(sys.argv[1:])} failed"
    return said.getvalue()


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """While the block lasts, stand in this folder, so that no path of this machine gets into a file."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
