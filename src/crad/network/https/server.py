"""A member's server: uvicorn in a thread of its own, TLS 1.3, nobody but members."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from crad.errors import ConfigError, RunError
from crad.network.agreement import Agreement
from crad.network.equivocation.witness import Witness
from crad.network.fields import split_address
from crad.network.https.addresses import KnownAddresses
from crad.network.https.connection_limiter import ConnectionLimiter
from crad.network.https.dial_back import DialBack
from crad.network.https.endpoints import Delivered, Endpoints
from crad.network.https.limits import divide
from crad.network.https.listener import Listener
from crad.network.https.notices import Throttle, asyncio_told_by, tell_loop_faults
from crad.network.https.outbox import Outbox, Published
from crad.network.https.request_gate import Limits, MemberProtocol, RequestGate
from crad.network.https.tls import server_context
from crad.network.identity import Identity
from crad.network.ledger import OutgoingLedger

KEEP_ALIVE_S = 75  # longer than others wait between two questions
GRACE_S = 2  # for answers on their way when the server ends
START_S = 20.0
STOP_S = GRACE_S + 2.0
BACKLOG = 4096  # a flood must not fill it before the loop comes round


class SnapshotServer:
    """Gives out what lies in the outbox. Begins with `start` or `with`, ends with `stop`."""

    def __init__(
        self,
        agreement: Agreement,
        identity: Identity,
        folder: Path,
        *,
        listen: str,
        ledger: OutgoingLedger,
        limits: Limits | None = None,
        proxy: str | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.outbox = Outbox(folder / "out", federation=agreement.hash)
        self.on_delivered: Delivered = lambda name, published: None
        self._listen, self._limits = listen, limits or Limits()
        self._endpoints = Endpoints(
            agreement,
            identity.name,
            self.outbox,
            dial_back=DialBack(agreement, identity, proxy=proxy),
            on_delivered=self._deliver,
            limits=self._limits,
        )
        self._throttle = Throttle(notice)
        known = KnownAddresses(_hosts(agreement, but=identity.name))
        limiter = ConnectionLimiter(self._limits, divide(self._limits, members=len(agreement.members)), known)
        gate = RequestGate(
            self.application(),
            agreement=agreement,
            ledger=ledger,
            limits=self._limits,
            limiter=limiter,
            throttle=self._throttle,
        )
        config = uvicorn.Config(
            gate,
            http=MemberProtocol,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.CRITICAL,  # what matters is said through `notice`, with the member's name
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=self._limits.header_bytes,
        )
        config.load()
        config.ssl = server_context(identity, agreement)
        self._server = GuardedServer(config, gate, limiter, known, limits=self._limits, throttle=self._throttle)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def application(self) -> ASGIApp:
        """Return what stands behind the gate."""
        return self._endpoints.application()

    @property
    def witness(self) -> Witness | None:
        """Return what we received, for those who compare it with what they did."""
        return self._endpoints.witness

    @witness.setter
    def witness(self, witness: Witness | None) -> None:
        self._endpoints.witness = witness

    @property
    def port(self) -> int:
        """Return where it listens; the one that was given out where 0 was asked for."""
        assert self._socket is not None, "started"
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Listen from now on; refused in one line if the address cannot be had."""
        self._socket = _bind(self._listen)
        self._thread = threading.Thread(target=self._run, name="crad-server", daemon=True)
        self._thread.start()
        until = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise RunError(f"the server at {self._listen} did not start: try again, or listen at another address")
            time.sleep(0.01)

    def stop(self) -> None:
        """End, after those who are being answered have had a moment to finish."""
        if self._thread is None:
            return
        self._on_loop(partial(self._endpoints.wake, is_closing=True))
        self._server.should_exit = True
        self._thread.join(STOP_S)  # a daemon: whatever holds it up holds nobody else
        self._thread = None

    def announce(self) -> None:
        """Say that something was published: those who wait for it are answered now."""
        self._on_loop(self._endpoints.wake)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self.stop()

    def _deliver(self, name: str, published: Published) -> None:
        self.on_delivered(name, published)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        with asyncio_told_by(self._throttle), asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            self._loop = runner.get_loop()
            tell_loop_faults(self._loop, self._throttle)
            runner.run(self._serve())

    async def _serve(self) -> None:
        assert self._socket is not None, "bound"
        await self._server.serve(sockets=[self._socket])
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)


class GuardedServer(uvicorn.Server):
    """uvicorn's life cycle and HTTP, with connections accepted by our own listener."""

    def __init__(
        self,
        config: uvicorn.Config,
        gate: RequestGate,
        limiter: ConnectionLimiter,
        known: KnownAddresses,
        *,
        limits: Limits,
        throttle: Throttle,
    ) -> None:
        super().__init__(config)
        self._protocol: type[MemberProtocol] = type("GatedProtocol", (MemberProtocol,), {"gate": gate})
        self._listener = Listener(
            limiter,
            known,
            limits=limits,
            context=self._context,
            throttle=throttle,
            make_protocol=self._make_protocol,
            drop_member=gate.drop,
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, in place of the servers that uvicorn would have asyncio make."""
        assert sockets is not None, "bound before"
        await self.lifespan.startup()
        self.servers = []
        (listening,) = sockets
        self._listener.open(listening)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End with the server. An idle reader would not answer a farewell, and be waited for."""
        await self._listener.close()
        await super().shutdown(sockets=sockets)

    def _context(self) -> ssl.SSLContext:
        assert self.config.ssl is not None, "given"
        return self.config.ssl

    def _make_protocol(self, key: int) -> MemberProtocol:
        made = self._protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        made.key = key
        return made


def _hosts(agreement: Agreement, *, but: str) -> dict[str, str]:
    """Return the agreed host of every member with an address, but our own."""
    others = [member for member in agreement.members if member.name != but]
    return {member.name: split_address(member.address)[0] for member in others if member.address is not None}


def _bind(listen: str) -> socket.socket:
    try:
        host, port = split_address(listen)
    except ValueError as error:
        raise ConfigError(f"listen = {listen!r}: {error}") from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen at {listen} ({error.strerror}): choose another address or port") from error
