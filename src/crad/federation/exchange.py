"""How messages reach the others: all that the rounds know of a simulation or a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from crad.federation.message import Message

KEPT_ROUNDS = 2  # of messages; a slow reader may still want the last but one


class OvertakenError(Exception):
    """The others have proved to be at a later round: this one is left out, and `latest` says where they are."""


@dataclass
class ByteCounter:
    """Bytes that really went from peer to peer, by peer."""

    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    received: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    between: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))  # sender, receiver

    def count(self, *, sender: int, receiver: int, payload_bytes: int) -> None:
        """Note that one message went from the sender to the receiver."""
        self.sent[sender] += payload_bytes
        self.received[receiver] += payload_bytes
        self.between[sender, receiver] += payload_bytes


class Exchange(Protocol):
    """Publish for everybody, collect from some; messages are bytes."""

    @property
    def traffic(self) -> ByteCounter:
        """Return what went from whom to whom since the exchange was made."""
        ...

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        """Make a message of this round available to the other peers."""
        ...

    def collect(
        self,
        round_index: int,
        *,
        receiver: int,
        peers: Iterable[int],
        kind: str,
        deadline_s: float | None = None,
        quorum: int | None = None,
    ) -> tuple[dict[int, Message], list[int]]:
        """Return the messages of this round by sender, and the peers whose message did not come in time.

        OvertakenError where the others are past this round; in a simulation nobody ever is.
        """
        ...

    def latest(self) -> int | None:
        """Return the newest round that the others have proved to be at, None before the first."""
        ...


class MemoryExchange:
    """Everybody in one process. Whatever was published is there at once, so deadlines never pass."""

    def __init__(self) -> None:
        self.traffic = ByteCounter()
        self._rounds: dict[int, dict[tuple[int, str], Message]] = {}

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        """Make a message of this round available to the other peers."""
        self._rounds.setdefault(round_index, {})[sender, kind] = message
        for old in [index for index in self._rounds if index <= round_index - KEPT_ROUNDS]:
            del self._rounds[old]

    def collect(
        self,
        round_index: int,
        *,
        receiver: int,
        peers: Iterable[int],
        kind: str,
        deadline_s: float | None = None,
        quorum: int | None = None,
    ) -> tuple[dict[int, Message], list[int]]:
        """Return the messages of this round by sender, and the peers who published none; count the bytes."""
        published = self._rounds.get(round_index, {})
        got: dict[int, Message] = {}
        missing: list[int] = []
        for sender in peers:
            message = published.get((sender, kind))
            if message is None:
                missing.append(sender)
                continue
            got[sender] = message
            self.traffic.count(sender=sender, receiver=receiver, payload_bytes=message.payload_bytes)
        return got, missing

    def latest(self) -> int | None:
        """Return the newest round that anybody has published, None before the first."""
        return max(self._rounds, default=None)
