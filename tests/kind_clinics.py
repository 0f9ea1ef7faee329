"""Members with texts, recordings, series or a table for trees, as `crad peer init`, `invite` and `trust` leave them."""

from __future__ import annotations

import csv
import shutil
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import crad
from crad.config import Experiment
from crad.data.agreed import ReadOptions
from crad.data.agreed.shard_files import training_texts, write_shard
from crad.federation.context import build_run_context
from crad.network.agreement import add_member, agreement_to_toml
from crad.network.identity import create_identity
from crad.site.settings import read_site, template
from crad.site.setup import draft_agreement, member_entry
from tests.clinics import Clinics
from tests.conftest import change
from tests.forked import import_before_forking
from tests.ports import free_port

LEARNING = {"rounds": 2, "batch_size": 16, "optimizer": "adamw", "lr": 0.01}


@dataclass(frozen=True)
class Kind:
    """One federation: the simulation that it must equal, its members' files and what they write into peer.toml."""

    simulated: Experiment
    dataset: crad.Dataset | None  # where the simulation is given it in memory
    write: Callable[[int, Path], str]  # a member's file into its folder; returns its name
    options: ReadOptions
    lines: Sequence[str]

    @property
    def models(self) -> Sequence[str]:
        return self.simulated.models

    def run(self, output: Path) -> None:
        crad.run(self.simulated, data=self.dataset, output=output)


def found_members(folder: Path, kind: Kind, *, exchange: str = "https", **agreed: Any) -> Clinics:
    """Everything that the members need."""
    entries = []
    for number, model in enumerate(kind.models):
        home = folder / f"clinic-{number}"
        identity = create_identity(home / "keys", f"clinic-{number}")
        address = f"127.0.0.1:{free_port()}"
        entries.append(member_entry(identity, address=address, architecture=model))
        text = template(f"clinic-{number}").replace('data = "data"', f'data = "{kind.write(number, home)}"')
        text = text.replace("0.0.0.0:8443", address).replace('"federation.toml"', '"../federation.toml"')
        (home / "peer.toml").write_text(text + kind.lines[number])
        tomllib.loads(text + kind.lines[number])
    site = read_site(folder / "clinic-0" / "peer.toml")
    settings = {**LEARNING, "seed": kind.simulated.seed, "exchange": exchange, "deadline_s": 120.0, **agreed}
    agreement = draft_agreement("kinds", site, entries[0], settings, options=kind.options)
    for entry in entries[1:]:
        agreement = add_member(agreement, entry)
    (folder / "federation.toml").write_text(agreement_to_toml(agreement))
    return Clinics(folder, agreement)


def as_members(experiment: Experiment, models: Sequence[str], **changes: Any) -> Experiment:
    """The simulation of members with these networks."""
    own = {"models": tuple(models), "clients": len(models), "width": 1, "proxy_size": 0, "eval_every": 1}
    return change(experiment, **own, **LEARNING, **changes)


def split_files(simulated: Experiment, suffix: str, dataset: crad.Dataset | None = None) -> Callable[[int, Path], str]:
    """Members' files as `crad data split` writes them."""
    context = build_run_context(simulated, dataset)
    data, texts = context.data, training_texts(simulated, context.data.dataset)

    def write(number: int, home: Path) -> str:
        path = home / f"own.{suffix}"
        write_shard(data.dataset, data.shards[number], path, label=simulated.label or "label", texts=texts)
        return path.name

    return write


def text_members(papers: Experiment, **changes: Any) -> Kind:
    """Two papers; the second one has other names for everything."""
    simulated = as_members(papers, ("bag@0.25", "text-cnn@0.25"), **changes)
    plain = split_files(simulated, "csv")

    def write(number: int, home: Path) -> str:
        name = plain(number, home)
        if number == 1:
            rename(home / name, {"text": "Meldung", "topic": "Ressort"}, {"sport": "Sport"})
        return name

    table = crad.data.readers.table_file.options_of(change(simulated, site=None))
    lines = ["", 'columns.text.name = "Meldung"\nlabel.name = "Ressort"\nlabel.classes = { "Sport" = "sport" }\n']
    return Kind(simulated, None, write, ReadOptions(table=table), lines)


def rename(path: Path, columns: dict[str, str], values: dict[str, str]) -> None:
    """Write a table again with its owner's names of columns and values, and a column of its own."""
    with path.open(newline="") as file:
        rows = [
            {columns.get(key, key): values.get(value, value) for key, value in row.items()}
            for row in csv.DictReader(file)
        ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["number", *rows[0]])
        writer.writeheader()
        writer.writerows({"number": str(number), **row} for number, row in enumerate(rows))


def sound_members(whistles: Path, people: Experiment, folder: Path, **changes: Any) -> Kind:
    """Two people with class folders of WAV files, whose test files are nobody's; one calls the classes otherwise."""
    whole = folder / "whole"
    for file in sorted(whistles.rglob("*.wav")):
        person, number = file.stem.split("_")
        part = "test" if int(number) % 10 >= 8 else "train"
        target = whole / part / person / file.parent.name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / file.name)
    simulated = as_members(people, ("mel-cnn6@0.125", "cnn1d@0.125"), **changes)
    simulated = change(simulated, dataset=str(whole), site="folder", seconds=0.38)

    def write(number: int, home: Path) -> str:
        shutil.copytree(whole / "train" / ("ann", "bob")[number], home / "sounds")
        if number == 1:
            (home / "sounds" / "high").rename(home / "sounds" / "zz")
        return "sounds"

    return Kind(simulated, None, write, ReadOptions(seconds=0.38), ["", 'label.classes = { zz = "high" }\n'])


def series_members(pumps: crad.Dataset, **changes: Any) -> Kind:
    """Two plants; the first one names its channels, the second one has them in another order and unit."""
    simulated = as_members(
        crad.Experiment(partition="natural", seed=3, workers=1, device="cpu", clients=2),
        ("cnn1d@0.125", "transformer1d@0.25"),
        **changes,
    )
    plain = split_files(simulated, "npz", pumps)

    def write(number: int, home: Path) -> str:
        name = plain(number, home)
        with np.load(home / name) as file:
            arrays = dict(file)
        names = ["swing", "noise"]
        if number == 1:
            for part in ("train_samples", "val_samples", "test_samples"):
                arrays[part] = np.stack([arrays[part][:, 1], arrays[part][:, 0] / 2], axis=1)
            names = ["noise", "half"]
        np.savez(home / name, **arrays, channel_names=np.array(names))
        return name

    lines = ["", 'columns.swing.name = "half"\ncolumns.swing.factor = 2\n']
    return Kind(simulated, pumps, write, ReadOptions(kind="series"), lines)


def tree_members(wards: Experiment, **changes: Any) -> Kind:
    """Three wards, two of them with trees."""
    import_before_forking("sklearn.ensemble")  # which two of three members need, a second each
    simulated = as_members(wards, ("gradient-boosting@0.1", "mlp@0.25", "random-forest@0.1"), **changes)
    # The second ward's laboratory has another unit; the range has room for both, so that nothing is converted.
    table = crad.data.readers.table_file.options_of(change(simulated, site=None, ranges=("lab=0:300",)))
    return Kind(simulated, None, split_files(simulated, "csv"), ReadOptions(table=table), ["", "", ""])
