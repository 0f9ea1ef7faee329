"""Fetching one member's message of one round, beside all others: try, wait, go on where it was cut off.

A member that is past the round must show it: what counts is a message of a later round, delivered and checked like any
other. With it come the hashes of what that member received, which are compared with ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import httpx

from crad.errors import CradError, RunError, SnapshotError, printable
from crad.federation.message import Message
from crad.files import full_disk
from crad.network.agreement import Agreement, Member, differences
from crad.network.arrivals import Announced, RoundRange, check_announced
from crad.network.clock import Clock, Mailbox, Signal, Worker
from crad.network.envelope import StaleAgreementError
from crad.network.equivocation.witness import Witness
from crad.network.https.client import Answer, ChangedError, ReceiptDigests, is_disconnect, is_imposter, is_slow, why
from crad.network.inbox import Inbox, LateError
from crad.network.round_deadline import FetchStatus

WAIT_S = 20.0  # that the other end keeps a question open
PAUSE_S = 0.2  # after the first failure; doubled with each, up to the longest
LONGEST_PAUSE_S = 5.0
MAX_DISCONNECTS = 5  # in a row, without an answer or a new byte
MAX_SLOW = 3  # bodies cut off because they came too slowly
LOOK_S = 0.5
MAX_LINES = 5  # of differences in one message
RECEIPTS_S = 5.0  # for each question about what the member received


class FetchClient(Protocol):
    """How one member is asked: over TLS, or in memory where a whole federation is simulated."""

    number: int
    member: Member

    def manifest(self, round_index: int, kind: str, *, wait_s: float) -> Answer:
        """Return the signed envelope of a round, waited for at the other end."""
        ...

    def body(self, announced: Announced, *, round_index: int, kind: str, start: int) -> Iterator[bytes]:
        """Yield the announced body from this byte on."""
        ...

    def rounds(self, answer: Answer) -> RoundRange:
        """Return what an answer says about the member's rounds."""
        ...

    def agreement(self) -> dict[str, Any]:
        """Return what the member has agreed on."""
        ...

    def receipts(self, round_index: int, *, total_s: float) -> ReceiptDigests | None:
        """Return what the member says that it received."""
        ...

    def receipt(self, round_index: int, name: str, kind: str, *, total_s: float) -> bytes | None:
        """Return an envelope that the member received from another one."""
        ...

    def proof(self, name: str, *, total_s: float) -> bytes | None:
        """Return the member's proof against another one."""
        ...

    def drop(self) -> None:
        """End whatever is under way, from another thread."""
        ...

    def close(self) -> None:
        """Let go of all connections."""
        ...


@dataclass(frozen=True)
class FetchOutcome:
    """How a fetch ended, and why; `round_index` is that of the message, where one came."""

    status: FetchStatus
    reason: str = ""
    message: Message | None = None
    error: Exception | None = None
    round_index: int = 0


@dataclass(frozen=True)
class FetchRequest:
    """One round's message of one kind: where it is put, and how those who fetch it are told to stop."""

    round_index: int
    kind: str
    inbox: Inbox
    witness: Witness
    on_announced: Callable[[int, Announced, str], None]  # refuses what must not be fetched
    stop: Signal
    outcomes: Mailbox[tuple[int, FetchOutcome]]


