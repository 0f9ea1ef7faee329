"""Writing an agreement: what a member sends to the others, and a first draft from the own data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import ValidationError

from crad.data.agreed import ReadOptions, draft_schema
from crad.errors import ConfigError, first_fault
from crad.files import read_toml
from crad.models import Architecture, check_fits_kind
from crad.network.agreement import Agreement, Member, make_agreement
from crad.network.identity import Identity, fingerprint
from crad.site.settings import Site

PUBLIC_NORMALISATION = {"mean": 0.5, "std": 0.25}  # about that of photographs
HEADER = """\
# What the other members need to know of us. Nothing here is secret; the fingerprint is best compared by phone.
"""


def member_entry(identity: Identity, *, address: str | None, architecture: str) -> Member:
    """Return the member of an agreement that this identity is."""
    pem = identity.certificate.public_bytes(Encoding.PEM).decode()
    table = {"name": identity.name, "architecture": architecture, "certificate": pem}
    pin = fingerprint(identity.certificate)
    return _member({**table, "fingerprint": pin, **({} if address is None else {"address": address})}, where="member")


def member_toml(member: Member) -> str:
    """Return the member as a file to send."""
    return HEADER + tomli_w.dumps(member.model_dump(mode="json", exclude_none=True), multiline_strings=True)


def read_member_toml(path: Path) -> Member:
    """Return the member in a file that somebody sent; refused with one line that names the file."""
    return _member(read_toml(path, hint="crad peer init writes one"), where=str(path))


def draft_agreement(
    name: str, site: Site, member: Member, settings: Mapping[str, Any], *, options: ReadOptions | None = None
) -> Agreement:
    """Return an agreement with one member, with classes and schema of that member's data.

    Labels without names are called what that member's peer.toml says; where it says "as agreed", by their numbers.
    """
    draft = draft_schema(site.own_file, options or ReadOptions())
    check_fits(member, kind=draft.agreed.get("data", {}).get("kind", "image"))
    own = {key: value for key, value in settings.items() if key in Agreement.model_fields and key != "settings"}
    rest = {key: value for key, value in settings.items() if key not in own}
    return make_agreement(
        {
            "name": name,
            "classes": list(draft.classes),
            **(_without_own_statistics(draft.agreed) if settings.get("private_training") else draft.agreed),
            **own,
            "settings": rest,
            "members": [member.model_dump(mode="json", exclude_none=True)],
        }
    )


def _without_own_statistics(agreed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a draft whose normalisation is computed from nobody's images: no account would cover it."""
    public = {name: [value] * len(agreed[name]) for name, value in PUBLIC_NORMALISATION.items() if name in agreed}
    return {**agreed, **public}


def check_fits(member: Member, *, kind: str) -> None:
    """Refuse a member whose network is for another kind of data than the federation's."""
    try:
        check_fits_kind(Architecture.parse(member.architecture).name, kind)
    except ConfigError as error:
        raise ConfigError(f"{member.name}: {error}, as architecture in its member.toml") from error


def _member(table: Mapping[str, Any], *, where: str) -> Member:
    try:
        return Member(**table)
    except ValidationError as error:
        raise ConfigError(f"{where}: {first_fault(error)}") from error
