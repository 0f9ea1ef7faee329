"""Who learns from whom in a round: a function from the participants to routes, given to a `Phase`.

A topology of one's own (a random graph, a star) is one such function. A ring:

    def ring(participants):
        return {one: (participants.clients[place - 1],) for place, one in enumerate(participants.clients)}
"""

from __future__ import annotations

from dataclasses import dataclass

from crad.federation.context import RunContext
from crad.federation.peer import PeerSpec

Routes = dict[int, tuple[int, ...]]  # who learns in a phase, and from whom


@dataclass(frozen=True)
class RoundParticipants:
    """Who takes part in a round: the drawn clients, then the members that own no data."""

    context: RunContext
    members: tuple[PeerSpec, ...]
    round_index: int

    @property
    def clients(self) -> tuple[int, ...]:
        """Return the members with data, in order."""
        return tuple(member.index for member in self.members if member.clients)

    @property
    def helpers(self) -> tuple[int, ...]:
        """Return the members without data."""
        return tuple(member.index for member in self.members if not member.clients)


def all_to_all(participants: RoundParticipants) -> Routes:
    """Let every client learn from every other client."""
    return {one: tuple(other for other in participants.clients if other != one) for one in participants.clients}
