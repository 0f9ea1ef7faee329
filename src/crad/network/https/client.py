"""Asking one member: small answers with a limit on their size, and bodies that go on where they were cut off."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Annotated, Any, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crad.errors import SnapshotError, first_foreign_fault, printable
from crad.network.agreement import Agreement
from crad.network.arrivals import Announced, RoundRange, ShortName
from crad.network.envelope import max_envelope_bytes
from crad.network.equivocation.proof import max_proof_bytes
from crad.network.fields import split_address
from crad.network.https.tls import MemberContext
from crad.network.identity import Identity

CONNECT_S = 10.0
READ_S = 30.0  # of silence in the middle of an answer
ANSWER_S = 60.0  # for all of a small answer, however its bytes come
GRACE_S = 30.0  # for a body to begin
LEAST_BYTES_PER_S = 4096.0  # of a body after that: whoever drips is not waited for
MAX_ANSWER_BYTES = 4096
MAX_AGREEMENT_BYTES = 4 << 20
MAX_REASON = 500  # characters
OLDER_TLS = ("alert protocol version", "unsupported protocol", "wrong version number")  # in OpenSSL's words

RECEIPTS_BYTES, RECEIPT_BYTES = 16 * 1024, 512  # of hashes in all, and for each member
Told = TypeVar("Told", bound=BaseModel)


class SlowError(httpx.ReadTimeout):
    """A body came, and more slowly than anybody need wait for."""


class ChangedError(Exception):
    """The member has published the round again: what it announced before is no longer there."""


@dataclass(frozen=True)
class Answer:
    """Status and body of a small answer."""

    status: int
    body: bytes
    retry_s: float = 0.0


class Hello(RoundRange):
    """What a member says of itself."""

    name: Annotated[str, Field(max_length=63)]
    federation: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    clock: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # seconds since 1970
    version: Annotated[str, Field(max_length=50)]


class ReceiptDigests(BaseModel):
    """What a member says that it received in a round, and against whom it has proofs; nothing of it is believed."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    received: dict[ShortName, dict[ShortName, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]]
    proofs: list[ShortName] = []


class Reached(BaseModel):
    """Whether a member reaches us, as it says; the address is where it looked."""

    is_reached: bool
    address: Annotated[str, Field(max_length=300)]
    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""


