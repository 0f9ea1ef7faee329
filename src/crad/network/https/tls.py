"""TLS 1.3 with certificates on both sides: nobody else gets as far as a request."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crad.errors import SnapshotError
from crad.network.agreement import Agreement, Member
from crad.network.certificate_check import check_certificate
from crad.network.identity import Identity, parse_certificate


def server_context(identity: Identity, agreement: Agreement) -> ssl.SSLContext:
    """Return the context for those who connect to us: any member, and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # no resumed sessions: every connection shows its certificate
    _prepare(context, identity, anchors=[*(one.certificate for one in agreement.members), agreement.authority])
    return context


class Deadline(threading.local):
    """Until when this thread waits for an answer in all; None: only from byte to byte."""

    until: float | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the time for the answer has passed."""
        return self.until is not None and time.monotonic() >= self.until

    def extend(self, seconds: float) -> None:
        """Wait longer, because something came."""
        if self.until is not None:
            self.until += seconds

    def left_s(self, most: float | None) -> float | None:
        """Return how long a single read may still take; TimeoutError if the time is over."""
        if self.until is None:
            return most
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not come in full in time")
        return left if most is None else min(left, most)


class PatientSocket(ssl.SSLSocket):
    """A connection on which an answer that drips byte by byte ends too: every read keeps the deadline of the whole."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read some bytes before the deadline of the answer."""
        context = self.context
        if isinstance(context, MemberContext):
            self.settimeout(context.deadline.left_s(self.gettimeout()))
        return super().recv(buflen, flags)


class MemberContext(ssl.SSLContext):
    """For connecting to one member: whoever answers at its address, or behind a proxy, must prove to be it."""

    sslsocket_class = PatientSocket

    member: Member
    agreement: Agreement
    sockets: weakref.WeakSet[ssl.SSLSocket]
    deadline: Deadline

    @classmethod
    def to(cls, member: Member, *, identity: Identity, agreement: Agreement) -> MemberContext:
        """Return the context for connections to this member, with our own certificate to show."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context.member, context.agreement, context.sockets = member, agreement, weakref.WeakSet()
        context.deadline = Deadline()
        _prepare(context, identity, anchors=[member.certificate or agreement.authority])
        return context

    def wrap_socket(self, sock: socket.socket, *args: Any, **options: Any) -> ssl.SSLSocket:  # noqa: ANN401
        """Return a connection whose other end is the member, whatever host was dialled."""
        wrapped = super().wrap_socket(sock, *args, **{**options, "server_hostname": self.member.name})
        try:
            certificate = parse_certificate(wrapped.getpeercert(binary_form=True) or b"")
            check_certificate(certificate, member=self.member, agreement=self.agreement)
        except (SnapshotError, ValueError) as error:
            wrapped.close()
            raise ssl.SSLCertVerificationError(str(error)) from error
        self.sockets.add(wrapped)
        return wrapped

    @contextmanager
    def within(self, seconds: float) -> Iterator[Deadline]:
        """Let everything that this thread reads in the block come within so many seconds in all."""
        self.deadline.until = time.monotonic() + seconds
        try:
            yield self.deadline
        finally:
            self.deadline.until = None

    def drop_connections(self) -> None:
        """End whatever is being read, from another thread: a blocked read returns at once."""
        for one in list(self.sockets):
            try:
                socket.socket.shutdown(one, socket.SHUT_RDWR)
            except OSError:
                continue  # it has ended by itself


def _prepare(context: ssl.SSLContext, identity: Identity, *, anchors: list[str | None]) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A pinned certificate is trusted as it is, also where some authority issued it that nobody here knows.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_cert_chain(identity.certificate_path, identity.key_path)
    context.load_verify_locations(cadata="\n".join(anchor for anchor in anchors if anchor))
