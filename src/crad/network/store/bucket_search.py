"""Looking for one round's messages in a store, again and again until the round can go on.

What is refused may be replaced by its true owner, so it is looked at again; whoever owns the store gains no more by a
forgery than by putting nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from crad.errors import ExchangeError, SnapshotError
from crad.federation.message import Message
from crad.files import full_disk
from crad.network.agreement import Agreement
from crad.network.arrivals import Announced
from crad.network.clock import SYSTEM_CLOCK, Clock
from crad.network.inbox import Inbox, LateError
from crad.network.round_deadline import PRESENT, FetchStatus, RoundDeadline, count_present
from crad.network.store.bucket import Bucket
from crad.network.store.objects import StoreError

BAD_BODY_S = 60.0  # until a body that was refused is downloaded again


@dataclass(frozen=True)
class SearchEvents:
    """How a search tells what it sees."""

    refuse: Callable[[str, str], None]  # the member's name, and why
    notice: Callable[[str], None]
    trouble: Callable[[str], None]  # with the store; empty when there is none
    announced: Callable[[int, Announced, str], None]  # by whom, what, of which kind; refused if it must not be fetched
    delivered: Callable[[int, Announced], None]
    seen: Callable[[int, Announced], None]  # by somebody who counts as away, ready to be fetched


@dataclass
class SearchedMember:
    """One member's message that has not come yet, and what was seen in its place."""

    number: int
    name: str
    said: set[str] = field(default_factory=set)  # refusals, each told once
    unfinished: str = ""  # why what lies there is not taken yet
    trouble: str = ""  # why it could not be looked at
    not_before: float = 0.0  # the clock, for a body that was refused


