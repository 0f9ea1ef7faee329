"""Where members come from: their agreed addresses as resolved, and those from which they have shown their key."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache

LEARNED = 4  # addresses remembered of one member, beside the agreed one
RESOLVED = 8  # addresses that one host name may stand for
REFRESH_S = 600.0

Resolve = Callable[[str], list[str]]


@lru_cache(maxsize=1024)
def group_address(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 that one IPv6 site has to itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def resolve_host(host: str) -> list[str]:
    """Return the addresses of a host name, none if it has none today. It may take long: never on a loop."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(address[0]) for *_, address in found]


class KnownAddresses:
    """Tells how many members belong to an address. Everything but the resolving happens on the server's loop."""

    def __init__(self, hosts: Mapping[str, str], *, resolve: Resolve = resolve_host) -> None:
        """Take the agreed host of every other member, by name."""
        self._resolve = resolve
        self._agreed: dict[str, set[str]] = {}
        self._learned: dict[str, OrderedDict[str, None]] = {}
        self._members: Counter[str] = Counter()
        self._names: dict[str, str] = {}  # hosts that have to be asked for, by member
        for member, host in hosts.items():
            if _is_literal(host):
                self._agreed[member] = {group_address(host)}
            else:
                self._names[member] = host
        self._count()

    def members_at(self, address: str) -> int:
        """Return how many members are known to come from this address."""
        return self._members[address]

    def learn(self, member: str, address: str) -> None:
        """Remember where a member has shown its key; the oldest of several is forgotten."""
        learned = self._learned.setdefault(member, OrderedDict())
        is_new = address not in learned
        learned[address] = None
        learned.move_to_end(address)
        if len(learned) > LEARNED:
            learned.popitem(last=False)
        if is_new:
            self._count()

    def refresh(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look the agreed names up again, in a thread that nobody waits for."""
        if self._names:
            threading.Thread(target=self._look_up, args=(loop,), name="crad-resolve", daemon=True).start()

    def _look_up(self, loop: asyncio.AbstractEventLoop) -> None:
        for member, host in self._names.items():
            found = {group_address(one) for one in self._resolve(host)[:RESOLVED]}
            try:
                loop.call_soon_threadsafe(self._found, member, found)
            except RuntimeError:
                return  # the server has ended

    def _found(self, member: str, addresses: set[str]) -> None:
        if addresses:  # a name that cannot be looked up now stands for what it stood for before
            self._agreed[member] = addresses
            self._count()

    def _count(self) -> None:
        self._members = Counter()
        for member in self._agreed.keys() | self._learned.keys():
            self._members.update(self._agreed.get(member, set()) | set(self._learned.get(member, ())))


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
