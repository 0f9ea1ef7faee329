"""Our own key and certificate, and how long everybody's certificates last."""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography import x509

from crad.errors import CradError
from crad.network.agreement import Agreement
from crad.network.certificate_check import check_certificate
from crad.network.identity import Identity, load_identity, read_certificate
from crad.site.doctor.findings import Findings
from crad.site.settings import Site
from crad.site.transport import check_identity

SOON_DAYS = 30


def check_keys(agreement: Agreement, site: Site, findings: Findings) -> Identity | None:
    """Return our identity, if the others will recognise us by it."""
    findings.on_step("looking at the keys")
    try:
        identity = load_identity(site.keys)  # refuses a key that others on this machine can read
    except CradError as error:
        findings.problem("key", str(error))
        return None
    findings.ok("key", f"{identity.key_path} can be read by its owner alone")
    days = days_left(identity.certificate)
    try:
        check_identity(agreement, identity, site.name)
        check_certificate(identity.certificate, member=agreement.member(site.name), agreement=agreement)
    except CradError as error:
        findings.problem("certificate", str(error), days_left=days)
        return None
    text = f"the one that the agreement has, valid for {days} more days"
    if days < SOON_DAYS:
        findings.warn("certificate", text, "crad peer renew, in time: all members need the new one", days_left=days)
    else:
        findings.ok("certificate", text, days_left=days)
    _check_others(agreement, site, findings)
    return identity


def days_left(certificate: x509.Certificate) -> int:
    """Return the whole days until it expires; negative if it has."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def _check_others(agreement: Agreement, site: Site, findings: Findings) -> None:
    for member in agreement.members:
        if member.certificate is None or member.name == site.name:
            continue
        days = days_left(read_certificate(member.certificate.encode()))
        if days < SOON_DAYS:
            is_over = days < 0
            text = "its certificate has expired" if is_over else f"its certificate is valid for {days} more days"
            advice = "it needs a new one (crad peer renew), and all of us too (crad peer trust)"
            findings.warn(member.name, text, advice, days_left=days)
