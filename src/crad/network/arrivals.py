"""Foreign bytes on their way in: the same checks for every exchange, in the order that costs least.

All that a snapshot passes before a student hears of it:
1. who it is: TLS on both sides (`https/tls.py`, `certificate_check.py`); a store is not asked who wrote there
2. size and time of an answer (`https/client.py`, `store/bucket.py`), the shape of its JSON (`json_input.py`)
3. the envelope: agreement, member, kind, certificate, signature (`envelope.py`)
4. the manifest: round, kind, size (`check_announced` here), and whether the member signed another one for the round, or
   more than its network can need (`member_exchange.py`)
5. the body: length and sha256 while it streams in (`inbox.py`, `check_received` here)
6. the snapshot (`federation/teachers.py`, `federation/message.py`): the agreed architecture, statistics, whether
   its network may be built here, names, shapes, types and finite values of its tensors, and where ranges are agreed
   that its network prepares rows by these
7. its predictions: finite, or it is left out (`methods/distillation.py`, `aggregation/evidence.py`)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crad.errors import SnapshotError, first_foreign_fault
from crad.federation.message import Manifest, parse_manifest
from crad.network.agreement import Agreement
from crad.network.envelope import open_envelope

KIND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
ADDRESSED = re.compile(r"(.+)-to-([0-9]+)")
ShortName = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,100}$")]  # of members and kinds, as others write them
RoundNumber = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class Announced:
    """A body that may be fetched: its sender has signed for it."""

    raw: bytes  # the manifest as it was signed
    manifest: Manifest
    envelope: bytes = b""  # as it came, with the signature


def check_announced(envelope: bytes, *, sender: int, round_index: int, kind: str, agreement: Agreement) -> Announced:
    """Return what the envelope announces, if it comes from this member, for this round, and is not too large."""
    member = agreement.members[sender]
    raw = open_envelope(envelope, sender=member, kind=kind, agreement=agreement)
    manifest = parse_manifest(raw, sender=sender, round_index=round_index, kind=split_kind(kind)[0])
    if manifest.round_index > agreement.rounds:
        raise SnapshotError(f"{member.name} announces round {manifest.round_index}, {agreement.rounds} were agreed on")
    if manifest.size > agreement.max_snapshot_bytes:
        raise SnapshotError(
            f"{member.name} announces {manifest.size} bytes, the agreement allows {agreement.max_snapshot_bytes}"
        )
    if manifest.size == 0:
        raise SnapshotError(f"{member.name} announces a body of 0 bytes, which is none")
    return Announced(raw, manifest, envelope)


def check_received(announced: Announced, *, size: int, sha256: str, name: str) -> None:
    """Refuse a body that is not the one that was signed for."""
    if size != announced.manifest.size:
        raise SnapshotError(f"{name} announced {announced.manifest.size} bytes and sent {size}")
    if sha256 != announced.manifest.sha256:
        raise SnapshotError(f"{name} sent a body that does not match its sha256 {announced.manifest.sha256[:12]}...")


def split_kind(kind: str) -> tuple[str, int | None]:
    """Return what a message is, and the number of the one member it is for: `returned-to-3` is `returned` for 3."""
    match = ADDRESSED.fullmatch(kind)
    return (kind, None) if match is None else (match[1], int(match[2]))


class RoundRange(BaseModel):
    """Which rounds a member gives out, as it says itself."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    first_round: RoundNumber | None
    latest_round: RoundNumber | None


def check_rounds(envelope: bytes, *, sender: int, kind: str, agreement: Agreement) -> RoundRange:
    """Return which rounds this member has signed for."""
    member = agreement.members[sender]
    raw = open_envelope(envelope, sender=member, kind=kind, agreement=agreement)
    try:
        return RoundRange.model_validate_json(raw)
    except ValidationError as error:
        raise SnapshotError(f"{member.name} says of its rounds: {first_foreign_fault(error)}") from error
