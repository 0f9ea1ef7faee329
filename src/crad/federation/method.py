"""A method is a list of phases, each a publish and a learn. Baselines share the loop and differ only here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crad.aggregation import Rule
from crad.federation.message import Message
from crad.federation.peer import Member, Peer
from crad.federation.teachers import TeacherShelf
from crad.federation.world import World


@dataclass(frozen=True)
class RoundContext:
    """What a phase knows of the round beside the peer itself."""

    round_index: int
    shelf: TeacherShelf

    def purpose(self, peer: Peer, *words: str | int) -> tuple[str | int, ...]:
        """The words that name a random stream of this peer in this round."""
        return ("peer", peer.index, "round", self.round_index, *words)


@dataclass(frozen=True)
class Learned:
    """What a peer reports of one learning phase: mean losses, and the weight mass it gave each teacher per class."""

    losses: dict[str, float] = field(default_factory=dict)
    trust: dict[int, list[float]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """Everybody publishes (or nobody does), then everybody learns from what was published.

    Between the two a peer is only its model's state and momentum: what `publish` changes, or either keeps elsewhere on
    the peer, is gone. They may run in another process.
    """

    kind: str
    learn: Callable[[Peer, Mapping[int, Message], RoundContext], Learned]
    publish: Callable[[Peer, RoundContext], Message] | None = None


def one_member_per_client(world: World) -> list[Member]:
    """The usual roster: client i is peer i with its own shard and architecture."""
    return [Member(i, clients=(i,), architecture=world.architecture_of(i)) for i in range(world.experiment.clients)]


@dataclass(frozen=True)
class Method:
    """A name, its phases, and who is on the roster."""

    name: str
    phases: tuple[Phase, ...]
    roster: Callable[[World], list[Member]] = one_member_per_client
    rule: Rule | None = None  # how it combines teachers, where it does; what `crad explain` traces
