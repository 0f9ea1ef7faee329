"""Who may stay connected, decided without a socket: by address before a handshake has ended, by member afterwards.

A connection is *silent* until its first byte, *greeting* until its handshake has ended, then a member's. Addresses
from which members come have pools of their own for the first two, so that strangers compete with strangers alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from crad.network.https.addresses import KnownAddresses
from crad.network.https.limits import ConnectionShares, Limits
from crad.network.token_buckets import TokenBuckets

MOST_TIMES = 4  # what one member may do, for an address from which many come


@dataclass(frozen=True)
class Admission:
    """Whether a connection may stay, whose places were taken for it, and what to say about it (cause, line)."""

    is_in: bool
    dropped: tuple[int, ...] = ()
    said: tuple[str, str] | None = None


@dataclass(frozen=True)
class Evicted:
    """Which connection made room, of an address that held so many, in a pool of so many."""

    key: int
    address: str
    held: int
    total: int


class Pool:
    """Connections of nobody yet. A newcomer always gets in: the oldest of the address that holds most makes room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_address: dict[str, OrderedDict[int, None]] = {}
        self._addresses: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, key: int) -> bool:
        return key in self._addresses

    def add(self, key: int, address: str, *, share: int) -> Evicted | None:
        """Take one in; returns who had to make room."""
        own = self._by_address.get(address, ())
        gone = None
        if len(own) >= share:
            gone = self._drop_oldest(address)
        elif len(self) >= self._most:
            gone = self.shed()
        self._by_address.setdefault(address, OrderedDict())[key] = None
        self._addresses[key] = address
        return gone

    def remove(self, key: int) -> str:
        """Let one go; returns its address."""
        address = self._addresses.pop(key)
        keys = self._by_address[address]
        del keys[key]
        if not keys:
            del self._by_address[address]
        return address

    def address(self, key: int) -> str:
        """Return where one comes from."""
        return self._addresses[key]

    def renew(self, key: int) -> None:
        """Count one as the newest of its address."""
        self._by_address[self._addresses[key]].move_to_end(key)

    def shed(self) -> Evicted:
        """Drop the oldest of the address that holds most."""
        return self._drop_oldest(max(self._by_address, key=lambda one: len(self._by_address[one])))

    def _drop_oldest(self, address: str) -> Evicted:
        keys = self._by_address[address]
        gone = Evicted(next(iter(keys)), address, held=len(keys), total=len(self))
        self.remove(gone.key)
        return gone


