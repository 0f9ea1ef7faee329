"""The exchange between real peers: everybody serves its own snapshots, everybody fetches the others'.

A round needs no coordinator. It goes on when all others have come, or when the deadline has passed and enough have.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from crad.errors import ExchangeError
from crad.federation.message import Message
from crad.network.agreement import Agreement
from crad.network.clock import Worker
from crad.network.equivocation.witness import Witness
from crad.network.https.client import MemberClient
from crad.network.https.endpoints import Delivered
from crad.network.https.member_fetch import FetchClient, FetchOutcome, FetchRequest, MemberFetch
from crad.network.https.outbox import Outbox, Published
from crad.network.identity import Identity
from crad.network.member_exchange import ExchangePolicy, MemberExchange
from crad.network.round_deadline import PRESENT, RoundDeadline, Verdict, count_present

ASK_AGAIN_S = 60.0  # those whose message was refused, where without them the round cannot go on
SHOW_AGAIN_S = 1.0  # those who say to be past this round and have not shown it yet
LEAVE_S = 2.0  # for a fetch that is no longer wanted to end

FetchOutcomes = dict[int, FetchOutcome]


class Server(Protocol):
    """Where we are asked: a `SnapshotServer`, or one in memory where a whole federation is simulated."""

    outbox: Outbox
    on_delivered: Delivered
    witness: Witness | None

    def announce(self) -> None:
        """Say that something was published: those who wait for it are answered now."""
        ...


@dataclass(frozen=True)
class RunningFetch:
    """A fetch under way."""

    fetch: MemberFetch
    worker: Worker


class HttpsExchange(MemberExchange):
    """One member's end of the exchange. `server` gives out what it publishes."""

    def __init__(
        self,
        agreement: Agreement,
        identity: Identity,
        folder: Path,
        server: Server,
        *,
        own: int,
        proxy: str | None = None,
        terms: ExchangePolicy | None = None,
        connect: Callable[[int], FetchClient] | None = None,
    ) -> None:
        super().__init__(agreement, identity, folder, own=own, terms=terms)
        self._server = server
        for other in self._others:  # all keys are there from the start: the server's thread only adds to them
            self.ledger.count(sender=own, receiver=other, payload_bytes=0)
            self.ledger.count(sender=other, receiver=own, payload_bytes=0)
        dial = connect or (lambda other: MemberClient(other, identity=identity, agreement=agreement, proxy=proxy))
        self._clients = {other: dial(other) for other in self._others}
        self._behind: tuple[FetchRequest, dict[int, RunningFetch]] | None = (
            None  # fetches from those whom the round did not wait for
        )
        self._workers: dict[int, Worker] = {}  # who fetches from whom, or did last
        server.on_delivered, server.witness = self._count_sent, self.witness

    def begin(self, round_index: int) -> None:
        """Start, or start again, at this round: nobody need wait for an older one of ours."""
        self._server.outbox.begin(round_index)
        self._server.announce()

    def readers_to_come(self) -> list[str]:
        """Return who is not away and has not fetched anything of our newest round, also not before a restart."""
        newest = self._server.outbox.latest_round or 0
        gone = self.attendance.away(newest)
        have = self._server.outbox.readers(newest)
        waited = [number for number in self._others if number not in gone and not self._is_left_out(number)]
        return [self._name(number) for number in waited if self._name(number) not in have]

    def close(self) -> None:
        """Let go of all connections to others; the server is its owner's to stop."""
        self._settle_those_behind()
        for client in self._clients.values():
            client.drop()
            client.close()

    def _published_before(self, round_index: int, kind: str) -> bytes | None:
        found = self._server.outbox.look(round_index, kind)
        return found.envelope if isinstance(found, Published) else None

    def _send(self, round_index: int, kind: str, message: Message, envelope: bytes) -> None:
        self._server.outbox.publish(round_index, kind, envelope=envelope, message=message)
        self._server.announce()

    def _gather(
        self, round_index: int, kind: str, wanted: Sequence[int], deadline: RoundDeadline
    ) -> dict[int, Message]:
        self._settle_those_behind()
        want = FetchRequest(
            round_index,
            kind,
            self._inbox,
            self.witness,
            on_announced=self._note_announced,
            stop=self._clock.signal(),
            endings=self._clock.mailbox(),
        )
        endings = self._fetch_all(wanted, want, deadline)
        self._note_attendance(round_index, _verdicts(endings), wanted)
        for number in wanted:
            ending = endings.get(number)
            if ending is not None and ending.verdict not in ("came", "refused"):
                self._notice(f"round {round_index} goes on without {self._name(number)}: {ending.reason}")
        return {number: one.message for number, one in endings.items() if one.verdict == "came" and one.message}

    def _fetch_all(self, wanted: Sequence[int], want: FetchRequest, deadline: RoundDeadline) -> FetchOutcomes:
        """Fetch from all at once until the round can go on; everybody's ending, also of those who are too late."""
        endings: FetchOutcomes = {}
        away = self.attendance.away(want.round_index) & set(wanted)
        # Who is away is asked too, and goes on being asked while we learn: by delivering it comes back.
        behind = replace(want, stop=self._clock.signal())
        wants = {number: behind if number in away else want for number in wanted}
        running = {number: self._start(number, wants[number]) for number in wanted}
        try:
            while not deadline.is_over(
                _verdicts(endings), wanted=wanted, away=self._not_waited_for(want.round_index, wanted)
            ):
                self._check_hope(want, deadline, endings)
                if all(number in endings for number in wanted if number not in away):
                    running |= self._ask_again(wants, endings)
                try:
                    number, ending = want.endings.get(timeout=deadline.next_look_s())
                except queue.Empty:
                    continue
                endings[number] = self._note(number, ending)
                self._check_overtaken(want.round_index)
        finally:
            self._behind = (behind, {number: running[number] for number in away})
            self._leave([one for number, one in running.items() if number not in away], want, endings)
        for number in wanted:
            if number not in endings and number not in away:
                endings[number] = self._note(number, FetchOutcome("late", "it did not answer in time"))
        return endings

    def _ask_again(self, wants: Mapping[int, FetchRequest], endings: FetchOutcomes) -> dict[int, RunningFetch]:
        """Ask those again whose answer was none, where nobody is left to wait for and too few are there."""
        again = {}
        for number in [number for number, ending in endings.items() if ending.verdict not in PRESENT]:
            after_s = SHOW_AGAIN_S if endings.pop(number).verdict == "gone" else ASK_AGAIN_S
            again[number] = self._start(number, wants[number], after_s=after_s)
        return again

    def _start(self, number: int, want: FetchRequest, *, after_s: float = 0.0) -> RunningFetch:
        client = self._clients[number]
        before = self._workers.get(number)
        fetch = MemberFetch(client, want, agreement=self._agreement, clock=self._clock, after_s=after_s, before=before)
        self._workers[number] = self._clock.start(fetch.run, name=f"crad-fetch-{client.member.name}")
        return RunningFetch(fetch, self._workers[number])

    def _note(self, number: int, ending: FetchOutcome) -> FetchOutcome:
        if ending.error is not None:
            raise ending.error
        if ending.verdict in PRESENT:
            self.attendance.note_delivered(number, ending.round_index)
        if ending.verdict == "refused":
            self._refuse(self._name(number), ending.reason)
        return ending

    def _check_hope(self, want: FetchRequest, deadline: RoundDeadline, endings: Mapping[int, FetchOutcome]) -> None:
        there = count_present(_verdicts(endings))
        if there >= deadline.quorum:
            return
        text = f"round {want.round_index} has {there} of the {deadline.quorum} others that it needs"
        if deadline.expired:
            raise ExchangeError(f"{text} after {deadline.give_up_s:g} s: join again when they are back")
        if deadline.is_time_for_a_word():
            self._notice(f"{text}: waiting for more")

    def _leave(self, running: Sequence[RunningFetch], want: FetchRequest, endings: FetchOutcomes) -> None:
        """Stop those who are still at it, and take what came in the last moment."""
        want.stop.set()
        alive = [one for one in running if one.worker.is_alive()]
        for one in alive:
            one.fetch.client.drop()
        until = self._clock.now() + LEAVE_S
        for one in alive:
            one.worker.join(max(0.0, until - self._clock.now()))
        for number, ending in _arrived(want):
            if ending.verdict != "fault":
                endings[number] = self._note(number, ending)

    def _settle_those_behind(self) -> None:
        """End the fetches from those whom the last round did not wait for; who has delivered meanwhile is back."""
        if self._behind is None:
            return
        (want, running), self._behind = self._behind, None
        want.stop.set()
        for one in running.values():
            if one.worker.is_alive():
                one.fetch.client.drop()  # it ends by itself; nobody waits for it
        for number, ending in _arrived(want):
            if ending.verdict in PRESENT:
                self.attendance.note_delivered(number, ending.round_index)

    def _count_sent(self, name: str, published: Published) -> None:
        receiver = self._agreement.number(name)
        self._server.outbox.note_reader(published, name)
        self.ledger.count(sender=self._own, receiver=receiver, payload_bytes=published.payload_bytes)


def _verdicts(endings: Mapping[int, FetchOutcome]) -> dict[int, Verdict]:
    return {number: ending.verdict for number, ending in endings.items()}


def _arrived(want: FetchRequest) -> list[tuple[int, FetchOutcome]]:
    """Return what has ended and was not looked at."""
    arrived = []
    while not want.endings.empty():
        arrived.append(want.endings.get(timeout=0.0))
    return arrived
