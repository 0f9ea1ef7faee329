"""Bytes that hostile members send in place of what they should: forged, malformed, endless."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import random
import time
from collections.abc import Iterable

from crad.network.envelope import max_envelope_bytes, seal
from crad.network.equivocation.proof import make_proof
from tests.hostile_member import KIND, Own

STATUSES = (204, 206, 302, 304, 404, 418, 500, 999)


def forged_envelope(own: Own, name: str, round_index: int) -> bytes:
    """Another member's message of our own making: our signature under its name."""
    envelope = json.loads(own.envelope(own.manifest(round_index, peer=own.agreement.number(name))))
    return json.dumps({**envelope, "member": name}).encode()


def forged_proof(own: Own, name: str) -> bytes:
    """What would be a proof against ourselves, with another's name in it."""
    two = tuple(own.envelope(own.message(1, variant)) for variant in (0, 1))
    proof = json.loads(make_proof(own.agreement, (two[0], two[1])))
    proof["envelopes"] = [json.dumps({**json.loads(one), "member": name}) for one in proof["envelopes"]]
    return json.dumps(proof).encode()


def bad_manifests(own: Own, round_index: int) -> list[bytes]:
    """Envelopes that are none, and signed ones with nonsense in them."""
    genuine = own.envelope(own.message(round_index))
    table = json.loads(genuine)
    other = "0" * 64
    longest = max_envelope_bytes(own.agreement)

    def signed(manifest: bytes, kind: str = KIND) -> bytes:
        return seal(manifest, kind=kind, identity=own.identity, agreement=own.agreement)

    def told(**changes: object) -> bytes:
        manifest = json.loads(own.message(round_index).manifest)
        return signed(json.dumps({**manifest, **changes}).encode())

    return [
        b"",
        b"\0" * 1000,
        b"\xff\xfe" * 500,
        b"{}",
        b"[" * longest,
        b'{"a":' * 5000,
        b" " * (longest + 5000),
        genuine[:-20],
        genuine + genuine,
        json.dumps({**table, "signature": base64.b64encode(bytes(64)).decode()}).encode(),
        json.dumps({**table, "certificate": base64.b64encode(b"none").decode()}).encode(),
        json.dumps({**table, "member": "\x1b[2J../../\n"}).encode(),
        json.dumps({**table, "federation": other}).encode(),
        json.dumps({**table, "kind": "other"}).encode(),
        json.dumps({**table, "version": 10**400}).encode(),
        own.envelope(own.message(round_index + 1)),
        signed(b"no manifest"),
        signed(b'{"kind":' * 2000),
        told(size=-1),
        told(size=0),
        told(size=10**30),
        told(sha256="../../../etc/passwd"),
        told(architecture="os:system"),
        told(statistics={"counts": [1e400], "accuracies": [float("nan")]}),
        told(statistics={"counts": [], "accuracies": []}),
        told(round_index=2**31),
    ]


def bad_http() -> list[Iterable[bytes]]:
    """Answers that a client of HTTP/1.1 must not take, nor wait for, nor keep."""
    page = b"Content-Length: 5\r\n\r\nhello"
    return [
        [b"\0" * 4096],
        [b"SSH-2.0-OpenSSH_9.0\r\n"],
        [b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000],
        [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000],
        [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n" + gzip.compress(bytes(10**7))],
        itertools.chain([b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n"], itertools.repeat(bytes(1 << 16))),
        (b"HTTP/1.1 100 Continue\r\n\r\n" for _ in iter(lambda: time.sleep(0.002), 0)),
        [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + bytes(1000)],
        [b"HTTP/1.1 425 Too Early\r\n" + page],
        [b'HTTP/1.1 410 Gone\r\nContent-Length: 45\r\n\r\n{"first_round":1e99,"latest_round":"\\u0000"}  '],
        [b"HTTP/1.1 429 x\r\nRetry-After: 99999999999\r\n" + page],
        [b"HTTP/1.1 503 x\r\nRetry-After: -1\r\n" + page],
        [b"HTTP/1.1 301 x\r\nLocation: http://127.0.0.1:1/\r\n" + page],
        *([b"HTTP/1.1 %d x\r\n%b" % (status, page)] for status in random.sample(STATUSES, 3)),
    ]