class ConnectionLimiter:
    """Every connection's place. Keys are the caller's; whatever is `dropped` has no place any more."""

    def __init__(self, limits: Limits, shares: ConnectionShares, known: KnownAddresses) -> None:
        self._limits, self.shares, self._known = limits, shares, known
        # by whether the address is known
        self._silent = {False: Pool(shares.strangers), True: Pool(shares.neighbours)}
        self._greeting = {False: Pool(shares.strangers), True: Pool(shares.neighbours)}
        self._members: dict[
            str, OrderedDict[int, Callable[[], bool]]
        ] = {}  # whether each is busy, the latest used last
        self._arrivals = {False: TokenBuckets(), True: TokenBuckets()}
        self._greetings = TokenBuckets()

    def __len__(self) -> int:
        return self.unfinished + self.entered

    def __contains__(self, key: int) -> bool:
        """Return whether a connection has a place and is nobody's yet."""
        return any(key in pool for pool in self._pools())

    @property
    def unfinished(self) -> int:
        """Return how many connections are nobody's yet."""
        return sum(len(pool) for pool in self._pools())

    @property
    def entered(self) -> int:
        """Return how many connections members have."""
        return sum(len(lines) for lines in self._members.values())

    def held_by(self, member: str) -> int:
        """Return how many connections a member has."""
        return len(self._members.get(member, ()))

    def arrive(self, key: int, address: str, *, now: float) -> Admission:
        """Judge a new connection. An address that comes far too often is turned away before anything is kept."""
        members = self._known.members_at(address)
        if not self._may_arrive(address, members=members, now=now):
            return Admission(False, said=(f"too often, {members > 0}", f"{address} connects too often: turned away"))
        gone = self._silent[members > 0].add(key, address, share=self._share(members))
        return _made_room(gone, "connections without a word", is_known=members > 0)

    def greet(self, key: int, *, now: float) -> Admission | None:
        """Let a handshake begin, or None: this address has begun too many, ask again in a moment."""
        is_known = key in self._silent[True]
        if not is_known and key not in self._silent[False]:
            return Admission(False)
        address = self._silent[is_known].address(key)
        members = self._known.members_at(address)
        if is_known and not self._may_greet(address, members=members, now=now):
            self._silent[True].renew(key)  # it has spoken: those who have not go first
            return None
        self._silent[is_known].remove(key)
        gone = self._greeting[is_known].add(key, address, share=self._share(members))
        return _made_room(gone, "unfinished handshakes", is_known=is_known)

    def enter(self, key: int, member: str, *, is_busy: Callable[[], bool]) -> Admission:
        """Let a member in whose handshake has ended. Its oldest idle connection makes room for one too many."""
        pool = next((pool for pool in self._greeting.values() if key in pool), None)
        if pool is None:
            return Admission(False)  # dropped just now
        address = pool.remove(key)
        gone: tuple[int, ...] = ()
        if self.held_by(member) >= self.shares.per_member:
            gone = self._drop_idle(member)
            said = _too_many(member, self.shares.per_member, is_dropped=bool(gone))
        elif self.entered >= self.shares.members:
            gone, said = self._drop_idle_of_most(), ("members full", "too many connections of members: idle ones go")
        else:
            said = None
        if said is not None and not gone:
            return Admission(False, said=said)
        self._members.setdefault(member, OrderedDict())[key] = is_busy
        self._known.learn(member, address)
        return Admission(True, gone, said)

    def touch(self, key: int, member: str) -> None:
        """Note that a member's connection is used: now it is the last of its idle ones to go."""
        lines = self._members.get(member, OrderedDict())
        if key in lines:
            lines.move_to_end(key)

    def leave(self, key: int, member: str | None = None) -> None:
        """Free the place of a connection that has ended, whatever it was."""
        for pool in self._pools():
            if key in pool:
                pool.remove(key)
        if member is not None and member in self._members:
            self._members[member].pop(key, None)
            if not self._members[member]:
                del self._members[member]

    def shed(self, count: int) -> tuple[int, ...]:
        """Give up to that many places free where descriptors are short: strangers first, idle members last."""
        gone: list[int] = []
        while len(gone) < count:
            pool = next((pool for pool in self._pools() if len(pool)), None)
            if pool is None:
                break
            gone.append(pool.shed().key)
        return tuple(gone) or self._drop_idle_of_most()

    def _pools(self) -> tuple[Pool, ...]:
        return self._silent[False], self._greeting[False], self._silent[True], self._greeting[True]

    def _share(self, members: int) -> int:
        return self._limits.known_handshakes * members if members else self._limits.stranger_handshakes

    def _may_arrive(self, address: str, *, members: int, now: float) -> bool:
        limits, times = self._limits, min(members, MOST_TIMES)
        if members:
            rate, burst = limits.known_connects_per_s * times, limits.known_connect_burst * times
        else:
            rate, burst = limits.connects_per_s, limits.connect_burst
        return self._arrivals[members > 0].spend(address, rate=rate, burst=burst, now=now)

    def _may_greet(self, address: str, *, members: int, now: float) -> bool:
        times = min(max(1, members), MOST_TIMES)
        rate, burst = self._limits.known_handshakes_per_s * times, self._limits.known_handshake_burst * times
        return self._greetings.spend(address, rate=rate, burst=burst, now=now)

    def _drop_idle(self, member: str) -> tuple[int, ...]:
        lines = self._members[member]
        idle = next((key for key, is_busy in lines.items() if not is_busy()), None)
        if idle is None:
            return ()
        self.leave(idle, member)
        return (idle,)

    def _drop_idle_of_most(self) -> tuple[int, ...]:
        for member in sorted(self._members, key=self.held_by, reverse=True):
            if gone := self._drop_idle(member):
                return gone
        return ()


def _made_room(gone: Evicted | None, what: str, *, is_known: bool) -> Admission:
    if gone is None:
        return Admission(True)
    kind = "known" if is_known else "unknown"
    who = f"{gone.address} holds {gone.held}" if gone.held > 1 else f"{kind} addresses together hold {gone.total}"
    return Admission(True, (gone.key,), (f"{what} of {kind} addresses", f"{who} {what}: dropped, oldest first"))


def _too_many(member: str, most: int, *, is_dropped: bool) -> tuple[str, str]:
    if is_dropped:
        return f"too many of {member}", f"{member} opens more than {most} connections: its oldest idle one was closed"
    return f"all busy of {member}", f"{member} opens more than {most} connections and uses all: one more was refused"