class Search:
    """One collecting of one kind of message, with the patience for it."""

    def __init__(
        self,
        bucket: Bucket,
        inbox: Inbox,
        agreement: Agreement,
        *,
        round_index: int,
        kind: str,
        numbers: Sequence[int],
        deadline: RoundDeadline,
        events: SearchEvents,
        away: Callable[[], frozenset[int]] = frozenset,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._bucket, self._inbox, self._deadline, self._events = bucket, inbox, deadline, events
        self._round_index, self._kind, self._last_round = round_index, kind, agreement.rounds
        self._wanted = [SearchedMember(number, agreement.members[number].name) for number in numbers]
        self._away, self._clock = away, clock
        self.statuses: dict[int, FetchStatus] = {}
        self.got: dict[int, Message] = {}

    def run(self, *, pauses_s: tuple[float, float], on_look: Callable[[], None] = lambda: None) -> None:
        """Search until the round can go on; ExchangeError if it is below its quorum for too long."""
        pause_s = pauses_s[0]
        self._look_for_all()  # once in any case: what lies there is taken, also from those who are not waited for
        on_look()
        while not self._is_over():
            self._check_quorum_reachable()
            self._clock.sleep(min(pause_s, self._deadline.next_look_s()))
            before = len(self.statuses)
            self._look_for_all()
            on_look()
            pause_s = pauses_s[0] if len(self.statuses) > before else min(2 * pause_s, pauses_s[1])
        for wanted in self._wanted:
            if wanted.number not in self.got:
                self._leave_out(wanted)

    def _is_over(self) -> bool:
        numbers = [wanted.number for wanted in self._wanted]
        return self._deadline.is_over(self.statuses, wanted=numbers, away=self._away())

    def _look_for_all(self) -> None:
        """Find what is announced, then fetch it, the smallest first: a large body must not keep the others waiting."""
        found: list[tuple[SearchedMember, Announced]] = []
        wanted = [one for one in self._wanted if self.statuses.get(one.number) not in PRESENT]
        try:
            for one in wanted:
                one.trouble = ""
                with self._told(one):
                    announced = self._find(one) if self._clock.now() >= one.not_before else None
                    if announced is not None:
                        found.append((one, announced))
            for one, announced in sorted(found, key=lambda pair: pair[1].manifest.size):
                with self._told(one):
                    self._take(announced, one)
        except LateError:
            return
        self._events.trouble(next((one.trouble for one in wanted if one.trouble), ""))

    @contextmanager
    def _told(self, wanted: SearchedMember) -> Iterator[None]:
        """Tell what goes wrong with one member's message; the others are looked for all the same."""
        try:
            yield
        except SnapshotError as error:
            self._refuse(wanted, str(error))
        except FileNotFoundError:
            return  # taken away under our hands
        except StoreError as error:
            wanted.trouble = str(error)  # perhaps of one file alone

    def _find(self, wanted: SearchedMember) -> Announced | None:
        """Return one member's message of this round or a later one that lies there in full, None if there is none."""
        announced = self._bucket.announced(wanted.number, self._round_index, self._kind)
        if announced is None:
            return self._find_later_one(wanted)
        return announced if self._is_whole(announced, wanted) else None

    def _is_whole(self, announced: Announced, wanted: SearchedMember) -> bool:
        self._events.announced(wanted.number, announced, self._kind)
        size = announced.manifest.size
        there = self._bucket.store.size(self._bucket.body_path(wanted.number, announced, self._kind))
        # Where a store is copied from place to place, the manifest may come before its body.
        is_whole = there == size
        missing = f"{wanted.name} announced {size} bytes, of its body {there or 'none'} are there"
        wanted.unfinished = "" if is_whole else missing
        return is_whole

    def _take(self, announced: Announced, wanted: SearchedMember) -> None:
        """Fetch an announced message, and note who has delivered it."""
        if wanted.number in self._away():
            self._events.seen(wanted.number, announced)
            if self._is_over():  # not back yet, or too late for this round
                return
        path = self._bucket.body_path(wanted.number, announced, self._kind)
        message = self._download(announced, path, wanted)
        self._events.delivered(wanted.number, announced)
        if announced.manifest.round_index == self._round_index:
            self.got[wanted.number] = message
            self.statuses[wanted.number] = "came"
        else:
            self.statuses[wanted.number] = "ahead"

    def _download(self, announced: Announced, path: str, wanted: SearchedMember) -> Message:
        def chunks_from(start: int) -> Iterator[bytes]:
            for chunk in self._bucket.store.chunks(path, start=start, stop=announced.manifest.size):
                yield chunk
                if self._is_over() or self._deadline.expired:
                    raise LateError

        try:
            return self._inbox.receive(
                announced,
                round_index=announced.manifest.round_index,
                kind=self._kind,
                name=wanted.name,
                chunks_from=chunks_from,
            )
        except SnapshotError:
            wanted.not_before = self._clock.now() + BAD_BODY_S
            raise
        except (StoreError, FileNotFoundError):
            raise
        except OSError as error:
            raise full_disk(self._inbox.folder, error) from error

    def _find_later_one(self, wanted: SearchedMember) -> Announced | None:
        """Look for a later round's message: it proves that a member is past this one, what the member says does not."""
        rounds = self._bucket.rounds_of(wanted.number)
        latest = 0 if rounds is None else min(rounds.latest_round or 0, self._last_round)
        for round_index in (latest, latest - 1):  # of the newest round this kind may not be there yet
            later = round_index > self._round_index and self._bucket.announced(wanted.number, round_index, self._kind)
            if later and self._is_whole(later, wanted):
                return later
        if wanted.number in self._away():
            self._look_for_return(wanted, latest)
        if rounds is not None and max(rounds.first_round or 0, rounds.latest_round or 0) > self._round_index:
            self.statuses[wanted.number] = "gone"
        else:
            self.statuses.pop(wanted.number, None)
            self._bucket.compare_agreements(wanted.number)
        return None

    def _look_for_return(self, wanted: SearchedMember, latest: int) -> None:
        """Look whether the newest message of a member that counts as away lies ready: then it is waited for again."""
        last = self._bucket.announced(wanted.number, latest, self._kind) if latest else None
        if last is None:
            return
        path = self._bucket.body_path(wanted.number, last, self._kind)
        if self._bucket.store.size(path) == last.manifest.size:
            self._events.seen(wanted.number, last)

    def _refuse(self, wanted: SearchedMember, reason: str) -> None:
        """Tell a refusal, once however often it is seen again."""
        if reason not in wanted.said:
            wanted.said.add(reason)
            self._events.refuse(wanted.name, reason)

    def _leave_out(self, wanted: SearchedMember) -> None:
        if wanted.unfinished:
            self._refuse(wanted, wanted.unfinished)
        if wanted.number in self._away() and wanted.number not in self.statuses:
            return  # that it is not waited for has been said
        is_past = self.statuses.get(wanted.number) in ("ahead", "gone")
        why = "it is past it" if is_past else wanted.trouble or "nothing valid of it came in time"
        self._events.notice(f"round {self._round_index} goes on without {wanted.name}: {why}")

    def _check_quorum_reachable(self) -> None:
        there = count_present(self.statuses)
        if there >= self._deadline.quorum:
            return
        text = f"round {self._round_index} has {there} of the {self._deadline.quorum} others that it needs"
        if self._deadline.expired:
            raise ExchangeError(f"{text} after {self._deadline.give_up_s:g} s: join again when they are back")
        if self._deadline.is_time_for_a_word():
            self._events.notice(f"{text}: waiting for more")
