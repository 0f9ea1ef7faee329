"""Organisations at work on this machine: real servers, real TLS on loopback, and the faults they can have."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from crad.federation.message import Message, pack
from crad.network.agreement import Agreement
from crad.network.https.client import MemberClient
from crad.network.https.https_exchange import HttpsExchange
from crad.network.https.request_gate import Limits
from crad.network.https.server import SnapshotServer
from crad.network.https.tls import MemberContext
from crad.network.identity import Identity
from crad.network.ledger import OutgoingLedger, read_ledger
from crad.network.member_exchange import ExchangePolicy
from tests.organisations import with_addresses

SLOW_S = 0.25  # between two megabytes


class Fault(enum.Enum):
    """What a member's server does to the snapshots it sends."""

    NONE = "it works"
    CUT = "the connection ends after a megabyte, the first time"
    SLOW = "a megabyte, then a rest"
    SILENT = "a megabyte, then nothing"
    TRUNCATED = "a byte less than announced"
    LONGER = "a byte more than announced"
    CORRUPTED = "a bit flipped"
    ANOTHER_PART = "the beginning, whatever was asked for"


class FaultyServer(SnapshotServer):
    """A real server with one fault."""

    fault = Fault.NONE
    cuts = 0

    def application(self):
        inner = super().application()

        async def application(scope, receive, send):
            is_snapshot = scope["path"].startswith("/v1/snapshot/")
            await inner(scope, receive, self._faulty(send, scope) if is_snapshot else send)

        return application

    def _faulty(self, send, scope):
        fault, sent = self.fault, 0

        async def faulty(message):
            nonlocal sent
            if message["type"] == "http.response.start":
                message = {**message, "headers": [_changed(header, fault) for header in message["headers"]]}
            elif fault is Fault.CORRUPTED:
                message = {**message, "body": bytes([message["body"][0] ^ 1]) + message["body"][1:]}
            elif fault is Fault.TRUNCATED and not message["more_body"]:
                message = {**message, "body": message["body"][:-1]}
            elif fault is Fault.LONGER and not message["more_body"]:
                message = {**message, "body": message["body"] + b"x"}
            elif fault is Fault.CUT and sent and not self.cuts:
                self.cuts += 1
                scope["connection"].transport.close()  # what is on its way still arrives
                raise ConnectionError("cut")
            elif fault in (Fault.SLOW, Fault.SILENT) and sent:
                await asyncio.sleep(SLOW_S if fault is Fault.SLOW else 60)
            sent += len(message.get("body", b""))
            await send(message)

        return faulty


def _changed(header, fault):
    name, value = header
    if name.lower() == b"content-length" and fault in (Fault.TRUNCATED, Fault.LONGER):
        return name, str(int(value) + (1 if fault is Fault.LONGER else -1)).encode()
    if name.lower() == b"content-range" and fault is Fault.ANOTHER_PART:
        return name, b"bytes 0-" + value.partition(b"-")[2]
    return header


