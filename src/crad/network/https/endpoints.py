"""What a member answers to the others: a few addresses, all of them GET, and nothing else."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from crad import __version__
from crad.errors import printable
from crad.network.agreement import Agreement
from crad.network.arrivals import KIND, split_kind
from crad.network.equivocation.witness import Witness
from crad.network.https.dial_back import DialBack
from crad.network.https.limits import Limits
from crad.network.https.outbox import Absent, Outbox, Published
from crad.network.token_buckets import TokenBuckets

CHUNK_BYTES = 1 << 20  # smaller ones cost half again the CPU
MAX_WAIT_S = 30.0
MAX_PROBE_BYTES = 4 << 20
MINUTE_S = 60.0
ROUND = re.compile(r"[0-9]{1,9}")
RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")

Delivered = Callable[[str, Published], None]  # to whom


class Endpoints:
    """The answers. They run on the server's loop; `wake` is how another thread says that there is news."""

    def __init__(
        self,
        agreement: Agreement,
        own: str,
        outbox: Outbox,
        *,
        dial_back: DialBack,
        on_delivered: Delivered,
        limits: Limits | None = None,
    ) -> None:
        self._agreement, self._own, self._outbox, self._on_delivered = agreement, own, outbox, on_delivered
        self._dial_back, self._limits = dial_back, limits or Limits()
        self._probed, self._dialled = TokenBuckets(), TokenBuckets()  # bytes and calls that each member has left
        self.witness: Witness | None = None  # of what we received; none before there is an exchange
        self._news = asyncio.Event()
        self._is_closing = False

    def application(self) -> Starlette:
        """Return the application with all addresses."""
        paths = {
            "/v1/hello": self._hello,
            "/v1/agreement": self._tell_agreement,
            "/v1/manifest/{round}/{kind}": self._manifest,
            "/v1/snapshot/{round}/{kind}": self._snapshot,
            "/v1/probe": self._probe,
            "/v1/reach": self._reach,
            "/v1/receipts/{round}": self._receipts,
            "/v1/receipts/{round}/{name}/{kind}": self._receipt,
            "/v1/proof/{name}": self._proof,
        }
        return Starlette(routes=[Route(path, answer, methods=["GET"]) for path, answer in paths.items()])

    def wake(self, *, is_closing: bool = False) -> None:
        """Say that something was published, or that the server is about to end: those who wait look again."""
        self._is_closing = is_closing
        self._news.set()
        self._news = asyncio.Event()

    async def _hello(self, request: Request) -> Response:
        return JSONResponse(
            {
                "name": self._own,
                "federation": self._agreement.hash,
                "first_round": self._outbox.first_round,
                "latest_round": self._outbox.latest_round,
                "clock": time.time(),
                "version": __version__,
            }
        )

    async def _tell_agreement(self, request: Request) -> Response:
        return Response(self._agreement.text, media_type="application/json")

    async def _manifest(self, request: Request) -> Response:
        place = self._place(request)
        wait_s = _number(request.query_params.get("wait", "0"), most=MAX_WAIT_S)
        if place is None or wait_s is None:
            return Response(status_code=404)
        found = await self._wait_for(*place, wait_s=wait_s)
        if not isinstance(found, Published):
            return self._absent(found)
        return Response(found.envelope, media_type="application/json", headers={"ETag": f'"{found.manifest.sha256}"'})

    async def _snapshot(self, request: Request) -> Response:
        place = self._place(request)
        if place is None:
            return Response(status_code=404)
        found = self._outbox.look(*place)
        if not isinstance(found, Published):
            return self._absent(found)
        return _piece(found, request.headers, on_whole=lambda: self._on_delivered(request.scope["member"], found))

    async def _probe(self, request: Request) -> Response:
        """Send zeros, so that the line can be measured; so many a minute, or anybody could use up our own."""
        size = _number(request.query_params.get("bytes", "0"), most=MAX_PROBE_BYTES)
        if size is None:
            return Response(status_code=404)
        a_minute = self._limits.probe_bytes_per_minute
        if not self._is_within(self._probed, request, a_minute=a_minute, amount=int(size)):
            return Response(status_code=429, headers={"Retry-After": str(_minutes_part(size, a_minute))})
        return Response(bytes(int(size)))

    async def _reach(self, request: Request) -> Response:
        """Tell whether we reach the member that asks, at its agreed address: the request cannot name another."""
        name: str = request.scope["member"]
        a_minute = self._limits.reaches_per_minute
        if not self._is_within(self._dialled, request, a_minute=a_minute):
            return Response(status_code=429, headers={"Retry-After": str(_minutes_part(1, a_minute))})
        if not self._dial_back.begin(name):
            return Response(status_code=429, headers={"Retry-After": "5"})
        reached = await self._dial_back.reached(name)
        return JSONResponse(reached.model_dump())

    def _is_within(self, buckets: TokenBuckets, request: Request, *, a_minute: int, amount: float = 1.0) -> bool:
        """Return whether a member may have so much more of what it has a minute's share of."""
        name, now = request.scope["member"], time.monotonic()
        return buckets.spend(name, rate=a_minute / MINUTE_S, burst=float(a_minute), now=now, amount=amount)

    async def _receipts(self, request: Request) -> Response:
        """Tell what we received in a round, as hashes, and against whom we have a proof."""
        round_text = request.path_params["round"]
        if self.witness is None or ROUND.fullmatch(round_text) is None:
            return Response(status_code=404)
        return JSONResponse(
            {"received": self.witness.digests(int(round_text)), "proofs": self.witness.proven()},
        )

    async def _receipt(self, request: Request) -> Response:
        """Send the signed envelope of another member, as we received it."""
        round_text, name, kind = (request.path_params[key] for key in ("round", "name", "kind"))
        is_kind = KIND.fullmatch(kind) is not None and split_kind(kind)[1] is None
        is_sensible = ROUND.fullmatch(round_text) is not None and is_kind
        found = self.witness.envelope(int(round_text), name, kind) if self.witness and is_sensible else None
        return Response(status_code=404) if found is None else Response(found, media_type="application/json")

    async def _proof(self, request: Request) -> Response:
        """Send two messages of one member for one round, signed by it."""
        found = None if self.witness is None else self.witness.proof(request.path_params["name"])
        return Response(status_code=404) if found is None else Response(found, media_type="application/json")

    def _place(self, request: Request) -> tuple[int, str] | None:
        """Return round and kind, unless they make no sense or the message is for somebody else."""
        round_text, kind = request.path_params["round"], request.path_params["kind"]
        if ROUND.fullmatch(round_text) is None or KIND.fullmatch(kind) is None:
            return None
        receiver = split_kind(kind)[1]
        if receiver not in (None, self._agreement.number(request.scope["member"])):
            return None
        return int(round_text), kind

    async def _wait_for(self, round_index: int, kind: str, *, wait_s: float) -> Published | Absent:
        until = time.monotonic() + wait_s
        while True:
            news = self._news  # before looking: what is published from now on sets this very event
            found = self._outbox.look(round_index, kind)
            left = until - time.monotonic()
            if found != "later" or left <= 0 or self._is_closing:
                return found
            try:
                await asyncio.wait_for(news.wait(), left)
            except TimeoutError:
                continue

    def _absent(self, absent: Absent) -> Response:
        rounds = {"first_round": self._outbox.first_round, "latest_round": self._outbox.latest_round}
        return JSONResponse(rounds, status_code=425 if absent == "later" else 410)


