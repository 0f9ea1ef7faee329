"""Whether a member that asks can be reached from here: one short hello to the address that the agreement has for it."""

from __future__ import annotations

import threading
from contextlib import closing

import httpx

from crad.errors import SnapshotError
from crad.network.agreement import Agreement
from crad.network.client import MAX_REASON, MemberClient, Reached, why
from crad.network.identity import Identity

TRY_S = 5.0  # for each step of the try, and for all that follows the handshake
TRIES = 4  # at once, for all members together


class TryBack:
    """Tries members, one try at a time for each: nobody can make this machine dial much, nor anywhere else."""

    def __init__(self, agreement: Agreement, identity: Identity, *, proxy: str | None = None) -> None:
        self._agreement, self._identity, self._proxy = agreement, identity, proxy
        self._lock = threading.Lock()
        self._trying: set[str] = set()

    def begin(self, name: str) -> bool:
        """Whether a try may begin now; `reach` must follow if so."""
        with self._lock:
            if name in self._trying or len(self._trying) >= TRIES:
                return False
            self._trying.add(name)
            return True

    def reach(self, name: str) -> Reached:
        """Say hello to the member at its agreed address, after `begin`."""
        try:
            return self._reach(name)
        finally:
            with self._lock:
                self._trying.discard(name)

    def _reach(self, name: str) -> Reached:
        address = self._agreement.member(name).address
        if address is None:
            return Reached(is_reached=False, address="", reason="the agreement has no address for it")
        number = self._agreement.number(name)
        client = MemberClient(number, identity=self._identity, agreement=self._agreement, proxy=self._proxy)
        with closing(client):
            try:
                client.hello(timeout_s=TRY_S, total_s=2 * TRY_S)
            except httpx.TransportError as error:
                return Reached(is_reached=False, address=address, reason=why(error)[:MAX_REASON])
            except SnapshotError as error:
                return Reached(is_reached=False, address=address, reason=str(error)[:MAX_REASON])
        return Reached(is_reached=True, address=address)