class Organisation:
    """One member at work."""

    def __init__(
        self,
        identity: Identity,
        agreement: Agreement,
        folder: Path,
        *,
        limits: Limits | None = None,
        listen: str = "127.0.0.1:0",
    ):
        self.identity, self.agreement, self.folder = identity, agreement, folder / identity.name
        self.number = agreement.number(identity.name)
        self.notices: list[str] = []
        self.refusals: list[tuple[str, str]] = []
        self.ledger = OutgoingLedger(self.folder / "ledger.jsonl")
        self.server = FaultyServer(
            agreement,
            identity,
            self.folder,
            listen=listen,
            ledger=self.ledger,
            limits=limits,
            notice=self.notices.append,
        )
        self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        self._exchange: HttpsExchange | None = None

    @property
    def exchange(self) -> HttpsExchange:
        assert self._exchange is not None, "met"
        return self._exchange

    def meet(self, agreement: Agreement, *, proxy: str | None = None, **own: Any) -> None:
        """Connect to the others, whose addresses are known by now; anew, as after a restart, if it is not the first."""
        if self._exchange is not None:
            self._exchange.close()
        self._exchange = HttpsExchange(
            agreement,
            self.identity,
            self.folder,
            self.server,
            own=self.number,
            proxy=proxy,
            policy=ExchangePolicy(
                on_refused=lambda name, reason: self.refusals.append((name, reason)),
                notice=self.notices.append,
                **own,
            ),
        )

    def publish(
        self, round_index=1, *, kind="snapshot", numbers=1000, seed=0, message: Message | None = None
    ) -> Message:
        made = message or snapshot(self.number, round_index, numbers=numbers, seed=seed)
        self.exchange.publish(round_index, sender=self.number, kind=kind, message=made)
        return made

    def collect(self, *peers, round_index=1, kind="snapshot", deadline_s=10.0, quorum=0):
        return self.exchange.collect(
            round_index, receiver=self.number, peers=peers, kind=kind, deadline_s=deadline_s, quorum=quorum
        )

    def client(self, agreement: Agreement, number: int) -> MemberClient:
        return MemberClient(number, identity=self.identity, agreement=agreement, read_s=5.0)

    def left(self, what="snapshot"):
        """The pieces of the ledger of one sort."""
        return [piece for piece in read_ledger(self.ledger.path) if piece.what == what]

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
        self.server.stop()
        self.ledger.close()


class Town:
    """Several members on this machine, met; close it in the end."""

    def __init__(self, identities, agreement: Agreement, folder: Path, *, limits: Limits | None = None):
        self.members = [Organisation(identity, agreement, folder, limits=limits) for identity in identities]
        self.agreement = with_addresses(agreement, {member.identity.name: member.address for member in self.members})
        for member in self.members:
            member.meet(self.agreement)

    def __getitem__(self, number: int) -> Organisation:
        return self.members[number]

    def __enter__(self):
        return self

    def __exit__(self, *fault):
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(Organisation.close, self.members))


def snapshot(peer: int, round_index: int = 1, *, numbers: int = 1000, seed: int = 0, kind: str = "snapshot") -> Message:
    """Random weights as a message; its body has a few bytes more than four per number."""
    generator = torch.Generator().manual_seed(seed)
    return pack({"w": torch.randn(numbers, generator=generator)}, kind=kind, peer=peer, round_index=round_index)


def line_to(town, *, of=0, to=1, source="127.0.0.1"):
    """An open TLS connection of one member to another, to write on by hand."""
    host, port = town[to].address.split(":")
    context = MemberContext.to(town.agreement.members[to], identity=town[of].identity, agreement=town.agreement)
    raw = socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))
    return context.wrap_socket(raw)


def ends(line):
    """Wait for the other end to close."""
    try:
        while line.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def hello_over(line):
    """The status of one question on an open connection."""
    line.sendall(b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        more = line.recv(4096)
        assert more, "it was closed"
        answer += more
    return int(answer.split()[1])


class Background(threading.Thread):
    """A call under way, and what came of it."""

    def __init__(self, call: Callable[[], object]):
        super().__init__(daemon=True)
        self._call = call
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error

    def wait(self, seconds=20.0):
        self.join(seconds)
        assert not self.is_alive(), "it hangs"
        if hasattr(self, "error"):
            raise self.error
        return self.result


class ConnectProxy:
    """A proxy that connects to whatever it is asked for and passes bytes on."""

    def __init__(self):
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *fault):
        self._listener.shutdown(socket.SHUT_RDWR)
        for one in [self._listener, *self._open]:
            one.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                words = client.recv(4096).decode().split()
                assert words[0] == "CONNECT"
                self.asked.append(words[1])
                host, port = words[1].split(":")
                server = socket.create_connection((host, int(port)))
                self._open += [client, server]
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=_pour, args=(source, target), daemon=True).start()


def _pour(source, target):
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
