"""Fetching one member's message of one round, in a thread of its own: try, wait, go on where it was cut off."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from crad.errors import CradError, SnapshotError
from crad.federation.message import Message
from crad.network.agreement import Agreement, differences
from crad.network.arrivals import Announced, check_announced
from crad.network.client import Answer, ChangedError, MemberClient, is_disconnect, is_imposter, why
from crad.network.envelope import StaleAgreementError
from crad.network.inbox import Inbox, LateError
from crad.network.outbox import disk_fault
from crad.network.patience import Verdict

WAIT_S = 20.0  # that the other end keeps a question open
PAUSE_S = 0.2  # after the first failure; doubled with each, up to the longest
LONGEST_PAUSE_S = 5.0
MAX_DISCONNECTS = 5  # in a row, without an answer or a new byte
MAX_LINES = 5  # of differences in one message


@dataclass(frozen=True)
class Ending:
    """How a fetch ended, and why."""

    verdict: Verdict
    reason: str = ""
    message: Message | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Want:
    """One round's message of one kind: where it is put, and how those who fetch it are told to stop."""

    round_index: int
    kind: str
    inbox: Inbox
    stop: threading.Event = field(default_factory=threading.Event)
    endings: queue.Queue[tuple[int, Ending]] = field(default_factory=queue.Queue)


class Fetch(threading.Thread):
    """From one member. Ends by itself with a message or a refusal, and soon after `want.stop` in any case."""

    def __init__(self, client: MemberClient, want: Want, *, agreement: Agreement, after_s: float = 0.0) -> None:
        super().__init__(name=f"crad-fetch-{client.member.name}", daemon=True)
        self.client, self._want, self._agreement, self._after_s = client, want, agreement, after_s
        self._disconnects = 0
        self._pause_s = PAUSE_S
        self._last_failure = "it has not published in time"

    def run(self) -> None:
        """Fetch, and tell how it ended."""
        try:
            ending = self._until_ended()
        except SnapshotError as error:
            ending = Ending("refused", str(error))
        except OSError as error:
            ending = Ending("fault", error=disk_fault(self._want.inbox.folder, error))
        except Exception as error:  # told to the one who waits, who must not wait for ever
            ending = Ending("fault", error=error)
        if self._want.stop.is_set() and ending.verdict == "fault" and not isinstance(ending.error, CradError):
            ending = self._late()  # a client closed under our hands
        self._want.endings.put((self.client.number, ending))

    def _until_ended(self) -> Ending:
        self._want.stop.wait(self._after_s)
        while not self._want.stop.is_set():
            try:
                ending = self._try_once()
            except LateError:
                break
            except ChangedError:
                self._rest("it publishes this round anew")
                continue
            except httpx.TransportError as error:
                if self._want.stop.is_set():
                    break  # the connection was closed under our hands
                ending = self._after_failure(error)
            if ending is not None:
                return ending
        return self._late()

    def _late(self) -> Ending:
        return Ending("late", self._last_failure)

    def _try_once(self) -> Ending | None:
        """One question and, if there is something to fetch, the fetching; None to ask again."""
        began = time.monotonic()
        answer = self.client.manifest(self._want.round_index, self._want.kind, wait_s=WAIT_S)
        if answer.status == 200:
            return Ending("came", message=self._download(self._open(answer)))
        self._disconnects = 0
        if answer.status == 410:
            rounds = self.client.rounds(answer)
            return Ending("gone", f"its rounds begin with {rounds.first_round}, it is at {rounds.latest_round}")
        if answer.status == 425:
            self._pause_s = PAUSE_S
            # Whoever answers "not yet" at once, without waiting, is not asked without end.
            self._want.stop.wait(max(0.0, PAUSE_S - (time.monotonic() - began)))
            return None
        if answer.status in (429, 503):
            self._rest("it has too much to do", at_least_s=answer.retry_s)
            return None
        if answer.status == 403:
            return Ending("unreachable", "it does not count us among its members: compare federation.toml")
        return Ending("unreachable", f"it answers {answer.status}: compare the versions of crad")

    def _open(self, answer: Answer) -> Announced:
        want, number = self._want, self.client.number
        try:
            return check_announced(
                answer.body, sender=number, round_index=want.round_index, kind=want.kind, agreement=self._agreement
            )
        except StaleAgreementError as error:
            lines = differences(self._agreement, self.client.agreement())[:MAX_LINES]
            if not lines:
                raise
            raise SnapshotError(f"{self.client.member.name} has another agreement: {'; '.join(lines)}") from error

    def _download(self, announced: Announced) -> Message:
        want = self._want
        self._last_failure = "its snapshot has not come in full"

        def chunks_from(start: int) -> Iterator[bytes]:
            for chunk in self.client.body(announced, round_index=want.round_index, kind=want.kind, start=start):
                if want.stop.is_set():
                    raise LateError
                self._disconnects, self._pause_s = 0, PAUSE_S  # it goes on, however slowly
                yield chunk

        return want.inbox.receive(
            announced,
            round_index=want.round_index,
            kind=want.kind,
            name=self.client.member.name,
            chunks_from=chunks_from,
        )

    def _after_failure(self, error: httpx.TransportError) -> Ending | None:
        reason = why(error)
        if is_imposter(error):
            return Ending("refused", reason)
        self._disconnects = self._disconnects + 1 if is_disconnect(error) else 0
        if self._disconnects >= MAX_DISCONNECTS:
            return Ending("unreachable", reason)
        self._rest(reason)
        return None

    def _rest(self, reason: str, *, at_least_s: float = 0.0) -> None:
        self._last_failure = reason
        self._want.stop.wait(max(self._pause_s, min(at_least_s, LONGEST_PAUSE_S)))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
