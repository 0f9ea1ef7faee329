"""What hostile members do over TLS: a server by hand at the member's agreed address, and connections without end."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from crad.federation.message import Manifest, Message
from crad.network.https.tls import MemberContext, server_context
from crad.network.identity import name_in, parse_certificate
from tests.hostile_garbage import bad_http, bad_manifests, forged_envelope, forged_proof
from tests.hostile_member import KIND, LOOK_S, Own

DRIP_S = 1.0
OUTSIDE = {"127.0.0.64": 64, "127.0.0.66": 1000}  # addresses of no member, and how many sockets each holds
TOP_UP = 20  # new ones between two looks, in place of those that were dropped
LOOK_AGAIN_S = 0.25
HANDS = 10  # threads that shake hands at once
MADE_UP = 10_000


@dataclass(frozen=True)
class Asked:
    """A question, and who asks it."""

    asker: int
    words: list[str]  # of the path, without the version
    wait_s: float

    @property
    def round_index(self) -> int:
        return int(self.words[1])


def reply(status: int, body: bytes = b"", **headers: object) -> bytes:
    """An answer as HTTP has it."""
    lines = {"Content-Length": len(body), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} x\r\n{head}\r\n".encode() + body


def drip(begin: bytes, rest: Iterable[int] = itertools.repeat(97)) -> Iterator[bytes]:
    """The beginning at once, the rest one byte a second."""
    yield begin
    for byte in rest:
        time.sleep(DRIP_S)
        yield bytes([byte])


class Polite:
    """Answers as an honest member does, with a model that never learns; what others do worse is changed below."""

    def __init__(self, own: Own) -> None:
        self.own = own
        self.context = server_context(own.identity, own.agreement)

    @classmethod
    def live(cls, own: Own) -> None:
        """Serve as long as the process lives."""
        cls(own).serve()

    def serve(self) -> None:
        """Answer everybody, for ever."""
        host, port = str(self.own.agreement.members[self.own.number].address).split(":")
        threading.Thread(target=self._read_the_last, daemon=True).start()
        with socket.create_server((host, int(port)), backlog=128) as listener:
            self.own.is_ready()
            while True:
                raw, _ = listener.accept()
                threading.Thread(target=self._talk, args=(raw,), daemon=True).start()

    def greet(self, raw: socket.socket) -> ssl.SSLSocket:
        return self.context.wrap_socket(raw, server_side=True)

    def answer(self, asked: Asked) -> Iterable[bytes]:
        match asked.words:
            case ["hello"]:
                return [reply(200, json.dumps(self.hello()).encode())]
            case ["manifest", _, _]:
                return self.manifest(asked)
            case ["snapshot", _, _]:
                return self.snapshot(asked)
            case ["receipts", _]:
                return self.receipts(asked)
            case ["receipts", _, name, _]:
                return self.receipt(asked, name)
            case ["proof", name]:
                return self.proof(name)
        return [reply(404)]

    def hello(self) -> dict[str, object]:
        about = {"name": self.own.identity.name, "federation": self.own.agreement.hash, "version": "0"}
        return {**about, "clock": time.time(), **self.rounds()}

    def rounds(self) -> dict[str, int]:
        return {"first_round": 1, "latest_round": min(self.own.finished() + 1, self.own.last)}

    def message(self, asked: Asked) -> Message:
        return self.own.message(asked.round_index)

    def is_due(self, round_index: int) -> bool:
        return self.own.finished() >= round_index - 1

    def manifest(self, asked: Asked) -> Iterable[bytes]:
        until = time.monotonic() + asked.wait_s
        while not self.is_due(asked.round_index):
            if time.monotonic() > until:
                return [reply(425, json.dumps(self.rounds()).encode())]
            time.sleep(LOOK_S)
        return [reply(200, self.own.envelope(self.message(asked)))]

    def snapshot(self, asked: Asked) -> Iterable[bytes]:
        message = self.message(asked)
        return [reply(200, bytes(message.body), ETag=_etag(message))]

    def receipts(self, asked: Asked) -> Iterable[bytes]:
        return [reply(404)]

    def receipt(self, asked: Asked, name: str) -> Iterable[bytes]:
        return [reply(404)]

    def proof(self, name: str) -> Iterable[bytes]:
        return [reply(404)]

    def _read_the_last(self) -> None:
        """Fetch everybody's last snapshot: those who never do are waited for, and some of us are in a hurry."""
        for number in self.own.honest:
            while self.own.finished_by(number) < self.own.last:
                time.sleep(LOOK_S)
            member = self.own.agreement.members[number]
            context = MemberContext.to(member, identity=self.own.identity, agreement=self.own.agreement)
            with contextlib.suppress(OSError):
                line = http.client.HTTPSConnection(str(member.address), context=context, timeout=5)
                line.request("GET", f"/v1/snapshot/{self.own.last}/{KIND}")
                line.getresponse().read()

    def _talk(self, raw: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), raw, self.greet(raw) as line:
            asker = self.own.agreement.number(name_in(parse_certificate(line.getpeercert(True) or b"")))
            for words, wait_s in _questions(line):
                for piece in self.answer(Asked(asker, words, wait_s)):
                    line.sendall(piece)


