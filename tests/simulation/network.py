"""The lines between members in memory, and a store: slow, cut, down, or asked of somebody who lies."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import httpx

from crad.network.agreement import Agreement, Member
from crad.network.arrivals import Announced, RoundRange
from crad.network.equivocation.witness import Witness
from crad.network.https.client import Answer, ChangedError, ReceiptDigests
from crad.network.https.outbox import Outbox, Published
from crad.network.store.objects import StoreError
from tests.simulation.clock import VirtualClock

CONNECT_S, TOTAL_S = 10.0, 50.0


class Host(Protocol):
    """Who is asked: an honest member's server, or somebody hostile."""

    is_up: bool

    def look(self, asker: int, round_index: int, kind: str) -> Answer | None:
        """The answer to a question for an envelope; None: not yet."""

    def body(self, asker: int, announced: Announced, round_index: int, kind: str) -> bytes:
        """The body; an `httpx` error where the line ends in the middle."""

    def receipts(self, asker: int, round_index: int) -> ReceiptDigests | None: ...

    def receipt(self, asker: int, round_index: int, name: str, kind: str) -> bytes | None: ...

    def proof(self, asker: int, name: str) -> bytes | None: ...


class SimulatedServer:
    """An honest member's server: answers as `Endpoints` does, from the real outbox and the real witness."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox, self.is_up = outbox, True
        self.on_delivered: Callable[[str, Published], None] = lambda name, published: None
        self.witness: Witness | None = None

    def announce(self) -> None:
        """Those who wait look again by themselves."""

    def look(self, asker: int, round_index: int, kind: str) -> Answer | None:
        found = self.outbox.look(round_index, kind)
        if isinstance(found, Published):
            return Answer(200, found.envelope)
        if found == "later":
            return None
        return gone(self.outbox.first_round, self.outbox.latest_round)

    def body(self, asker: int, announced: Announced, round_index: int, kind: str) -> bytes:
        found = self.outbox.look(round_index, kind)
        if not isinstance(found, Published) or found.manifest.sha256 != announced.manifest.sha256:
            raise ChangedError
        return found.body.read_bytes()

    def receipts(self, asker: int, round_index: int) -> ReceiptDigests | None:
        assert self.witness is not None
        return ReceiptDigests(received=self.witness.digests(round_index), proofs=self.witness.proven())

    def receipt(self, asker: int, round_index: int, name: str, kind: str) -> bytes | None:
        assert self.witness is not None
        return self.witness.envelope(round_index, name, kind)

    def proof(self, asker: int, name: str) -> bytes | None:
        assert self.witness is not None
        return self.witness.proof(name)


def gone(first: int | None, latest: int | None) -> Answer:
    """The answer of somebody who says to be past a round."""
    return Answer(410, json.dumps({"first_round": first, "latest_round": latest}).encode())


class Network:
    """Who is where, which lines are cut until when, and how long a question takes."""

    def __init__(self, clock: VirtualClock, agreement: Agreement, rng: random.Random) -> None:
        self.clock, self.agreement, self._rng = clock, agreement, rng
        self.hosts: dict[int, Host] = {}
        self._cut_until: dict[frozenset[int], float] = {}

    def cut(self, one: int, other: int, *, until: float) -> None:
        """Let nothing through between the two until this moment."""
        pair = frozenset((one, other))
        self._cut_until[pair] = max(until, self._cut_until.get(pair, 0.0))

    def is_cut(self, one: int, other: int) -> bool:
        return self.clock.now() < self._cut_until.get(frozenset((one, other)), 0.0)

    def latency_s(self) -> float:
        return self._rng.choice((0.01, 0.05, 0.2, 1.0))


class SimulatedLine:
    """One member's line to another: what `MemberClient` is over TLS."""

    def __init__(self, network: Network, asker: int, number: int) -> None:
        self.number, self.member = number, network.agreement.members[number]
        self._network, self._asker = network, asker
        self._drops = 0

    member: Member

    def manifest(self, round_index: int, kind: str, *, wait_s: float) -> Answer:
        host = self._reach()
        answer = host.look(self._asker, round_index, kind)
        if answer is None:
            self._pause(wait_s, lambda: not host.is_up or host.look(self._asker, round_index, kind) is not None)
            self._check_up(host)
            answer = host.look(self._asker, round_index, kind)
        self._pause(self._network.latency_s())
        self._check_up(host)
        return answer or Answer(425, json.dumps({"first_round": None, "latest_round": None}).encode())

    def body(self, announced: Announced, *, round_index: int, kind: str, start: int) -> Iterator[bytes]:
        host = self._reach()
        content = host.body(self._asker, announced, round_index, kind)[start:]
        half = len(content) // 2
        yield content[:half]
        self._pause(self._network.latency_s())
        self._check_up(host)
        yield content[half:]
        if isinstance(host, SimulatedServer):
            found = host.outbox.look(round_index, kind)
            if isinstance(found, Published):
                host.on_delivered(self._network.agreement.members[self._asker].name, found)

    def rounds(self, answer: Answer) -> RoundRange:
        return RoundRange.model_validate_json(answer.body)

    def agreement(self) -> dict[str, Any]:
        return self._network.agreement.canonical()

    def receipts(self, round_index: int, *, total_s: float) -> ReceiptDigests | None:
        return self._reach().receipts(self._asker, round_index)

    def receipt(self, round_index: int, name: str, kind: str, *, total_s: float) -> bytes | None:
        return self._reach().receipt(self._asker, round_index, name, kind)

    def proof(self, name: str, *, total_s: float) -> bytes | None:
        return self._reach().proof(self._asker, name)

    def drop(self) -> None:
        self._drops += 1

    def close(self) -> None:
        """Nothing is held."""

    def _reach(self) -> Host:
        host = self._network.hosts.get(self.number)
        if self._network.is_cut(self._asker, self.number):
            self._pause(CONNECT_S)
            raise httpx.ConnectTimeout("cut")
        self._pause(self._network.latency_s())
        if host is None or not host.is_up:
            raise httpx.ConnectError("nobody is there")
        return host

    def _check_up(self, host: Host) -> None:
        is_same = self._network.hosts.get(self.number) is host
        if not is_same or not host.is_up or self._network.is_cut(self._asker, self.number):
            raise httpx.ReadError("the line has ended")

    def _pause(self, seconds: float, ready: Callable[[], bool] | None = None) -> None:
        before = self._drops
        self._network.clock.wait(seconds, lambda: self._drops != before or (ready is not None and ready()))
        if self._drops != before:
            raise httpx.ReadError("dropped")


