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
from crad.network.round_deadline import PRESENT, FetchStatus, RoundDeadline, count_present

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
        policy: ExchangePolicy | None = None,
        connect: Callable[[int], FetchClient] | None = None,
    ) -> None:
        super().__init__(agreement, identity, folder, own=own, policy=policy)
        self._server = server
        for other in self._others:  # all keys are there from the start: the server's thread only adds to them
            self.traffic.count(sender=own, receiver=other, payload_bytes=0)
            self.traffic.count(sender=other, receiver=own, payload_bytes=0)
        dial = connect or (lambda other: MemberClient(other, identity=identity, agreement=agreement, proxy=proxy))
        self._clients = {other: dial(other) for other in self._others}
        self._background: tuple[FetchRequest, dict[int, RunningFetch]] | None = (
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

    def stop_receiving(self) -> None:
        """End the fetches from those whom the last round did not wait for, and wait until none of them writes."""
        self._stop_background()
        until = self._clock.now() + LEAVE_S
        for worker in self._workers.values():
            worker.join(max(0.0, until - self._clock.now()))

    def close(self) -> None:
        """Let go of all connections to others; the server is its owner's to stop."""
        self._stop_background()
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
        self._stop_background()
        request = FetchRequest(
            round_index,
            kind,
            self._inbox,
            self.witness,
            on_announced=self._note_announced,
            stop=self._clock.signal(),
            outcomes=self._clock.mailbox(),
        )
        outcomes = self._fetch_all(wanted, request, deadline)
        self._note_attendance(round_index, _statuses(outcomes), wanted)
        for number in wanted:
            outcome = outcomes.get(number)
            if outcome is not None and outcome.status not in ("came", "refused"):
                self._notice(f"round {round_index} goes on without {self._name(number)}: {outcome.reason}")
        return {number: one.message for number, one in outcomes.items() if one.status == "came" and one.message}

    def _fetch_all(self, wanted: Sequence[int], request: FetchRequest, deadline: RoundDeadline) -> FetchOutcomes:
        """Fetch from all at once until the round can go on; everybody's outcome, also of those who are too late."""
        outcomes: FetchOutcomes = {}
        away = self.attendance.away(request.round_index) & set(wanted)
        # Who is away is asked too, and goes on being asked while we learn: by delivering it comes back.
        behind = replace(request, stop=self._clock.signal())
        requests = {number: behind if number in away else request for number in wanted}
        running = {number: self._start(number, requests[number]) for number in wanted}
        try:
            while not deadline.is_over(
                _statuses(outcomes), wanted=wanted, away=self._not_waited_for(request.round_index, wanted)
            ):
                self._check_quorum_reachable(request, deadline, outcomes)
                if all(number in outcomes for number in wanted if number not in away):
                    running |= self._ask_again(requests, outcomes)
                try:
                    number, outcome = request.outcomes.get(timeout=deadline.next_look_s())
                except queue.Empty:
                    continue
                outcomes[number] = self._handle_outcome(number, outcome)
                self._check_overtaken(request.round_index)
        finally:
            self._background = (behind, {number: running[number] for number in away})
            self._leave([one for number, one in running.items() if number not in away], request, outcomes)
        for number in wanted:
            if number not in outcomes and number not in away:
                outcomes[number] = self._handle_outcome(number, FetchOutcome("late", "it did not answer in time"))
        return outcomes

    def _ask_again(self, requests: Mapping[int, FetchRequest], outcomes: FetchOutcomes) -> dict[int, RunningFetch]:
        """Ask those again whose answer was none, where nobody is left to wait for and too few are there."""
        again = {}
        for number in [number for number, outcome in outcomes.items() if outcome.status not in PRESENT]:
            after_s = SHOW_AGAIN_S if outcomes.pop(number).status == "gone" else ASK_AGAIN_S
            again[number] = self._start(number, requests[number], after_s=after_s)
        return again

    def _start(self, number: int, request: FetchRequest, *, after_s: float = 0.0) -> RunningFetch:
        client = self._clients[number]
        before = self._workers.get(number)
        fetch = MemberFetch(
            client, request, agreement=self._agreement, clock=self._clock, after_s=after_s, before=before
        )
        self._workers[number] = self._clock.start(fetch.run, name=f"crad-fetch-{client.member.name}")
        return RunningFetch(fetch, self._workers[number])

    def _handle_outcome(self, number: int, outcome: FetchOutcome) -> FetchOutcome:
        if outcome.error is not None:
            raise outcome.error
        if outcome.status in PRESENT:
            self.attendance.note_delivered(number, outcome.round_index)
        if outcome.status == "refused":
            self._refuse(self._name(number), outcome.reason)
        return outcome

    def _check_quorum_reachable(
        self, request: FetchRequest, deadline: RoundDeadline, outcomes: Mapping[int, FetchOutcome]
    ) -> None:
        there = count_present(_statuses(outcomes))
        if there >= deadline.quorum:
            return
        text = f"round {request.round_index} has {there} of the {deadline.quorum} others that it needs"
        if deadline.expired:
            raise ExchangeError(f"{text} after {deadline.give_up_s:g} s: join again when they are back")
        if deadline.is_time_for_a_word():
            self._notice(f"{text}: waiting for more")

    def _leave(self, running: Sequence[RunningFetch], request: FetchRequest, outcomes: FetchOutcomes) -> None:
        """Stop those who are still at it, and take what came in the last moment."""
        request.stop.set()
        alive = [one for one in running if one.worker.is_alive()]
        for one in alive:
            one.fetch.client.drop()
        until = self._clock.now() + LEAVE_S
        for one in alive:
            one.worker.join(max(0.0, until - self._clock.now()))
        for number, outcome in _arrived(request):
            if outcome.status != "fault":
                outcomes[number] = self._handle_outcome(number, outcome)

    def _stop_background(self) -> None:
        """End the fetches from those whom the last round did not wait for; who has delivered meanwhile is back."""
        if self._background is None:
            return
        (request, running), self._background = self._background, None
        request.stop.set()
        for one in running.values():
            if one.worker.is_alive():
                one.fetch.client.drop()  # it ends by itself; nobody waits for it
        for number, outcome in _arrived(request):
            if outcome.status in PRESENT:
                self.attendance.note_delivered(number, outcome.round_index)

    def _count_sent(self, name: str, published: Published) -> None:
        receiver = self._agreement.number(name)
        self._server.outbox.note_reader(published, name)
        self.traffic.count(sender=self._own, receiver=receiver, payload_bytes=published.payload_bytes)


def _statuses(outcomes: Mapping[int, FetchOutcome]) -> dict[int, FetchStatus]:
    return {number: outcome.status for number, outcome in outcomes.items()}


def _arrived(request: FetchRequest) -> list[tuple[int, FetchOutcome]]:
    """Return what has ended and was not looked at."""
    arrived = []
    while not request.outcomes.empty():
        arrived.append(request.outcomes.get(timeout=0.0))
    return arrived