class InTurns(Polite):
    """Another one in every round of the one who asks."""

    def __init__(self, own: Own, turns: Iterable[tuple[type[Polite], range]]) -> None:
        super().__init__(own)
        served = [(behaviour(own.in_turn(turn)), turn) for behaviour, turn in turns]
        self._in_round = {round_index: one for one, turn in served for round_index in turn}

    def greet(self, raw: socket.socket) -> ssl.SSLSocket:
        return self._after(self.own.finished_by_all()).greet(raw)  # nobody knows yet who it is

    def answer(self, asked: Asked) -> Iterable[bytes]:
        return self._after(self.own.finished_by(asked.asker)).answer(asked)

    def _after(self, finished: int) -> Polite:
        round_index = min(finished + 1, self.own.last)
        self.own.note_turn(round_index)
        return self._in_round[round_index]


def _etag(message: Message) -> str:
    return f'"{Manifest.model_validate_json(message.manifest).sha256}"'


def _questions(line: ssl.SSLSocket) -> Iterator[tuple[list[str], float]]:
    """The paths that are asked for on one connection."""
    while True:
        asked = b""
        while b"\r\n\r\n" not in asked:
            piece = line.recv(4096)
            if not piece:
                return
            asked += piece
        path, _, query = asked.split()[1].decode().partition("?")
        yield path.split("/")[2:], float(query.removeprefix("wait=") or 0)


# --- row 1


class ClaimsTheLast(Polite):
    """Says that it has finished, and that everything older is gone."""

    def rounds(self):
        return {"first_round": self.own.last, "latest_round": self.own.last}

    def manifest(self, asked):
        return [reply(410, json.dumps(self.rounds()).encode())]


class ShowsTheLast(ClaimsTheLast):
    """The same, with a genuine message of the last round to show."""

    def manifest(self, asked):
        if asked.round_index < self.own.last:
            return super().manifest(asked)
        return [reply(200, self.own.envelope(self.message(asked)))]


# --- row 2


class DripsInHandshake(Polite):
    def greet(self, raw):
        for piece in drip(b"\x16\x03\x03\x0f\xff"):
            raw.sendall(piece)
        raise AssertionError("it has no end")

    def answer(self, asked):
        raise ConnectionError("who was here before must shake hands again")


class DripsInHeaders(Polite):
    def answer(self, asked):
        return drip(b"HTTP/1.1 200 OK\r\nX-Slow: ")


class DripsInManifest(Polite):
    def manifest(self, asked):
        whole = reply(200, self.own.envelope(self.message(asked)))
        return drip(whole[:100], whole[100:])


class DripsInBody(Polite):
    def snapshot(self, asked):
        whole = b"".join(super().snapshot(asked))
        return drip(whole[:200], whole[200:])


# --- rows 3 and 5


def hold_silent_sockets(own: Own) -> None:
    """[An outsider.] Hold sockets at every honest member, from addresses of no member; dropped ones come again."""
    for number in own.honest:
        for source, count in OUTSIDE.items():
            args = (own, number, source, count)
            threading.Thread(target=_hold, args=args, daemon=True).start()
    own.is_ready()


