"""Our own certificate while we take part: refused at the start when the others would refuse it, and watched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime

from crad.errors import ConfigError
from crad.network.agreement import Agreement
from crad.network.certificate_check import check_certificate
from crad.network.identity import Identity

SOON_DAYS = 30
LOOK_S = 60.0


def check_own_certificate(agreement: Agreement, identity: Identity, *, now: datetime | None = None) -> None:
    """Refuse to begin with a certificate that the others refuse, and say what to do."""
    now, certificate = now or datetime.now(UTC), identity.certificate
    if now < certificate.not_valid_before_utc:
        raise ConfigError(
            f"our own certificate is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, and the "
            f"clock of this machine says {now:%Y-%m-%d %H:%M}: set the clock (NTP), or {_renewal(agreement, identity)}"
        )
    if now > certificate.not_valid_after_utc:
        raise ConfigError(f"{_expired(identity)}: {_renewal(agreement, identity)}")
    check_certificate(certificate, member=agreement.member(identity.name), agreement=agreement, now=now)


@contextmanager
def watched_certificate(agreement: Agreement, identity: Identity, *, notice: Callable[[str], None]) -> Iterator[None]:
    """Say once a day, while the block lasts, that the certificate ends soon or has ended: also while we wait."""
    watch, stop = CertificateWatch(agreement, identity, notice=notice), threading.Event()
    watch.look()

    def run() -> None:
        while not stop.wait(LOOK_S):
            watch.look()

    threading.Thread(target=run, name="crad-certificate", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


class CertificateWatch:
    """Says what is to be said about our certificate, no more than once a day."""

    def __init__(self, agreement: Agreement, identity: Identity, *, notice: Callable[[str], None]) -> None:
        self._agreement, self._identity, self._notice = agreement, identity, notice
        self._said: tuple[date, bool] | None = None

    def look(self, now: datetime | None = None) -> None:
        """Look at the date."""
        now = now or datetime.now(UTC)
        left = self._identity.certificate.not_valid_after_utc - now
        is_over = left.total_seconds() < 0
        if left.days >= SOON_DAYS or self._said == (now.date(), is_over):
            return
        self._said = (now.date(), is_over)
        words = f"our own certificate is valid for {left.days} more days" if not is_over else _expired(self._identity)
        self._notice(f"{words}: {_renewal(self._agreement, self._identity)}")


def _expired(identity: Identity) -> str:
    return (
        f"our own certificate expired on {identity.certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: "
        "the others refuse us"
    )


def _renewal(agreement: Agreement, identity: Identity) -> str:
    if agreement.member(identity.name).certificate is None:
        return (
            f"ask the authority of {agreement.name} for a new one ({identity.folder / 'request.pem'}), put it into "
            f"{identity.certificate_path}, and join again"
        )
    return "crad peer renew, send member.toml to all others, then everybody: crad peer trust, and join again"
