"""Members with a table each, as `crad data split` would leave them, and every one with habits of its own."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crad.config import Experiment, make_experiment
from crad.data.agreed import ReadOptions
from crad.data.agreed.shard_files import write_shard
from crad.data.readers.table_file import options_of
from crad.federation.context import build_run_context
from crad.network.agreement import add_member, agreement_to_toml
from crad.network.identity import create_identity
from crad.site.settings import read_site, template
from crad.site.setup import draft_agreement, member_entry
from tests.clinics import Clinics
from tests.conftest import change
from tests.ports import free_port

MODELS = ("mlp@0.25", "mlp-deep@0.25", "tab-transformer@0.25")
LEARNING = {"rounds": 2, "batch_size": 16, "optimizer": "adamw", "lr": 0.01}
Row = dict[str, str]

# What wards b and c write into peer.toml, and how their files differ from what ward a and the agreement have.
OWN_LINES = {
    1: """\
label.name = "diagnosis"
label.classes = { "0" = "no", "1" = "yes" }
columns.sugar.name = "glucose mmol"
columns.sugar.factor = 10
columns.sex.categories = { "W" = "f", "M" = "m" }
columns.lab.missing = [-9]
""",
    2: """\
columns.lab.absent = true
classes = "as agreed"
""",
}


def _as_ward_b(row: Row) -> Row:
    return {
        "patient": f"p{row['pressure']}",
        "diagnosis": str(int(row["ill"] == "yes")),
        "lab": row["lab"] or "-9",
        "sex": {"f": "W", "m": "M"}[row["sex"]],
        "glucose mmol": str(float(row["sugar"]) / 10),
        "pressure": row["pressure"],
    }


def _as_ward_c(row: Row) -> Row:
    return {"sex": row["sex"], "pressure": row["pressure"], "sugar": row["sugar"], "ill": str(int(row["ill"] == "yes"))}


HABITS: dict[int, Callable[[Row], Row]] = {1: _as_ward_b, 2: _as_ward_c}


def found_wards(folder: Path, wards: Experiment, *, exchange: str = "https", **agreed: Any) -> Clinics:
    """Everything that the members need, as `crad data split`, `crad peer init`, `invite` and `trust` would leave it."""
    context = build_run_context(change(wards, proxy_size=0))
    entries = []
    for number, model in enumerate(MODELS):
        home = folder / f"clinic-{number}"
        identity = create_identity(home / "keys", f"clinic-{number}")
        address = f"127.0.0.1:{free_port()}"
        entries.append(member_entry(identity, address=address, architecture=model))
        write_shard(context.data.dataset, context.data.shards[number], home / "own.csv", label="ill")
        if number in HABITS:
            rewrite(home / "own.csv", HABITS[number])
        text = template(f"clinic-{number}").replace('data = "data"', 'data = "own.csv"')
        text = text.replace("0.0.0.0:8443", address).replace('"federation.toml"', '"../federation.toml"')
        (home / "peer.toml").write_text(text + OWN_LINES.get(number, ""))
    site = read_site(folder / "clinic-0" / "peer.toml")
    columns = options_of(make_experiment({"label": "ill", "ranges": "lab=0:300"}))
    settings = {**LEARNING, "seed": wards.seed, "exchange": exchange, "deadline_s": 120.0, **agreed}
    agreement = draft_agreement("wards", site, entries[0], settings, options=ReadOptions(table=columns))
    for entry in entries[1:]:
        agreement = add_member(agreement, entry)
    (folder / "federation.toml").write_text(agreement_to_toml(agreement))
    return Clinics(folder, agreement)


def rewrite(path: Path, habit: Callable[[Row], Row]) -> None:
    """Write a table again as its owner would have it."""
    with path.open(newline="") as file:
        rows = [habit(row) for row in csv.DictReader(file)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
