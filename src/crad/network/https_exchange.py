"""The exchange between real peers: everybody serves its own snapshots, everybody fetches the others'.

A round needs no coordinator. It goes on when all others have come, or when the deadline has passed and enough have.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from crad.errors import ExchangeError, SnapshotError
from crad.federation.message import Message
from crad.network.agreement import Agreement
from crad.network.arrivals import common_round
from crad.network.client import Hello, MemberClient
from crad.network.envelope import seal
from crad.network.fetch import Ending, Fetch, Want
from crad.network.gate import Notice
from crad.network.identity import Identity
from crad.network.member_exchange import MemberExchange, Refused
from crad.network.outbox import Published
from crad.network.patience import Patience
from crad.network.server import SnapshotServer

HELLO_S = 3.0
ASK_AGAIN_S = 60.0  # those whose message was refused, where without them the round cannot go on
LEAVE_S = 2.0  # for a fetch that is no longer wanted to end


class HttpsExchange(MemberExchange):
    """One member's end of the exchange. `server` gives out what it publishes."""

    def __init__(
        self,
        agreement: Agreement,
        identity: Identity,
        folder: Path,
        server: SnapshotServer,
        *,
        own: int,
        proxy: str | None = None,
        on_refused: Refused = lambda name, reason: None,
        notice: Notice = lambda text: None,
    ) -> None:
        super().__init__(agreement, identity, folder, own=own, on_refused=on_refused, notice=notice)
        self._server = server
        others = [number for number in range(len(agreement.members)) if number != own]
        for other in others:  # all keys are there from the start: the server's thread only adds to them
            self.ledger.count(sender=own, receiver=other, payload_bytes=0)
            self.ledger.count(sender=other, receiver=own, payload_bytes=0)
        self._clients = {
            other: MemberClient(other, identity=identity, agreement=agreement, proxy=proxy) for other in others
        }
        server.on_delivered = self._count_sent

    def begin(self, round_index: int) -> None:
        """This member starts, or starts again, at this round: nobody need wait for an older one of it."""
        self._server.outbox.begin(round_index)
        self._server.announce()

    def latest(self) -> int | None:
        """The round that the others have reached (`common_round`), None before the first or if nobody answers."""
        return common_round(self._claims(), agreement=self._agreement)

    def readers_to_come(self) -> list[str]:
        """The others that have not fetched anything of our newest round, also not before this process began."""
        have = self._server.outbox.readers(self._server.outbox.latest_round or 0)
        return [client.member.name for client in self._clients.values() if client.member.name not in have]

    def close(self) -> None:
        """Let go of all connections to others; the server is its owner's to stop."""
        for client in self._clients.values():
            client.drop()
            client.close()

    def _send(self, round_index: int, kind: str, message: Message) -> None:
        envelope = seal(message.manifest, kind=kind, identity=self._identity, agreement=self._agreement)
        self._server.outbox.publish(round_index, kind, envelope=envelope, message=message)
        self._server.announce()

    def _gather(self, round_index: int, kind: str, wanted: Sequence[int], patience: Patience) -> dict[int, Message]:
        endings = self._fetch_all(wanted, Want(round_index, kind, self._inbox), patience)
        for number, ending in endings.items():
            if ending.verdict not in ("came", "refused"):
                self._notice(f"round {round_index} goes on without {self._name(number)}: {ending.reason}")
        return {number: ending.message for number, ending in endings.items() if ending.message is not None}

    def _fetch_all(self, wanted: Sequence[int], want: Want, patience: Patience) -> dict[int, Ending]:
        """Fetch from all at once until the round can go on; everybody's ending, also of those who are too late."""
        endings: dict[int, Ending] = {}
        fetches = {number: self._start(number, want) for number in wanted}
        try:
            while not patience.is_over([one.verdict for one in endings.values()], num_wanted=len(wanted)):
                if len(endings) == len(wanted):  # below the quorum, and nobody left to wait for: ask them again
                    for number in [number for number, ending in endings.items() if ending.verdict != "came"]:
                        del endings[number]
                        fetches[number] = self._start(number, want, after_s=ASK_AGAIN_S)
                try:
                    number, ending = want.endings.get(timeout=patience.next_look_s())
                except queue.Empty:
                    self._say_who_is_missing(want, patience, endings)
                    continue
                endings[number] = self._note(number, ending)
        finally:
            self._leave(fetches, want, endings)
        for number in wanted:
            if number not in endings:
                endings[number] = self._note(number, Ending("late", "it did not answer in time"))
        return endings

    def _start(self, number: int, want: Want, *, after_s: float = 0.0) -> Fetch:
        fetch = Fetch(self._clients[number], want, agreement=self._agreement, after_s=after_s)
        fetch.start()
        return fetch

    def _note(self, number: int, ending: Ending) -> Ending:
        if ending.error is not None:
            raise ending.error
        if ending.verdict == "refused":
            self._refuse(self._name(number), ending.reason)
        return ending

    def _say_who_is_missing(self, want: Want, patience: Patience, endings: Mapping[int, Ending]) -> None:
        if not patience.is_past_deadline:
            return
        came = sum(ending.verdict == "came" for ending in endings.values())
        if came >= patience.quorum:
            return  # the deadline has passed this moment, and the round goes on
        text = f"round {want.round_index} has {came} of the {patience.quorum} others that it needs"
        if patience.is_past_hope:
            raise ExchangeError(f"{text} after {patience.give_up_s:g} s: join again when they are back")
        self._notice(f"{text}: waiting for more")

    def _leave(self, fetches: Mapping[int, Fetch], want: Want, endings: dict[int, Ending]) -> None:
        """Stop those who are still at it, and take what came in the last moment."""
        want.stop.set()
        running = [fetch for fetch in fetches.values() if fetch.is_alive()]
        for fetch in running:
            fetch.client.drop()
        until = time.monotonic() + LEAVE_S
        for fetch in running:
            fetch.join(max(0.0, until - time.monotonic()))
        while not want.endings.empty():
            number, ending = want.endings.get()
            if ending.verdict != "fault":
                endings[number] = self._note(number, ending)

    def _claims(self) -> list[int]:
        """The newest round of every other member that answers soon and has the same agreement."""
        clients = list(self._clients.values())
        if not clients:
            return []
        with ThreadPoolExecutor(len(clients)) as pool:
            hellos = pool.map(self._hello, clients)
        return [hello.latest_round for hello in hellos if hello is not None and hello.latest_round is not None]

    def _hello(self, client: MemberClient) -> Hello | None:
        try:
            hello = client.hello(timeout_s=HELLO_S)
        except (httpx.TransportError, SnapshotError):
            return None
        return hello if hello.federation == self._agreement.hash else None

    def _count_sent(self, name: str, published: Published) -> None:
        receiver = self._agreement.number(name)
        self._server.outbox.note_reader(published, name)
        self.ledger.count(sender=self._own, receiver=receiver, payload_bytes=published.payload_bytes)

    def _name(self, number: int) -> str:
        return self._agreement.members[number].name
