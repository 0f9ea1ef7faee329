"""The one way into a member's server: who comes in, how often, and what goes out. Nothing passes beside it."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from crad.errors import SnapshotError, printable
from crad.network.agreement import Agreement
from crad.network.certificate_check import find_member
from crad.network.https.connection_limiter import ConnectionLimiter
from crad.network.https.endpoints import describe_path
from crad.network.https.limits import Limits
from crad.network.https.notices import Throttle
from crad.network.ledger import OutgoingLedger
from crad.network.token_buckets import TokenBuckets

STRANGER = "nobody known"

__all__ = ["STRANGER", "Limits", "MemberProtocol", "Outgoing", "RequestGate"]


class RequestGate:
    """Knows who is connected. As an ASGI application it lets through what the limits allow, and writes the ledger."""

    def __init__(
        self,
        application: ASGIApp,
        *,
        agreement: Agreement,
        ledger: OutgoingLedger,
        limits: Limits,
        limiter: ConnectionLimiter,
        throttle: Throttle,
    ) -> None:
        self._application, self._agreement, self._ledger = application, agreement, ledger
        self.limits, self._limiter, self._throttle = limits, limiter, throttle
        self._lines: dict[int, MemberProtocol] = {}
        self._budgets = TokenBuckets()  # of requests, by member

    # --- connections

    def enter(self, line: MemberProtocol, der: bytes) -> str | None:
        """Return the member who has shown this certificate and may stay, None if there is none."""
        try:
            name = find_member(der, agreement=self._agreement).name
        except SnapshotError as error:
            self._throttle.say("refused", f"somebody was refused: {error}")
            self._limiter.leave(line.key)
            return None
        verdict = self._limiter.enter(line.key, name, is_busy=line.is_busy)
        if verdict.is_in:
            self._lines[line.key] = line
        for key in verdict.dropped:
            self.drop(key)
        if verdict.said is not None:
            self._throttle.say(*verdict.said)
        return name if verdict.is_in else None

    def touch(self, line: MemberProtocol) -> None:
        """Note that a member uses its connection."""
        if line.member is not None:
            self._limiter.touch(line.key, line.member)

    def drop(self, key: int) -> None:
        """End a member's connection that has lost its place, without a farewell that would have to be answered."""
        line = self._lines.pop(key, None)
        if line is not None:
            line.transport.abort()

    def leave(self, line: MemberProtocol) -> None:
        """Free the place of a connection that has ended."""
        self._lines.pop(line.key, None)
        self._limiter.leave(line.key, line.member)

    # --- requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of the connection in the scope."""
        connection: MemberProtocol = scope["connection"]
        outgoing = Outgoing(connection, scope, send, ledger=self._ledger, send_s=self.limits.send_s)
        status = self._refusal(connection.member, scope)
        try:
            if status is not None:
                await PlainTextResponse("", status, {"Connection": "close"})(scope, receive, outgoing.send)
                return
            await self._application({**scope, "member": connection.member}, receive, outgoing.send)
        except ConnectionError:
            return  # the reader has gone
        except TimeoutError:
            text = f"{connection.member} was dropped: it took less than a megabyte in {self.limits.send_s:g} s"
            self._throttle.say(f"slow {connection.member}", text)
            connection.transport.abort()
        except Exception as error:  # whatever it is, the others are served on
            text = f"the server failed on {printable(scope['path'])} for {connection.member}: {printable(repr(error))}"
            self._throttle.say(f"failed {connection.member}", text)
            connection.transport.abort()

    def _refusal(self, name: str | None, scope: Scope) -> int | None:
        if name is None:
            return 403
        if not self._spend(name):
            return 429
        if not scope["path"].isprintable():  # a line break at the end would pass for the address before it
            return 404
        return None if scope["method"] == "GET" else 405

    def _spend(self, name: str) -> bool:
        """Take one request of the member's budget, which fills up with time."""
        rate, burst = self.limits.requests_per_s, float(self.limits.burst)
        return self._budgets.spend(name, rate=rate, burst=burst, now=time.monotonic())


class Outgoing:
    """An answer on its way out: every piece goes into the ledger before it goes to the reader."""

    def __init__(
        self, connection: MemberProtocol, scope: Scope, send: Send, *, ledger: OutgoingLedger, send_s: float
    ) -> None:
        self._connection, self._send, self._ledger, self._send_s = connection, send, ledger, send_s
        self._about: dict[str, Any] = {"to": connection.member or STRANGER, **describe_path(scope["path"])}
        self._first = 0

    async def send(self, message: Message) -> None:
        """Record a piece and pass it on; ConnectionError if the reader has gone, TimeoutError if it is too slow."""
        if message["type"] == "http.response.start":
            self._read_head(message)
        size = len(message.get("body", b""))
        if self._connection.transport.is_closing():
            raise ConnectionError("the reader has gone")
        if size:
            self._ledger.record(**self._about, size=size, first=self._first)
            self._first += size
        async with asyncio.timeout(self._send_s):
            await self._send(message)
        # A piece that fits into the buffers is sent without a pause: let the others, and the news of a reader gone, in.
        await asyncio.sleep(0)

    def _read_head(self, message: Message) -> None:
        headers = {name.lower(): value.decode("latin-1") for name, value in message["headers"]}
        if message["status"] >= 400:
            self._about["what"] = "refusal"
        elif b"etag" in headers:
            self._about["sha256"] = headers[b"etag"].strip('"')
        first = re.match(r"bytes ([0-9]+)-", headers.get(b"content-range", ""))
        self._first = int(first[1]) if first else 0


class MemberProtocol(H11Protocol):
    """uvicorn's HTTP, with the member known for every connection; one subclass per server, which has its gate."""

    gate: RequestGate
    key = 0  # of its place in the limiter

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  # uvicorn's own
        super().__init__(*args, **options)
        self.member: str | None = None
        self._application = self.app
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Let somebody with a trusted certificate in after the handshake, who may not stay for all that."""
        super().connection_made(transport)
        der = transport.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
        self.member = self.gate.enter(self, der)
        self.app = self._answer
        if self.member is None:
            transport.abort()
        else:
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free its place, however it ended."""
        super().connection_lost(exc)
        self.gate.leave(self)
        self._stop_patience()

    def data_received(self, data: bytes) -> None:
        """Expect a request that has begun to come to its end."""
        self.gate.touch(self)
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_request()
        super().data_received(data)

    def is_busy(self) -> bool:
        """Return whether a request is being answered, or its answer still on its way."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return not self.transport.is_closing() and (is_answering or self.transport.get_write_buffer_size() > 0)

    def shutdown(self) -> None:
        """End with the server. An idle reader would not answer a farewell, and be waited for."""
        if self.is_busy():
            super().shutdown()
        else:
            self.transport.abort()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  # ASGI
        self._stop_patience()
        await self._application({**scope, "connection": self}, receive, send)

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(self.gate.limits.request_s, self.transport.abort)

    def _stop_patience(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
