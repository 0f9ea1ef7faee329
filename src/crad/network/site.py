"""peer.toml: what one organisation keeps to itself, where its keys and its data lie and where it listens."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crad.config import AtLeastOne, Device
from crad.errors import ConfigError, printable, unknown_name
from crad.network.attendance import AWAY_AFTER
from crad.network.fields import Address, Name
from crad.network.identity import check_name

TEMPLATE = """\
# {name}: what concerns this organisation alone. Nobody else sees this file.
# Paths are relative to the folder of this file.

# The name that the federation knows us by; our certificate carries it.
name = "{name}"

# The agreement of the federation, the same file for every member.
agreement = "federation.toml"

# Folder with key.pem (keep it secret) and certificate.pem (the others need it).
keys = "keys"

# Our images: an .npz file or a folder of class folders. They never leave this machine.
data = "data"

# Where we listen for the other members: address and port of this machine, the port open in the firewall.
listen = "0.0.0.0:8443"

# Where the run keeps its state: checkpoints, the others' snapshots, the ledger of what left.
state = "state"

# Where to compute: auto, cpu, cuda or mps.
device = "auto"

# How we reach the store, where the federation exchanges through one and we reach it by another address or with keys.
# store = "s3://bucket/folder"
# What the store wants to know of us, such as keys; it stays here.
# store_options = {{ key = "...", secret = "..." }}

# After so many missed rounds in a row a member is no longer waited for, until it delivers again.
# away_after = 2

# The way out to the other members, where there is no direct one.
# proxy = "http://proxy.example.org:3128"
"""


class Site(BaseModel):
    """The settings of one organisation, with all paths as they are on its machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name
    agreement: Path
    keys: Path
    data: Path
    listen: Address = "0.0.0.0:8443"  # others must reach it; TLS decides who gets in
    state: Path
    device: Device = "auto"
    store: str | None = None  # our own address of the store, if the agreement's is not how we reach it
    store_options: dict[str, Any] = Field(default_factory=dict, repr=False)  # keys, say: they stay here
    away_after: AtLeastOne = AWAY_AFTER  # missed rounds, until a member is no longer waited for
    proxy: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None


def template(name: str) -> str:
    """A peer.toml for a new member, with a word about every key."""
    return TEMPLATE.format(name=check_name(name))


def read_site(path: Path) -> Site:
    """The settings in a peer.toml; refused with one line that names the file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror}): make one with crad peer init") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for key in table:
        if key not in Site.model_fields:
            raise ConfigError(f"{path}: {unknown_name('key', key, Site.model_fields)}")
    places = {key: path.parent / table[key] for key in _PATHS if isinstance(table.get(key), str)}
    try:
        return Site(**{**table, **places})
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        quoted = "" if fault["type"] == "missing" else f" = {printable(fault['input'])!r}"
        message = fault["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{path}: {key}{quoted}: {message[0].lower()}{message[1:]}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


_PATHS = ("agreement", "keys", "data", "state")