class SimulatedStore:
    """A store in memory that takes its time, and is away now and then."""

    shown = "memory"

    def __init__(self, clock: VirtualClock, rng: random.Random) -> None:
        self._clock, self._rng = clock, rng
        self.objects: dict[str, bytes] = {}
        self.away_until = 0.0

    def read(self, path: str, *, most: int) -> bytes | None:
        self._ask()
        content = self.objects.get(path)
        return None if content is None else content[:most]

    def size(self, path: str) -> int | None:
        self._ask()
        return len(self.objects[path]) if path in self.objects else None

    def chunks(self, path: str, *, start: int = 0, stop: int) -> Iterator[bytes]:
        self._ask()
        if path not in self.objects:
            raise FileNotFoundError(path)
        content = self.objects[path][start:stop]
        half = len(content) // 2
        for piece in (content[:half], content[half:]):
            self._ask()
            yield piece

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        content = b"".join(bytes(chunk) for chunk in chunks)
        self._ask()
        self.objects[path] = content

    def names(self, path: str) -> list[str]:
        self._ask()
        inside = [one.removeprefix(f"{path}/") for one in self.objects if one.startswith(f"{path}/")]
        return sorted({name.partition("/")[0] for name in inside})

    def remove(self, path: str) -> None:
        self._ask()
        for name in [one for one in self.objects if one == path or one.startswith(f"{path}/")]:
            del self.objects[name]

    def close(self) -> None:
        """Nothing is held."""

    def _ask(self) -> None:
        self._clock.sleep(self._rng.choice((0.005, 0.02, 0.1)))
        if self._clock.now() < self.away_until:
            raise StoreError("memory: away")
