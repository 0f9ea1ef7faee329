"""Members that answer, but never to the end: silence and single bytes at every step of a conversation."""

from __future__ import annotations

import enum
import json
import socket
import ssl
import threading
import time
from contextlib import suppress

from crad.network.agreement import Agreement
from crad.network.https.tls import server_context
from crad.network.identity import Identity

DRIP_S = 0.5  # between two bytes: no time-out that counts from read to read ever passes


class Way(enum.Enum):
    """Where the answer stops coming."""

    SILENT = "takes the connection and says nothing"
    HANDSHAKE = "drips in the TLS handshake"
    HEADERS = "drips in the headers"
    BODY = "drips in the body"
    PROBE = "answers well, and drips the probe"


class Dripping:
    """A member's server in threads of this process, with the member's own certificate; a `with` block long."""

    def __init__(self, way: Way, address: str, *, identity: Identity, agreement: Agreement) -> None:
        self._way, self._name, self._agreement = way, identity.name, agreement
        self._context = server_context(identity, agreement)
        host, port = address.split(":")
        self._listener = socket.create_server((host, int(port)), backlog=128)
        self._lines: list[socket.socket] = []
        self.is_met = threading.Event()

    def __enter__(self) -> Dripping:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *fault: object) -> None:
        for line in (self._listener, *self._lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self._lines.append(line)
                threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with suppress(OSError, ValueError):
            if self._way is Way.SILENT:
                self.is_met.set()
            elif self._way is Way.HANDSHAKE:
                self._drip(line, b"\x16\x03\x03\x0f\xff")
            else:
                self._talk(self._context.wrap_socket(line, server_side=True))

    def _talk(self, line: ssl.SSLSocket) -> None:
        self._lines.append(line)
        while True:
            asked = b""
            while b"\r\n\r\n" not in asked:
                piece = line.recv(4096)
                if not piece:
                    return
                asked += piece
            if self._way is Way.PROBE and b"/v1/probe" not in asked:
                self._answer_well(line, asked)
            elif self._way is Way.HEADERS:
                self._drip(line, b"HTTP/1.1 200 OK\r\nX-Slow: ")
            else:
                self._drip(line, b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n")

    def _answer_well(self, line: ssl.SSLSocket, asked: bytes) -> None:
        rounds = {"first_round": None, "latest_round": None}
        about = {"name": self._name, "federation": self._agreement.hash, "clock": time.time(), "version": "0"}
        body = json.dumps({**about, **rounds}).encode() if b"/v1/hello" in asked else b""
        status = b"200 OK" if body else b"404 Not Found"
        line.sendall(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    def _drip(self, line: socket.socket, begin: bytes) -> None:
        line.sendall(begin)
        self.is_met.set()
        while True:
            line.sendall(b"a")
            time.sleep(DRIP_S)
