"""Two different messages that one member signed for one round: a proof that anybody can check, anywhere.

A proof needs nothing beside itself. It holds both signed envelopes and the agreement they were signed for, whose hash
stands in both; the agreement says by which key, or by which authority, the member is known.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from pydantic import BaseModel, ConfigDict, Field

from crad.errors import SnapshotError, printable
from crad.federation.message import Manifest
from crad.network.agreement import Agreement
from crad.network.envelope import Envelope, check_signature, max_envelope_bytes, signed_text
from crad.network.identity import fingerprint, key_fingerprint, name_in, parse_certificate
from crad.network.json_input import load_model, load_object

WHAT: Final = "two different messages that one member signed for one round"
MAX_PROOF_BYTES = 32 << 20  # an agreement, and two envelopes of ten thousand classes


NUM_ENVELOPES = 2


def max_proof_bytes(agreement: Agreement) -> int:
    """Return the size that no proof of this federation exceeds: its agreement and two envelopes, as JSON in JSON."""
    return 4 * (len(agreement.text) + NUM_ENVELOPES * max_envelope_bytes(agreement))


class Proof(BaseModel):
    """The file: what it says, and everything that is needed to check it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    crad_proof: Literal[1]
    what: Literal["two different messages that one member signed for one round"]  # nobody else's words
    agreement: str  # in its canonical form
    authority: str | None  # PEM, where one vouches for the members
    envelopes: Annotated[list[str], Field(min_length=2, max_length=2)]


@dataclass(frozen=True)
class Proven:
    """What a proof shows."""

    federation: str  # its name
    agreement: str  # its hash
    member: str
    key: str  # by whose fingerprint the member is known
    round_index: int
    kind: str
    sha256: tuple[str, str]  # of the two bodies


def make_proof(agreement: Agreement, envelopes: tuple[bytes, bytes]) -> bytes:
    """Return the proof file for two envelopes that contradict each other; refused if they do not."""
    proof = Proof(
        crad_proof=1,
        what=WHAT,
        agreement=agreement.text.decode(),
        authority=agreement.authority,
        envelopes=[envelope.decode() for envelope in envelopes],
    )
    raw = proof.model_dump_json(indent=1).encode() + b"\n"
    verify_proof(raw)
    return raw


def verify_proof(raw: bytes) -> Proven:
    """Return what a proof shows, from its bytes alone; refused with the reason if it shows nothing."""
    if len(raw) > MAX_PROOF_BYTES:
        raise SnapshotError(f"this is no proof: {len(raw)} bytes, at most {MAX_PROOF_BYTES} are read")
    try:
        table = load_object(raw, keys=Proof.model_fields.keys())
        if not isinstance(table.get("envelopes"), list) or len(table["envelopes"]) != NUM_ENVELOPES:
            raise ValueError("it holds other than two envelopes")
        proof = load_model(Proof, raw)
        envelopes = [load_model(Envelope, text) for text in proof.envelopes]
        agreement = json.loads(proof.agreement)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"this is no proof: {printable(error)}") from error
    federation = hashlib.sha256(proof.agreement.encode()).hexdigest()
    heads = {(one.federation, one.member, one.kind) for one in envelopes}
    if len(heads) != 1 or envelopes[0].federation != federation:
        raise SnapshotError(
            "this proves nothing: the two were not signed by one member, as one kind, for this agreement"
        )
    member, kind = envelopes[0].member, envelopes[0].kind
    known = _known(agreement, member)
    keys = {_check_envelope(one, known, agreement=agreement, authority=proof.authority) for one in envelopes}
    if len(keys) != 1:
        raise SnapshotError(
            f"this proves nothing: the two were signed by different keys for the name {printable(member)}"
        )
    raws = [base64.b64decode(one.manifest) for one in envelopes]
    manifests = [_manifest(one) for one in raws]
    places = {(one.round_index, one.peer, one.kind) for one in manifests}
    if len(places) != 1 or raws[0] == raws[1]:
        raise SnapshotError("this proves nothing: the two are the same message, or of different rounds")
    return Proven(
        federation=printable(agreement.get("name")),
        agreement=federation,
        member=member,
        key=keys.pop(),
        round_index=manifests[0].round_index,
        kind=kind,
        sha256=(manifests[0].sha256, manifests[1].sha256),
    )


def _known(agreement: object, member: str) -> Mapping[str, Any]:
    """Return what the agreement has of a member; refused if it has none of this name."""
    members = agreement.get("members") if isinstance(agreement, dict) else None
    known = members.get(member) if isinstance(members, dict) else None
    if not isinstance(known, dict):
        raise SnapshotError(f"this proves nothing: {printable(member)} is no member of the agreement in it")
    return known


def _check_envelope(
    envelope: Envelope, known: Mapping[str, Any], *, agreement: Mapping[str, Any], authority: str | None
) -> str:
    """Return the fingerprint of the key that signed; refused unless it is the member's.

    Dates are not looked at: what was signed stays signed when a certificate has expired.
    """
    try:
        manifest, der, signature = (
            base64.b64decode(part, validate=True)
            for part in (envelope.manifest, envelope.certificate, envelope.signature)
        )
        certificate = parse_certificate(der)
        is_known = _is_known(certificate, known, envelope.member, agreement=agreement, authority=authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise SnapshotError(f"this proves nothing: {printable(error) or type(error).__name__}") from error
    if not is_known:
        raise SnapshotError(f"this proves nothing: the agreement knows {printable(envelope.member)} by another key")
    text = signed_text(manifest, kind=envelope.kind, member=envelope.member, federation=envelope.federation)
    check_signature(certificate, signature, text, name=printable(envelope.member))
    return key_fingerprint(certificate)


def _is_known(
    certificate: x509.Certificate,
    known: Mapping[str, Any],
    member: str,
    *,
    agreement: Mapping[str, Any],
    authority: str | None,
) -> bool:
    if name_in(certificate) != member:
        return False
    if known.get("key") is not None:
        return bool(key_fingerprint(certificate) == known["key"])
    if known.get("fingerprint") not in (None, fingerprint(certificate)):
        return False
    if authority is None:
        return False
    issuer = x509.load_pem_x509_certificate(authority.encode())
    certificate.verify_directly_issued_by(issuer)
    return bool(fingerprint(issuer) == agreement.get("authority"))


def _manifest(raw: bytes) -> Manifest:
    try:
        return load_model(Manifest, raw)
    except ValueError as error:
        raise SnapshotError(f"this proves nothing: a manifest in it is malformed: {printable(error)}") from error