def _piece(found: Published, headers: Mapping[str, str], *, on_whole: Callable[[], None]) -> Response:
    """Return the body or a part of it, as Range and If-Range ask for; ranges that we do not read give the whole."""
    etag, size = f'"{found.manifest.sha256}"', found.manifest.size
    start, stop = 0, size
    match = RANGE.fullmatch(headers.get("range", ""))
    if match is not None and headers.get("if-range", etag) == etag:
        start, stop = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
        if start >= stop:
            return Response(status_code=416, headers={"ETag": etag, "Content-Range": f"bytes */{size}"})
    said = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Length": str(stop - start)}
    if (start, stop) != (0, size):
        said["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    status = 206 if (start, stop) != (0, size) else 200
    return FilePiece(found.body, start, stop, status=status, headers=said, on_end=on_whole if stop == size else None)


class FilePiece(Response):
    """Bytes of a file, a megabyte at a time."""

    def __init__(
        self,
        path: Path,
        start: int,
        stop: int,
        *,
        status: int,
        headers: dict[str, str],
        on_end: Callable[[], None] | None,
    ) -> None:
        super().__init__(status_code=status, headers=headers, media_type="application/octet-stream")
        self._path, self._start, self._stop, self._on_end = path, start, stop, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; the next megabyte is read when the last one is on its way."""
        with self._path.open("rb") as file:  # a file that is removed meanwhile stays readable
            file.seek(self._start)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            left = self._stop - self._start
            while left:
                chunk = file.read(min(CHUNK_BYTES, left))
                if not chunk:
                    raise OSError(f"{self._path} is shorter than it was")
                left -= len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": left > 0})
        if self._on_end is not None:
            self._on_end()


def _minutes_part(amount: float, a_minute: float) -> int:
    """Return after how many seconds there is room for so much again, at the most."""
    return math.ceil(MINUTE_S * min(1.0, amount / max(1.0, a_minute)))


def _number(text: str, *, most: float) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return min(number, most) if math.isfinite(number) and number >= 0 else None


def describe_path(path: str) -> dict[str, Any]:
    """Return what a path asks for, in the words of the ledger."""
    told = re.fullmatch(r"/v1/(receipts|proof)/([0-9]{1,9})?.*", path)
    if told is not None:
        return {"what": told[1], **({} if told[2] is None else {"round_index": int(told[2])})}
    match = re.fullmatch(r"/v1/(hello|agreement|probe|reach|manifest|snapshot)(?:/([0-9]{1,9})/([^/]+))?", path)
    if match is None:
        return {"what": "refusal"}
    what: dict[str, Any] = {"what": match[1]}
    return what if match[2] is None else {**what, "round_index": int(match[2]), "kind": printable(match[3])}
