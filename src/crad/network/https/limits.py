"""What one member, and what anybody, may ask of a member's server."""

from __future__ import annotations

import resource
from dataclasses import dataclass

MOST_CONNECTIONS = 1024
LEAST_CONNECTIONS = 16
DESCRIPTORS_FOR_FILES = 64


@dataclass(frozen=True)
class Limits:
    """What one member may ask of another's server, and what strangers may."""

    connections: int = 8  # at once, per member
    handshakes: int = 64  # begun and not finished, by all unknown addresses together
    handshake_s: float = 10.0
    requests_per_s: float = 20.0  # per member, in the long run
    burst: int = 100
    request_s: float = 20.0  # for a request to arrive in full
    probe_bytes_per_minute: int = 8 << 20  # zeros to measure the line, per member: eight doctors
    reaches_per_minute: int = 6  # dial-backs, per member
    send_s: float = 60.0  # for a megabyte to be taken: slower readers are dropped
    header_bytes: int = 16 * 1024
    stranger_handshakes: int = 16  # begun and not finished, by one unknown address
    known_handshakes: int = 16  # the same for each member known at an address
    connects_per_s: float = 10.0  # new connections of one unknown address, in the long run
    connect_burst: int = 50
    known_connects_per_s: float = 200.0  # the same for each member known at an address
    known_connect_burst: int = 1000
    known_handshakes_per_s: float = 50.0  # begun, for each member known at an address: a millisecond of CPU each
    known_handshake_burst: int = 100
    total: int | None = None  # connections of everybody together; None: what the descriptors allow


@dataclass(frozen=True)
class ConnectionShares:
    """How the connections that a process can have are divided; nobody can use up another one's part."""

    members: int  # of all members together
    per_member: int
    strangers: int  # unknown addresses that are silent, and as many in their handshake
    neighbours: int  # the same for addresses from which members come

    @property
    def total(self) -> int:
        """Return how many connections can be open at once."""
        return self.members + 2 * (self.strangers + self.neighbours)


def divide(limits: Limits, *, members: int) -> ConnectionShares:
    """Divide what the process can have open among that many members and the rest of the world."""
    total = max(LEAST_CONNECTIONS, limits.total or _allowed())
    strangers, neighbours = max(1, min(limits.handshakes, total // 8)), total // 8
    inside = total - 2 * (strangers + neighbours)
    share = max(1, min(limits.connections, inside // max(1, members)))
    return ConnectionShares(inside, share, strangers, neighbours)


def _allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, soft - max(DESCRIPTORS_FOR_FILES, soft // 4))
