"""Whose certificate is this? One answer for connections and for signed manifests alike."""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from crad.errors import SnapshotError
from crad.network.agreement import Agreement, Member
from crad.network.identity import fingerprint, name_in, parse_certificate


def check_certificate(
    certificate: x509.Certificate, *, member: Member, agreement: Agreement, now: datetime | None = None
) -> None:
    """Refuse a certificate that is not this member's, or is not valid now."""
    if member.pin is not None and fingerprint(certificate) != member.pin:
        raise SnapshotError(
            f"{member.name} shows a certificate with the fingerprint {fingerprint(certificate)}, "
            f"the agreement has {member.pin}: ask {member.name} which one is right"
        )
    if member.certificate is None:
        _check_issued(certificate, member=member, agreement=agreement, now=now)
    check_dates(certificate, who=member.name, now=now)


def check_dates(certificate: x509.Certificate, *, who: str, now: datetime | None = None) -> None:
    """Refuse a certificate before its first day and after its last."""
    now = now or datetime.now(UTC)
    if now < certificate.not_valid_before_utc:
        raise SnapshotError(
            f"the certificate of {who} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: "
            "compare the clocks"
        )
    if now > certificate.not_valid_after_utc:
        raise SnapshotError(
            f"the certificate of {who} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: "
            f"{who} needs a new one (crad peer renew), and all others too (crad peer trust)"
        )


def find_member(der: bytes, *, agreement: Agreement) -> Member:
    """Return the member whose certificate this is; refused if there is none."""
    try:
        certificate = parse_certificate(der)
        name = name_in(certificate)
    except ValueError as error:
        raise SnapshotError(f"a certificate that is no member's: {error}") from error
    member = next((member for member in agreement.members if member.name == name), None)
    if member is None:
        raise SnapshotError(f"the certificate of {name}, who is not a member of {agreement.name}")
    check_certificate(certificate, member=member, agreement=agreement)
    return member


def _check_issued(certificate: x509.Certificate, *, member: Member, agreement: Agreement, now: datetime | None) -> None:
    assert agreement.authority is not None, "an agreement pins a certificate or has an authority"
    authority = x509.load_pem_x509_certificate(agreement.authority.encode())
    check_dates(authority, who=f"the authority of {agreement.name}", now=now)
    try:
        # Issued by this very authority: a chain would let somebody else decide who is a member.
        certificate.verify_directly_issued_by(authority)
        name = name_in(certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise SnapshotError(
            f"{member.name} shows a certificate that the authority of {agreement.name} has not issued"
        ) from error
    if name != member.name:
        raise SnapshotError(f"{member.name} shows the certificate of {name}")
