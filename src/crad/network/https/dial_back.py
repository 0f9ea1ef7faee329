"""Whether a member that asks can be reached from here: one short hello to the address that the agreement has for it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing, suppress

import httpx

from crad.errors import SnapshotError
from crad.network.agreement import Agreement
from crad.network.https.client import MAX_REASON, MemberClient, Reached, why
from crad.network.identity import Identity

TRY_S = 5.0  # for each step of a try
TOTAL_S = 2 * TRY_S  # for all of them
TRIES = 4  # at once, for all members together


class DialBack:
    """Tries members, one try at a time for each: nobody can make this machine dial much, nor anywhere else."""

    def __init__(self, agreement: Agreement, identity: Identity, *, proxy: str | None = None) -> None:
        self._agreement, self._identity, self._proxy = agreement, identity, proxy
        self._lock = threading.Lock()
        self._trying: set[str] = set()

    def begin(self, name: str) -> bool:
        """Return whether a try may begin now; `reach` must follow if so."""
        with self._lock:
            if name in self._trying or len(self._trying) >= TRIES:
                return False
            self._trying.add(name)
            return True

    async def reached(self, name: str) -> Reached:
        """Say hello to the member, after `begin`, without holding up the loop: no answer takes longer than TOTAL_S.

        In a daemon thread and not in the loop's pool: neither a server that stops nor a process that ends waits for it.
        """
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Reached] = loop.create_future()

        def tell(outcome: Reached) -> None:
            if not told.done():
                told.set_result(outcome)

        def work() -> None:
            outcome = self.reach(name)
            with suppress(RuntimeError):  # the loop has ended meanwhile, and with it the one who asked
                loop.call_soon_threadsafe(tell, outcome)

        threading.Thread(target=work, name="crad-try-back", daemon=True).start()
        try:
            return await asyncio.wait_for(told, TOTAL_S + 1)
        except TimeoutError:
            address = self._agreement.member(name).address or ""
            return Reached(is_reached=False, address=address, reason=f"it has not answered in full after {TOTAL_S:g} s")

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
                client.hello(timeout_s=TRY_S, total_s=TOTAL_S)
            except httpx.TransportError as error:
                return Reached(is_reached=False, address=address, reason=why(error)[:MAX_REASON])
            except SnapshotError as error:
                return Reached(is_reached=False, address=address, reason=str(error)[:MAX_REASON])
        return Reached(is_reached=True, address=address)