class MemberFetch:
    """From one member. Ends by itself with a message or a refusal, and soon after `request.stop` in any case."""

    def __init__(
        self,
        client: FetchClient,
        request: FetchRequest,
        *,
        agreement: Agreement,
        clock: Clock,
        after_s: float = 0.0,
        before: Worker | None = None,
    ) -> None:
        self.client, self._request, self._agreement, self._after_s = client, request, agreement, after_s
        self._clock, self._before = clock, before
        self._disconnects = 0
        self._times_slow = 0
        self._pause_s = PAUSE_S
        self._last_failure = "it has not published in time"

    def run(self) -> None:
        """Fetch, and tell how it ended."""
        try:
            outcome = self._until_ended()
        except SnapshotError as error:
            outcome = FetchOutcome("refused", str(error))
        except OSError as error:
            outcome = FetchOutcome("fault", error=full_disk(self._request.inbox.folder, error))
        except CradError as error:
            outcome = FetchOutcome("fault", error=error)
        except Exception as error:  # nothing that comes from one member ends the run for all
            outcome = FetchOutcome(
                "refused", f"what it sends cannot be read ({type(error).__name__}: {printable(error)})"
            )
        if self._request.stop.is_set() and outcome.status == "fault" and not isinstance(outcome.error, CradError):
            outcome = self._late()  # a client closed under our hands
        self._request.outcomes.put((self.client.number, outcome))

    def _until_ended(self) -> FetchOutcome:
        while self._before is not None and self._before.is_alive() and not self._request.stop.is_set():
            self._before.join(LOOK_S)  # two at once would write into one file; it was told to stop and soon does
        self._request.stop.wait(self._after_s)
        while not self._request.stop.is_set():
            try:
                outcome = self._try_once()
            except LateError:
                break
            except ChangedError:
                self._rest("it publishes this round again")
                continue
            except httpx.TransportError as error:
                if self._request.stop.is_set():
                    break  # the connection was closed under our hands
                outcome = self._after_failure(error)
            if outcome is not None:
                return outcome
        return self._late()

    def _late(self) -> FetchOutcome:
        return FetchOutcome("late", self._last_failure)

    def _try_once(self) -> FetchOutcome | None:
        """Ask once and, if there is something to fetch, fetch it; None to ask again."""
        began = self._clock.now()
        answer = self.client.manifest(self._request.round_index, self._request.kind, wait_s=WAIT_S)
        if answer.status == 200:
            return self._take("came", answer, self._request.round_index)
        self._disconnects = 0
        if answer.status == 410:
            return self._fetch_later_one(self.client.rounds(answer))
        if answer.status == 425:
            self._pause_s = PAUSE_S
            # Whoever answers "not yet" at once, without waiting, is not asked without end.
            self._request.stop.wait(max(0.0, PAUSE_S - (self._clock.now() - began)))
            return None
        if answer.status in (429, 503):
            self._rest("it has too much to do", at_least_s=answer.retry_s)
            return None
        if answer.status == 403:
            return FetchOutcome("unreachable", "it does not count us among its members: compare federation.toml")
        return FetchOutcome("unreachable", f"it answers {answer.status}: compare the versions of crad")

    def _fetch_later_one(self, rounds: RoundRange) -> FetchOutcome:
        """Have a member that says to be past this round show a message of a later one."""
        latest = min(rounds.latest_round or 0, self._agreement.rounds)
        said = f"its rounds begin with {rounds.first_round}, it is at {rounds.latest_round}"
        for round_index in (latest, latest - 1):  # of the newest round this kind may not be there yet
            if round_index <= self._request.round_index:
                break
            answer = self.client.manifest(round_index, self._request.kind, wait_s=0.0)
            if answer.status == 200:
                return self._take("ahead", answer, round_index, reason=said)
        return FetchOutcome("gone", said)

    def _take(self, status: FetchStatus, answer: Answer, round_index: int, *, reason: str = "") -> FetchOutcome:
        """Check what is announced, fetch it, and compare what its sender received with what we did."""
        announced = self._open(answer, round_index)
        self._request.on_announced(
            self.client.number, announced, self._request.kind
        )  # a second one is proof, body or not
        message = self._download(announced, round_index)
        self._compare_receipts(round_index)
        return FetchOutcome(status, reason, message, round_index=round_index)

    def _open(self, answer: Answer, round_index: int) -> Announced:
        try:
            return check_announced(
                answer.body,
                sender=self.client.number,
                round_index=round_index,
                kind=self._request.kind,
                agreement=self._agreement,
            )
        except StaleAgreementError as error:
            lines = differences(self._agreement, self.client.agreement())[:MAX_LINES]
            if not lines:
                raise
            raise SnapshotError(f"{self.client.member.name} has another agreement: {'; '.join(lines)}") from error

    def _download(self, announced: Announced, round_index: int) -> Message:
        request = self._request
        self._last_failure = "its snapshot has not come in full"

        def chunks_from(start: int) -> Iterator[bytes]:
            for chunk in self.client.body(announced, round_index=round_index, kind=request.kind, start=start):
                if request.stop.is_set():
                    raise LateError
                self._disconnects, self._pause_s = 0, PAUSE_S  # it goes on, however slowly
                yield chunk

        return request.inbox.receive(
            announced, round_index=round_index, kind=request.kind, name=self.client.member.name, chunks_from=chunks_from
        )

    def _compare_receipts(self, round_index: int) -> None:
        """Ask what the member received in the round before, which it has finished, and in this one so far.

        Whatever goes wrong here is no reason to refuse its message.
        """
        witness, client = self._request.witness, self.client

        def show(index: int, name: str, kind: str) -> bytes | None:
            return None if self._request.stop.is_set() else client.receipt(index, name, kind, total_s=RECEIPTS_S)

        try:
            for index in (round_index - 1, round_index):
                receipts = client.receipts(index, total_s=RECEIPTS_S) if index > 0 else None
                if receipts is None:
                    continue
                witness.compare(
                    index,
                    receipts.received,
                    teller=client.member.name,
                    show=partial(show, index),
                )
                self._take_proofs(receipts)
        except (OSError, RunError):
            raise  # our own disk
        except SnapshotError:
            witness.note_nonsense(client.member.name)
        except Exception:
            return

    def _take_proofs(self, receipts: ReceiptDigests) -> None:
        """Take the first proof that is new to us; the next message brings the next."""
        witness = self._request.witness
        names = {member.name for member in self._agreement.members} - {self.client.member.name, witness.own_name}
        new = sorted(name for name in names.intersection(receipts.proofs) if not witness.is_proven(name))
        raw = self.client.proof(new[0], total_s=RECEIPTS_S) if new and not self._request.stop.is_set() else None
        if raw is not None:
            witness.take_proof(raw, teller=self.client.member.name)

    def _after_failure(self, error: httpx.TransportError) -> FetchOutcome | None:
        reason = why(error)
        if is_imposter(error):
            return FetchOutcome("refused", reason)
        self._disconnects = self._disconnects + 1 if is_disconnect(error) else 0
        self._times_slow += is_slow(error)
        if self._disconnects >= MAX_DISCONNECTS:
            return FetchOutcome("unreachable", reason)
        if self._times_slow >= MAX_SLOW:
            return FetchOutcome("refused", reason)
        self._rest(reason)
        return None

    def _rest(self, reason: str, *, at_least_s: float = 0.0) -> None:
        self._last_failure = reason
        self._request.stop.wait(max(self._pause_s, min(at_least_s, LONGEST_PAUSE_S)))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
