"""Looking for one round's messages in a store, again and again until the round can go on.

What is refused may be replaced by its true owner, so it is looked at again; whoever owns the store gains no more by a
forgery than by putting nothing there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from crad.errors import ExchangeError, SnapshotError
from crad.federation.message import Message
from crad.network.agreement import Agreement
from crad.network.arrivals import Announced
from crad.network.bucket import Bucket
from crad.network.inbox import Inbox, LateError
from crad.network.outbox import disk_fault
from crad.network.patience import Patience, Verdict
from crad.network.store import StoreError

BAD_BODY_S = 60.0  # until a body that was refused is downloaded again


@dataclass(frozen=True)
class Voice:
    """How a search tells what it sees."""

    refuse: Callable[[str, str], None]  # the member's name, and why
    notice: Callable[[str], None]
    trouble: Callable[[str], None]  # with the store; empty when there is none


@dataclass
class Wanted:
    """One member's message that has not come yet, and what was seen in its place."""

    number: int
    name: str
    said: set[str] = field(default_factory=set)  # refusals, each told once
    unfinished: str = ""  # why what lies there is not taken yet
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
        patience: Patience,
        voice: Voice,
    ) -> None:
        self._bucket, self._inbox, self._patience, self._voice = bucket, inbox, patience, voice
        self._round_index, self._kind = round_index, kind
        self._wanted = [Wanted(number, agreement.members[number].name) for number in numbers]
        self._verdicts: dict[int, Verdict] = {}
        self.got: dict[int, Message] = {}

    def run(self, *, pauses_s: tuple[float, float]) -> None:
        """Search until the round can go on; ExchangeError if it is below its quorum for too long."""
        pause_s, is_told = pauses_s[0], False
        while not self._is_over():
            before = len(self._verdicts)
            self._look_for_all()
            if self._is_over():
                break
            if self._patience.is_past_deadline:
                self._check_hope(is_told=is_told)
                is_told = True
            pause_s = pauses_s[0] if len(self._verdicts) > before else min(2 * pause_s, pauses_s[1])
            time.sleep(min(pause_s, self._patience.next_look_s()))
        for wanted in self._wanted:
            if wanted.number not in self.got:
                self._leave_out(wanted)

    def _is_over(self) -> bool:
        return self._patience.is_over(list(self._verdicts.values()), num_wanted=len(self._wanted))

    def _look_for_all(self) -> None:
        trouble = ""
        for wanted in self._wanted:
            if wanted.number in self._verdicts or time.monotonic() < wanted.not_before:
                continue
            try:
                self._look_for(wanted)
            except SnapshotError as error:
                self._refuse(wanted, str(error))
            except FileNotFoundError:
                continue  # taken away under our hands
            except StoreError as error:
                trouble = trouble or str(error)  # perhaps of one file alone: the others are looked for
            except LateError:
                return
            if self._is_over():
                break
        self._voice.trouble(trouble)

    def _look_for(self, wanted: Wanted) -> None:
        """One member's message, if all of it is there and nothing speaks against it."""
        announced = self._bucket.announced(wanted.number, self._round_index, self._kind)
        if announced is None:
            return self._note_absence(wanted)
        path, size = self._bucket.body_path(wanted.number, announced, self._kind), announced.manifest.size
        there = self._bucket.store.size(path)
        if there != size:
            # Where a store is copied from place to place, the manifest may come before its body.
            wanted.unfinished = f"{wanted.name} announced {size} bytes, of its body {there or 'none'} are there"
            return None
        wanted.unfinished = ""
        self.got[wanted.number] = self._download(announced, path, wanted)
        self._verdicts[wanted.number] = "came"
        return None

    def _download(self, announced: Announced, path: str, wanted: Wanted) -> Message:
        def chunks_from(start: int) -> Iterator[bytes]:
            for chunk in self._bucket.store.chunks(path, start=start, stop=announced.manifest.size):
                yield chunk
                if self._is_over() or self._patience.is_past_hope:
                    raise LateError

        try:
            return self._inbox.receive(
                announced, round_index=self._round_index, kind=self._kind, name=wanted.name, chunks_from=chunks_from
            )
        except SnapshotError:
            wanted.not_before = time.monotonic() + BAD_BODY_S
            raise
        except (StoreError, FileNotFoundError):
            raise
        except OSError as error:
            raise disk_fault(self._inbox.folder, error) from error

    def _note_absence(self, wanted: Wanted) -> None:
        rounds = self._bucket.rounds_of(wanted.number)
        if rounds is not None and max(rounds.first_round or 0, rounds.latest_round or 0) > self._round_index:
            self._verdicts[wanted.number] = "gone"
        else:
            self._bucket.compare_agreements(wanted.number)

    def _refuse(self, wanted: Wanted, reason: str) -> None:
        """Tell a refusal, once however often it is seen again."""
        if reason not in wanted.said:
            wanted.said.add(reason)
            self._voice.refuse(wanted.name, reason)

    def _leave_out(self, wanted: Wanted) -> None:
        if wanted.unfinished:
            self._refuse(wanted, wanted.unfinished)
        why = "it is past it" if self._verdicts.get(wanted.number) == "gone" else "nothing valid of it came in time"
        self._voice.notice(f"round {self._round_index} goes on without {wanted.name}: {why}")

    def _check_hope(self, *, is_told: bool) -> None:
        text = f"round {self._round_index} has {len(self.got)} of the {self._patience.quorum} others that it needs"
        if self._patience.is_past_hope:
            raise ExchangeError(f"{text} after {self._patience.give_up_s:g} s: join again when they are back")
        if not is_told:
            self._voice.notice(f"{text}: waiting for more")
