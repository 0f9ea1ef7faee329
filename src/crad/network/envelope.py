"""A manifest that can be trusted wherever it was stored: signed by its sender, bound to the agreement.

Round and kind stand inside the signed manifest, so an old one cannot be passed off as new.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Annotated, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import BaseModel, ConfigDict, Field

from crad.errors import SnapshotError, printable
from crad.network.agreement import Agreement, Member
from crad.network.certificate_check import check_certificate
from crad.network.identity import Identity, parse_certificate
from crad.network.json_input import load_model

VERSION = 1
DOMAIN = b"crad manifest"  # a signature given for something else must never pass for one of these
FIXED_BYTES = 64 * 1024
BYTES_PER_CLASS = 256  # three numbers in full, in base64, with room to spare

Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


class StaleAgreementError(SnapshotError):
    """The sender has agreed on something else: ask it for its agreement and say what differs."""


class Envelope(BaseModel):
    """What travels: a manifest and the proof of who made it for which federation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1]
    federation: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    member: str
    kind: str  # as on the exchange: who reads it is part of it where a message is addressed
    manifest: Base64
    certificate: Base64
    signature: Base64


def seal(manifest: bytes, *, kind: str, identity: Identity, agreement: Agreement) -> bytes:
    """Return the manifest in a signed envelope, as JSON."""
    text = signed_text(manifest, kind=kind, member=identity.name, federation=agreement.hash)
    parts = {
        "manifest": manifest,
        "certificate": identity.certificate.public_bytes(Encoding.DER),
        "signature": identity.sign(text),
    }
    head = {"version": VERSION, "federation": agreement.hash, "member": identity.name, "kind": kind}
    return json.dumps({**head, **{key: base64.b64encode(part).decode() for key, part in parts.items()}}).encode()


def open_envelope(raw: bytes, *, sender: Member, kind: str, agreement: Agreement, now: datetime | None = None) -> bytes:
    """Return the manifest, if this member signed it for this agreement and its certificate is valid now."""
    if len(raw) > max_envelope_bytes(agreement):
        raise SnapshotError(
            f"{sender.name} sent a manifest of {len(raw)} bytes, at most {max_envelope_bytes(agreement)} are read"
        )
    envelope = _parse(raw, sender=sender)
    if envelope.federation != agreement.hash:
        raise StaleAgreementError(
            f"{sender.name} has another agreement ({envelope.federation[:12]}..., here {agreement.hash[:12]}...): "
            "compare the two federation.toml"
        )
    if (envelope.member, envelope.kind) != (sender.name, kind):
        raise SnapshotError(
            f"{sender.name} presents {printable(envelope.kind)!r} of {printable(envelope.member)!r}, expected its own "
            f"{kind!r}"
        )
    try:
        manifest, der, signature = (
            base64.b64decode(part, validate=True)
            for part in (envelope.manifest, envelope.certificate, envelope.signature)
        )
        certificate = parse_certificate(der)
    except ValueError as error:
        raise SnapshotError(f"{sender.name} sent a malformed envelope: {printable(error)}") from error
    check_certificate(certificate, member=sender, agreement=agreement, now=now)
    text = signed_text(manifest, kind=kind, member=sender.name, federation=agreement.hash)
    check_signature(certificate, signature, text, name=sender.name)
    return manifest


def manifest_in(raw: bytes) -> bytes:
    """Return the manifest in an envelope that was opened before, or is our own; nothing is checked."""
    return base64.b64decode(json.loads(raw)["manifest"])


def max_envelope_bytes(agreement: Agreement) -> int:
    """Return the size above which an envelope of this federation is not even downloaded."""
    return FIXED_BYTES + BYTES_PER_CLASS * len(agreement.classes)


def signed_text(manifest: bytes, *, kind: str, member: str, federation: str) -> bytes:
    """Return what is signed: every part after its length, so that no two sets of parts give the same text."""
    parts = (DOMAIN, str(VERSION).encode(), federation.encode(), member.encode(), kind.encode(), manifest)
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def check_signature(certificate: x509.Certificate, signature: bytes, text: bytes, *, name: str) -> None:
    """Refuse a signature that the owner of this certificate has not made."""
    key = certificate.public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise SnapshotError(f"the certificate of {name} has no Ed25519 key")
    try:
        key.verify(signature, text)
    except InvalidSignature:
        raise SnapshotError(
            f"the manifest of {name} is not signed by {name}: it was altered or forged on its way"
        ) from None


def _parse(raw: bytes, *, sender: Member) -> Envelope:
    try:
        return load_model(Envelope, raw)
    except ValueError as error:
        raise SnapshotError(f"{sender.name} sent a malformed envelope: {printable(error)}") from error