def hold_connections(own: Own) -> None:
    """Hold connections with our own certificate, a thousand at every honest member; dropped ones are opened again."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(own.identity.certificate_path, own.identity.key_path)
    for number, hand in itertools.product(own.honest, range(HANDS)):
        args = (own, number, "127.0.0.1", 1000 // HANDS, context, f"-{hand}")
        threading.Thread(target=_hold, args=args, daemon=True).start()
    own.is_ready()


def _hold(
    own: Own, number: int, source: str, count: int, context: ssl.SSLContext | None = None, hand: str = ""
) -> None:
    host, port = str(own.agreement.members[number].address).split(":")
    opened, tried = selectors.DefaultSelector(), own.home / f"tried-{number}-{source}{hand}"
    with tried.open("ab", buffering=0) as note:
        while True:
            is_begun = tried.stat().st_size >= count
            for _ in range(min(TOP_UP, count - len(opened.get_map())) if is_begun else count):
                with contextlib.suppress(OSError):
                    raw = socket.create_connection((host, int(port)), timeout=5, source_address=(source, 0))
                    note.write(b".")
                    opened.register(raw if context is None else context.wrap_socket(raw), selectors.EVENT_READ)
            _let_go_of_the_dropped(opened)


def _let_go_of_the_dropped(opened: selectors.BaseSelector) -> None:
    for key, _ in opened.select(LOOK_AGAIN_S):  # an end, or what TLS says after a handshake
        assert isinstance(key.fileobj, socket.socket)
        with contextlib.suppress(OSError):
            if key.fileobj.recv(4096):
                continue
        opened.unregister(key.fileobj)
        key.fileobj.close()


# --- row 6


class ComesAndGoes(Polite):
    """There in every other round; in those between it hangs up."""

    def manifest(self, asked):
        if asked.round_index % 2 == 0:
            raise ConnectionError("gone")
        return super().manifest(asked)


class PublishesLate(Polite):
    """Always when everybody has gone on without it."""

    def is_due(self, round_index):
        return self.own.finished_by_all() >= round_index


# --- row 9


class Overflows(Polite):
    """Weights that are finite, outputs that are not."""

    def message(self, asked):
        return self.own.message(asked.round_index, is_huge=True)


class SignsTwo(Polite):
    """Another snapshot for every other asker."""

    def message(self, asked):
        return self.own.message(asked.round_index, variant=asked.asker % 2)


class Slanders(Polite):
    """Says of everybody that it received something else, shows forgeries, and has proofs that are none."""

    def receipts(self, asked):
        names = [member.name for member in self.own.agreement.members if member.name != self.own.identity.name]
        received = {name: {KIND: f"{random.getrandbits(256):064x}"} for name in names}
        asker = self.own.agreement.members[asked.asker].name
        received[asker] |= {f"kind{index}": "0" * 64 for index in range(MADE_UP)}  # each of them must be asked for
        return [reply(200, json.dumps({"received": received, "proofs": names}).encode())]

    def receipt(self, asked, name):
        return [reply(200, forged_envelope(self.own, name, asked.round_index))]

    def proof(self, name):
        return [reply(200, forged_proof(self.own, name))]


class SendsGarbage(Polite):
    """A well-formed answer with another kind of garbage in it each time."""

    def __init__(self, own):
        super().__init__(own)
        self._kinds = itertools.count()

    def manifest(self, asked):
        garbage = bad_manifests(self.own, asked.round_index)
        return [reply(200, garbage[next(self._kinds) % len(garbage)])]


class SpeaksNoHttp(Polite):
    """Another kind of broken HTTP each time."""

    def __init__(self, own):
        super().__init__(own)
        self._kinds = itertools.count()

    def manifest(self, asked):
        garbage = bad_http()
        yield from garbage[next(self._kinds) % len(garbage)]
        raise ConnectionError("hung up")


class AnnouncesTooMuch(Polite):
    """In odd rounds a terabyte, signed; in even rounds the truth, and then a body without an end."""

    def message(self, asked):
        is_odd = asked.round_index % 2 == 1
        return self.own.manifest(asked.round_index, size=2**40) if is_odd else self.own.message(asked.round_index)

    def snapshot(self, asked):
        yield reply(200, ETag=_etag(self.message(asked)), Content_Length=2**50)
        while True:
            yield bytes(1 << 16)
