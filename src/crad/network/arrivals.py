"""Foreign bytes on their way in: the same checks for every exchange, in the order that costs least."""

from __future__ import annotations

import re
from dataclasses import dataclass

from crad.errors import SnapshotError
from crad.federation.message import Manifest, parse_manifest
from crad.network.agreement import Agreement
from crad.network.envelope import open_envelope

KIND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
ADDRESSED = re.compile(r"(.+)-to-([0-9]+)")


@dataclass(frozen=True)
class Announced:
    """A body that may be fetched: its sender has signed for it."""

    raw: bytes  # the manifest as it was signed
    manifest: Manifest


def check_announced(envelope: bytes, *, sender: int, round_index: int, kind: str, agreement: Agreement) -> Announced:
    """What the envelope announces, if it comes from this member, for this round, and is not too large to fetch."""
    member = agreement.members[sender]
    raw = open_envelope(envelope, sender=member, kind=kind, agreement=agreement)
    manifest = parse_manifest(raw, sender=sender, round_index=round_index, kind=split_kind(kind)[0])
    if manifest.size > agreement.max_snapshot_bytes:
        raise SnapshotError(
            f"{member.name} announces {manifest.size} bytes, the agreement allows {agreement.max_snapshot_bytes}"
        )
    return Announced(raw, manifest)


def check_received(announced: Announced, *, size: int, sha256: str, name: str) -> None:
    """Refuse a body that is not the one that was signed for."""
    if size != announced.manifest.size:
        raise SnapshotError(f"{name} announced {announced.manifest.size} bytes and sent {size}")
    if sha256 != announced.manifest.sha256:
        raise SnapshotError(f"{name} sent a body that does not match its sha256 {announced.manifest.sha256[:12]}...")


def split_kind(kind: str) -> tuple[str, int | None]:
    """What a message is, and the number of the one member it is for: `returned-to-3` is `returned` for 3."""
    match = ADDRESSED.fullmatch(kind)
    return (kind, None) if match is None else (match[1], int(match[2]))