class MemberClient:
    """Connections to one member. Everything that can go wrong on a line is an `httpx.TransportError`."""

    def __init__(
        self,
        number: int,
        *,
        identity: Identity,
        agreement: Agreement,
        proxy: str | None = None,
        read_s: float = READ_S,
    ) -> None:
        self.number, self.member = number, agreement.members[number]
        self._agreement, self._read_s = agreement, read_s
        host, port = split_address(self.member.address or "")
        self._context = MemberContext.to(self.member, identity=identity, agreement=agreement)
        self._client = httpx.Client(
            base_url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            verify=self._context,
            trust_env=False,  # a proxy is used where peer.toml names one, never by accident
            proxy=proxy,
            headers={"Accept-Encoding": "identity"},
        )
        # A cookie is kept for the next request, and one that cannot be sent would end it.
        self._client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    def hello(self, *, timeout_s: float | None = None, total_s: float | None = None) -> Hello:
        """Return who is there, with which agreement, at which round."""
        return self._model(Hello, self.ask("/v1/hello", read_s=timeout_s, total_s=total_s))

    def agreement(self, *, total_s: float | None = None) -> dict[str, Any]:
        """Return what the member has agreed on, as plain and unchecked values."""
        answer = self.ask("/v1/agreement", limit=MAX_AGREEMENT_BYTES, total_s=total_s)
        try:
            table = json.loads(answer.body)
        except (ValueError, RecursionError):
            table = None
        if answer.status != 200 or not isinstance(table, dict):
            raise SnapshotError(f"{self.member.name} does not tell its agreement (answer {answer.status})")
        return table

    def rounds(self, answer: Answer) -> RoundRange:
        """Return what an answer 410 or 425 says about the member's rounds."""
        return self._model(RoundRange, answer)

    def manifest(self, round_index: int, kind: str, *, wait_s: float) -> Answer:
        """Return the signed envelope of a round, waited for at the other end."""
        path = f"/v1/manifest/{round_index}/{kind}?wait={wait_s:.2f}"
        limit = max_envelope_bytes(self._agreement) + 1  # one more is enough to be refused
        return self.ask(path, limit=limit, read_s=self._read_s + wait_s, total_s=self._read_s + wait_s)

    def receipts(self, round_index: int, *, total_s: float) -> ReceiptDigests | None:
        """Return what the member says that it received in a round, None if it does not say."""
        limit = RECEIPTS_BYTES + RECEIPT_BYTES * len(self._agreement.members)
        answer = self.ask(f"/v1/receipts/{round_index}", limit=limit, total_s=total_s)
        return self._model(ReceiptDigests, answer) if answer.status == 200 else None

    def receipt(self, round_index: int, name: str, kind: str, *, total_s: float) -> bytes | None:
        """Return the envelope that the member received from another one, None if it has none."""
        limit = max_envelope_bytes(self._agreement) + 1
        answer = self.ask(f"/v1/receipts/{round_index}/{name}/{kind}", limit=limit, total_s=total_s)
        return answer.body if answer.status == 200 else None

    def proof(self, name: str, *, total_s: float) -> bytes | None:
        """Return the member's proof against another one, None if it has none."""
        answer = self.ask(f"/v1/proof/{name}", limit=max_proof_bytes(self._agreement), total_s=total_s)
        return answer.body if answer.status == 200 else None

    def reach(self, *, total_s: float | None = None) -> Reached | None:
        """Return whether the member reaches us at our agreed address, None if it is busy or does not know how."""
        answer = self.ask("/v1/reach", total_s=total_s)
        return None if answer.status in (404, 429) else self._model(Reached, answer)

    def probe(self, size: int, *, total_s: float | None = None) -> float:
        """Return how many seconds it takes to receive so many bytes."""
        began = time.perf_counter()
        answer = self.ask(f"/v1/probe?bytes={size}", limit=size, total_s=total_s)
        if answer.status == 429:
            raise SnapshotError(f"{self.member.name} has been measured often enough for a minute")
        if answer.status != 200 or len(answer.body) != size:
            raise SnapshotError(f"{self.member.name} answered a probe of {size} bytes with {len(answer.body)}")
        return time.perf_counter() - began

    def body(self, announced: Announced, *, round_index: int, kind: str, start: int) -> Iterator[bytes]:
        """Yield the announced body from this byte on, as it comes; who sends slower than a least speed is cut off."""
        if start == announced.manifest.size:
            return
        etag = f'"{announced.manifest.sha256}"'
        headers = {"Range": f"bytes={start}-", "If-Range": etag} if start else {}
        with (
            self._context.within(GRACE_S) as deadline,
            self._stream(f"/v1/snapshot/{round_index}/{kind}", headers=headers) as response,
        ):
            if response.status_code not in (200, 206) or response.headers.get("ETag") != etag:
                raise ChangedError
            known = start  # bytes that come again, where the whole is sent
            if response.status_code == 206:
                _check_begins_at(start, response, name=self.member.name)
                known = 0
            try:
                for chunk in response.iter_raw():
                    deadline.extend(len(chunk) / LEAST_BYTES_PER_S)
                    yield chunk[known:]
                    known = max(0, known - len(chunk))
            except httpx.ReadTimeout as error:
                if deadline.is_over:
                    raise SlowError(str(error)) from error
                raise

    def ask(
        self, path: str, *, limit: int = MAX_ANSWER_BYTES, read_s: float | None = None, total_s: float | None = None
    ) -> Answer:
        """Send one GET; read no more than `limit` bytes of the answer's body, and no longer than `total_s` in all."""
        with (
            self._context.within(ANSWER_S if total_s is None else total_s),
            self._stream(path, read_s=read_s) as response,
        ):
            body = bytearray()
            for chunk in response.iter_raw():
                body += chunk
                if len(body) >= limit:
                    break
            retry = response.headers.get("Retry-After", "")
            return Answer(response.status_code, bytes(body[:limit]), float(retry) if retry.isdecimal() else 0.0)

    def drop(self) -> None:
        """End whatever is under way, from another thread."""
        self._context.drop_connections()

    def close(self) -> None:
        """Let go of all connections."""
        self._client.close()

    @contextmanager
    def _stream(
        self, path: str, *, headers: dict[str, str] | None = None, read_s: float | None = None
    ) -> Iterator[httpx.Response]:
        read_s = self._read_s if read_s is None else read_s
        try:
            connect_s = self._context.deadline.left_s(min(CONNECT_S, read_s))
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        timeout = httpx.Timeout(read_s, connect=connect_s, pool=connect_s)
        request = self._client.build_request("GET", path, headers=headers, timeout=timeout)
        with closing(self._send(request)) as response:
            yield response

    def _send(self, request: httpx.Request) -> httpx.Response:
        """Send it; whatever the library makes of a strange answer, say a redirect to nowhere, is the line's fault."""
        try:
            return self._client.send(request, stream=True)
        except httpx.TransportError:
            raise
        except Exception as error:
            raise httpx.RemoteProtocolError(f"an answer that makes no sense ({type(error).__name__})") from error

    def _model(self, model: type[Told], answer: Answer) -> Told:
        try:
            return model.model_validate_json(answer.body)
        except ValidationError as error:
            raise SnapshotError(
                f"{self.member.name} gave an answer ({answer.status}) that makes no sense: "
                f"{first_foreign_fault(error)}: compare the versions of crad"
            ) from error


