"""A page on the loopback address: bytes that somebody else made, handed out with their version."""

from __future__ import annotations

import hashlib
import re
import socketserver
import sys
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from crad.errors import ConfigError

LOOPBACK = "127.0.0.1"
# A foreign site can have its own name lead to this address; then that name stands in the request.
OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?", re.IGNORECASE)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class Shown:
    """A page to hand out with its version, and what `/version` says about it and about the run."""

    version: str
    page: bytes
    status: bytes


class PageServer:
    """Hand out what was last put there with `show`. Ends with the process, or when closed."""

    def __init__(self, port: int) -> None:
        """Listen on this port of the loopback address; 0 is any free one."""
        try:
            self._server = _Server((LOOPBACK, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"--port {port} of {LOOPBACK} cannot be had ({error.strerror or error}): choose another, or leave "
                "--port out for a free one"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="crad-watch", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Return where the page is."""
        return f"http://{LOOPBACK}:{self._server.server_address[1]}/"

    def show(self, shown: Shown) -> None:
        """Hand this out from now on."""
        self._server.shown = shown

    def was_asked_within(self, seconds: float) -> bool:
        """Tell whether somebody has been looking lately."""
        asked_at = self._server.asked_at
        return asked_at is not None and time.monotonic() - asked_at <= seconds

    def has_handed_out(self, version: str) -> bool:
        """Tell whether this version of the page has reached somebody."""
        return self._server.handed_out == version

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    """The plain server: http.server's own asks for this machine's name first, which can take seconds."""

    allow_reuse_address = True
    daemon_threads = True
    shown = Shown("", b"", b"{}")
    asked_at: float | None = None
    handed_out: str | None = None

    def handle_error(self, request: object, client_address: object) -> None:
        """Pass over a browser that goes away in the middle; show anything else."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as it came


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10
    server_version, sys_version = "crad", ""

    def do_GET(self) -> None:
        shown = self.server.shown
        path = self.path.partition("?")[0]
        if not OWN_HOST.fullmatch(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, b"This page is for this machine alone.\n", "text/plain")
        elif path == "/":
            self._send_if_new(shown.page, "text/html", tag=shown.version)
            self.server.handed_out = shown.version
        elif path == "/version":
            self._send_if_new(shown.status, "application/json", tag=hashlib.sha256(shown.status).hexdigest()[:16])
        else:
            self._send(HTTPStatus.NOT_FOUND, b"There is / and /version.\n", "text/plain")

    def _send_if_new(self, content: bytes, kind: str, *, tag: str) -> None:
        self.server.asked_at = time.monotonic()
        if self.headers.get("If-None-Match") == f'"{tag}"':
            self._send(HTTPStatus.NOT_MODIFIED, b"", kind, tag=tag)
        else:
            self._send(HTTPStatus.OK, content, kind, tag=tag)

    def _send(self, status: HTTPStatus, content: bytes, kind: str, *, tag: str | None = None) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if tag is not None:
            self.send_header("ETag", f'"{tag}"')
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: requests are nobody's news."""
