"""peer.toml: what one organisation keeps to itself, where its keys and its data lie and where it listens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from crad.config import AtLeastOne, Device, Positive
from crad.data.agreed import ColumnMapping, LabelMapping, OwnFile
from crad.data.agreed.own_data import AS_AGREED, OwnClasses
from crad.errors import ConfigError, first_fault, unknown_name
from crad.files import read_toml
from crad.network.attendance import AWAY_AFTER
from crad.network.fields import Address, MemberName
from crad.network.identity import check_name

ARCHITECTURES_LINE = '# architectures = ["my_pkg:build"]'
TEMPLATE = """\
# {name}: what concerns this organisation alone. Nobody else sees this file.
# Paths are relative to the folder of this file.

# The name that the federation knows us by; our certificate carries it.
name = "{name}"

# The agreement of the federation, the same file for every member.
agreement = "federation.toml"

# Folder with key.pem (keep it secret) and certificate.pem (the others need it).
keys = "keys"

# Our data: an .npz file or a folder of class folders for images, a .csv or .parquet file for a table. It never leaves
# this machine.
data = "data"

# The names of our labels 0, 1, 2, ... in this order, where the data has no names of its own; or classes = "as agreed",
# if our labels are numbered exactly as the federation's list of classes.
# classes = ["benign", "malignant"]

# Where our table differs from the agreed columns: its names, units (agreed = ours * factor + offset), codes for
# categories and gaps, a column that we do not have, values outside the agreed range.
# label.name = "diagnosis"
# label.classes = {{ "0" = "healthy", "1" = "ill" }}
# columns.chol.name = "cholesterol"
# columns.chol.factor = 38.67
# columns.chol.missing = ["-9", "0"]
# columns.chol.outside = "gap"
# columns.sex.categories = {{ "M" = "male", "F" = "female" }}
# columns.thal.absent = true

# Where we listen for the other members: address and port of this machine, the port open in the firewall.
listen = "0.0.0.0:8443"

# Where the run keeps its state: checkpoints, the others' snapshots, the ledger of what left.
state = "state"

# Where to compute: auto, cpu, cuda or mps.
device = "auto"

# A safetensors file with the weights that our own network begins with, where it was trained before.
# weights = "pretrained.safetensors"

# Networks beside the built-in ones that may run here, ours and those of others we want to learn from. Their code runs
# on this machine: read it first. A member with another network is left out, and the run goes on.
{architectures}
# The same for a method that is not built in and that the agreement names.
# methods = ["my_pkg:METHOD"]

# Where training is private: the most that all agreements on this data may spend, as epsilon for one record. Before it
# would be exceeded nothing more is published, and we go on learning from the others.
# budget = 4.0

# Networks of others above these limits are left out: megabytes of weights and of one layer's output for a batch,
# max_teacher_mb = 2048
# and billions of operations for one image.
# max_teacher_gflops = 200

# How we reach the store, where the federation exchanges through one and we reach it by another address or with keys.
# store = "s3://bucket/folder"
# What the store wants to know of us, such as keys; it stays here.
# store_options = {{ key = "...", secret = "..." }}

# After so many missed rounds in a row a member is no longer waited for, until it delivers again.
# away_after = 2

# How many seconds we go on serving after the last round, for members that have not fetched our last snapshot; the
# federation's deadline_s unless said here. Long where members finish at very different times.
# serve_s = 86400

# The way out to the other members, where there is no direct one.
# proxy = "http://proxy.example.org:3128"
"""


def _own_classes(value: object) -> object:
    if value == AS_AGREED:
        return value
    names = [name for name in value if isinstance(name, str) and name] if isinstance(value, list | tuple) else []
    if not isinstance(value, list | tuple) or len(names) < len(value) or len(set(names)) < max(2, len(names)):
        raise ValueError(f'expected a list of two or more different names, or "{AS_AGREED}"')
    return tuple(names)


def _plain_name(name: str) -> str:
    if not name or not name.isprintable() or "@" in name:
        raise ValueError("expected names such as my_pkg:build, without a width")
    return name


Names = Annotated[tuple[Annotated[str, AfterValidator(_plain_name)], ...], Field(strict=False)]


class Site(BaseModel):
    """The settings of one organisation, with all paths as they are on its machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: MemberName
    agreement: Path
    keys: Path
    data: Path
    classes: Annotated[OwnClasses | None, PlainValidator(_own_classes)] = None  # what our labels are called
    columns: dict[str, ColumnMapping] = Field(default_factory=dict)  # how our table differs from the agreed columns
    label: LabelMapping = Field(default_factory=LabelMapping)
    listen: Address = "0.0.0.0:8443"  # others must reach it; TLS decides who gets in
    state: Path
    device: Device = "auto"
    weights: Path | None = None  # what our own network begins with; None: drawn by the seed
    architectures: Names = ()  # networks that may be imported here, beside the built-in ones
    methods: Names = ()
    budget: Positive | None = None  # epsilon that may be spent on our data, by all agreements together
    max_teacher_mb: Positive = 2048.0
    max_teacher_gflops: Positive = 200.0  # for one image
    store: str | None = None  # our own address of the store, if the agreement's is not how we reach it
    store_options: dict[str, Any] = Field(default_factory=dict, repr=False)  # keys, say: they stay here
    away_after: AtLeastOne = AWAY_AFTER  # missed rounds, until a member is no longer waited for
    serve_s: Positive | None = None  # after the last round, for those who come late; None: the agreed deadline_s
    proxy: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None

    @property
    def own_file(self) -> OwnFile:
        """Return where our data lies and how it differs from the agreement."""
        return OwnFile(str(self.data), self.classes, self.columns, self.label)


def template(name: str, *, architectures: Sequence[str] = ()) -> str:
    """Return a peer.toml for a new member, with a word about every key; these networks are allowed."""
    line = f"architectures = {json.dumps(list(architectures))}" if architectures else ARCHITECTURES_LINE
    return TEMPLATE.format(name=check_name(name), architectures=line)


def read_site(path: Path) -> Site:
    """Return the settings in a peer.toml; refused with one line that names the file."""
    table = read_toml(path, hint="make one with crad peer init")
    for key in table:
        if key not in Site.model_fields:
            raise ConfigError(f"{path}: {unknown_name('key', key, Site.model_fields)}")
    places = {key: path.parent / table[key] for key in _PATHS if isinstance(table.get(key), str)}
    try:
        return Site(**{**table, **places})
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_fault(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


_PATHS = ("agreement", "keys", "data", "state", "weights")