def why(error: httpx.TransportError) -> str:
    """Return what probably lies behind a failed connection, in a few words."""
    cause = _tls_cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"whoever answers there does not prove to be it: {printable(cause.verify_message or cause.args[0])}"
    if isinstance(error, httpx.ConnectError) and _is_older_tls(cause):
        return "it does not speak TLS 1.3, and nothing older is taken: perhaps it is not crad that answers"
    if "alert" in str(error):
        return "it refuses our certificate: the other side must have the same federation.toml, and ours must be valid"
    if is_disconnect(error):
        return "it closes the connection without a word: probably it refuses our certificate; compare federation.toml"
    if is_slow(error):
        return f"it sends its snapshot slower than {LEAST_BYTES_PER_S:g} bytes a second"
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer: perhaps a firewall, or the machine is off"
    return f"it cannot be reached ({printable(error)}): check its address, and whether it is running"


def is_disconnect(error: httpx.TransportError) -> bool:
    """Return whether a connection was made and ended without an answer, as TLS 1.3 shows a refused certificate."""
    return isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError)


def is_slow(error: httpx.TransportError) -> bool:
    """Return whether a body was cut off because it came too slowly."""
    return isinstance(error, SlowError)


def is_imposter(error: httpx.TransportError) -> bool:
    """Return whether somebody answers at the member's address who is not the member."""
    return isinstance(_tls_cause(error), ssl.SSLCertVerificationError)


def _tls_cause(error: BaseException | None) -> BaseException | None:
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _is_older_tls(cause: BaseException | None) -> bool:
    """Return whether the handshake failed over the version; a server that knows no common one may also just hang up."""
    return isinstance(cause, ssl.SSLEOFError) or any(words in str(cause).lower() for words in OLDER_TLS)


def _check_begins_at(start: int, response: httpx.Response, *, name: str) -> None:
    said = response.headers.get("Content-Range", "nothing")
    if not said.startswith(f"bytes {start}-"):
        raise SnapshotError(f"{name} sent another part of its snapshot than it was asked for ({printable(said)})")
