"""A flood of connections, as a process of its own: run as a script it opens them, says so, and holds them until told.

    python -m tests.flood HOST PORT SOURCE COUNT KIND [CERTIFICATE KEY]

It must start quickly, so it imports nothing of crad.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

SILENT, DRIP, ENDLESS, TLS = "silent", "drip", "endless", "tls"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a ClientHello
DEADLINE_S = 30.0
THREADS = 20


@contextmanager
def flood(address: str, *, source: str, kind: str = SILENT, count: int = 1000, identity=None):
    """Hold so many connections from this source open while the block lasts; yields a call for how many still are."""
    host, port = address.split(":")
    shown = [] if identity is None else [str(identity.certificate_path), str(identity.key_path)]
    command = [sys.executable, str(Path(__file__)), host, port, source, str(count), kind, *shown]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, asked = process.stdout, process.stdin

        def ask() -> int:
            asked.write("how many\n")
            asked.flush()
            return int(json.loads(told.readline()))

        try:
            assert told.readline() == "ready\n"
            yield ask
        finally:
            process.kill()


def _open(host: str, port: int, source: str, count: int, *, first: bytes = b"") -> list[socket.socket]:
    opened = []
    for _ in range(count):
        one = socket.socket()
        one.bind((source, 0))
        one.settimeout(DEADLINE_S)
        with contextlib.suppress(OSError):
            one.connect((host, port))
            opened.append(one)
            one.send(first)
    return opened


def _shake(host: str, port: int, source: str, count: int, context: ssl.SSLContext, done: list[socket.socket]) -> None:
    """Whole handshakes, a few at a time as an attacker with threads has them."""

    def one_after_the_other() -> None:
        for _ in range(count // THREADS):
            with contextlib.suppress(OSError):
                done.extend(context.wrap_socket(raw) for raw in _open(host, port, source, 1))

    for _ in range(THREADS):
        threading.Thread(target=one_after_the_other, daemon=True).start()


def _still_open(opened: list[socket.socket]) -> int:
    """Those on which nothing is to be read: an end would be."""
    with selectors.DefaultSelector() as selector:
        for one in opened:
            selector.register(one, selectors.EVENT_READ)
        return len(opened) - len(selector.select(0))


def _drip(opened: list[socket.socket]) -> None:
    for byte in HELLO[1:] + bytes(500):
        for one in opened:
            with contextlib.suppress(OSError):
                one.send(bytes([byte]))
        time.sleep(0.1)


def _again_and_again(host: str, port: int, source: str) -> None:
    """New connections as fast as one process can; the last few hundred are held."""
    held: list[socket.socket] = []
    while True:
        held += _open(host, port, source, 1)
        if len(held) > 300:
            held.pop(0).close()


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(certificate, key)
    return context


def main() -> None:
    """The flood's own process."""
    host, port, source, count, kind, *shown = sys.argv[1:]
    if kind == ENDLESS:
        threading.Thread(target=_again_and_again, args=(host, int(port), source), daemon=True).start()
    opened: list[socket.socket] = []
    if kind == TLS:
        _shake(host, int(port), source, int(count), _context(*shown), opened)
    elif kind != ENDLESS:
        opened = _open(host, int(port), source, int(count), first=HELLO[:1] if kind == DRIP else b"")
    if kind == DRIP:
        threading.Thread(target=_drip, args=(opened,), daemon=True).start()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(_still_open(opened)), flush=True)


if __name__ == "__main__":
    main()
