"""The exchange over a store that all members can reach: nobody needs an open port, nor be there when others are.

Whoever owns the store can withhold a snapshot, but neither forge nor alter one: see `bucket.py` for what lies there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crad.errors import SnapshotError
from crad.federation.exchange import OvertakenError
from crad.federation.message import Message
from crad.network.agreement import Agreement
from crad.network.arrivals import Announced, RoundRange
from crad.network.identity import Identity
from crad.network.ledger import OutgoingLedger
from crad.network.member_exchange import ExchangePolicy, MemberExchange, PublicationUnknownError
from crad.network.round_deadline import RoundDeadline
from crad.network.store.bucket import RECEIPT_ROUNDS, Bucket, Receipts
from crad.network.store.bucket_search import Search, SearchEvents
from crad.network.store.guarded_store import GuardedStore, Objects
from crad.network.store.objects import Store, StoreError

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
MAX_UNKNOWN = 8  # messages of our own that we know nothing of, looked at for one member
REGAINED = 1 / 8  # of the deadline, for publishing, with every message that got through


class BucketExchange(MemberExchange):
    """One member's end of the exchange. The store is the agreement's, or `url` where this member reaches it otherwise.

    `options` are the store's own (keys, an endpoint): they stay with this member. All that is put there goes into
    `outgoing`.
    """

    def __init__(
        self,
        agreement: Agreement,
        identity: Identity,
        folder: Path,
        *,
        own: int,
        outgoing: OutgoingLedger,
        url: str | None = None,
        options: Mapping[str, Any] | None = None,
        policy: ExchangePolicy | None = None,
        pauses_s: tuple[float, float] = (SHORTEST_PAUSE_S, LONGEST_PAUSE_S),
        store: Objects | None = None,
    ) -> None:
        super().__init__(agreement, identity, folder, own=own, policy=policy)
        self._pauses_s = pauses_s
        address = agreement.exchange if url is None else url
        self._store = store or GuardedStore(lambda: Store(address, options=options))
        self._bucket = Bucket(self._store, agreement, identity, outgoing)
        self._rounds = RoundRange(first_round=None, latest_round=None)
        self._trouble = ""  # with the store, as it was last told
        # For publishing: halved by every failure, so that whoever can write into our folder does not cost us a second
        # deadline a round, and regained bit by bit.
        self._publishing_s = agreement.deadline_s
        self._publish_until: tuple[int, str, float] | None = None  # round, kind, and when to give up

    def readers_to_come(self) -> list[str]:
        """Return nobody: what lies in the store can be read when we are gone."""
        return []

    def begin(self, round_index: int) -> None:
        """Start, or start again, at this round: nobody need wait for an older one of ours."""
        self._rounds = RoundRange(first_round=round_index, latest_round=None)
        until = self._clock.now() + self._publishing_s
        self._keep_trying(lambda: self._bucket.put_state(self._rounds), what="the word that we start", until=until)

    def _published_before(self, round_index: int, kind: str) -> bytes | None:
        found: list[bytes | None] = []
        what, until = f"our {kind} of round {round_index}", self._until(round_index, kind)
        if not self._keep_trying(
            lambda: found.append(self._bucket.signed_before(round_index, kind)), what=what, until=until
        ):
            raise PublicationUnknownError
        return found[-1]

    def _send(self, round_index: int, kind: str, message: Message, envelope: bytes) -> None:
        """Try a store that fails again, until the agreement's deadline at the latest; the round goes on without us."""

        def put() -> None:
            self._bucket.put_message(round_index, kind, message, envelope)
            self._rounds = self._rounds.model_copy(update={"latest_round": round_index})
            self._bucket.put_state(self._rounds)

        until = self._until(round_index, kind)
        if self._keep_trying(put, what=f"our {kind} of round {round_index}", until=until):
            regained_s = self._publishing_s + REGAINED * self._agreement.deadline_s
            self._publishing_s = min(regained_s, self._agreement.deadline_s)
            self._remove_old(round_index)

    def _gather(
        self, round_index: int, kind: str, wanted: Sequence[int], deadline: RoundDeadline
    ) -> dict[int, Message]:
        search = Search(
            self._bucket,
            self._inbox,
            self._agreement,
            round_index=round_index,
            kind=kind,
            numbers=wanted,
            away=lambda: self._not_waited_for(round_index, wanted),
            deadline=deadline,
            events=SearchEvents(
                refuse=self._refuse,
                notice=self._notice,
                trouble=self._say_trouble,
                announced=self._note_announced,
                delivered=self._note_delivered,
                seen=self._note_seen,
            ),
            clock=self._clock,
        )
        try:
            search.run(pauses_s=self._pauses_s, on_look=lambda: self._check_overtaken(round_index))
        except OvertakenError:
            self._put_receipts(round_index)
            raise
        self._put_receipts(round_index)
        self._note_attendance(round_index, search.statuses, wanted)
        return search.got

    def _note_delivered(self, number: int, announced: Announced) -> None:
        """Take down a message that came, and compare what its sender received with what we did."""
        self.attendance.note_delivered(number, announced.manifest.round_index)
        try:
            receipts = self._bucket.receipts_of(number)
        except (StoreError, FileNotFoundError):
            return  # the next round asks again
        except SnapshotError:
            self.witness.note_nonsense(self._name(number))
            return
        if receipts is not None:
            self._compare(receipts, teller=self._name(number))

    def _note_seen(self, number: int, announced: Announced) -> None:
        self.attendance.note_seen(number, announced.manifest.round_index)

    def _compare(self, receipts: Receipts, *, teller: str) -> None:
        """Look at one envelope for each message and one proof for each member, with however many a file is filled."""
        names = {member.name for member in self._agreement.members} - {teller}
        shown = {(one.round_index, one.member, one.kind): one.envelope.encode() for one in receipts.receipts}
        unknown = 0
        for place, envelope in shown.items():
            if place[1] not in names:
                continue
            ours = self.witness.envelope(*place)
            if ours is None and place[1] == self._name(self._own):  # from before a restored backup, or made up
                unknown += 1
                is_of_interest = unknown <= MAX_UNKNOWN
            else:
                is_of_interest = ours is not None and ours != envelope
            if is_of_interest:
                self.witness.examine(*place, envelope, teller=teller)
        for name in sorted(names & receipts.proofs.keys()):
            if not self.witness.is_proven(name):
                self.witness.take_proof(receipts.proofs[name].encode(), teller=teller)

    def _put_receipts(self, round_index: int) -> None:
        proofs = {name: self.witness.proof(name) or b"" for name in self.witness.proven()}
        try:
            self._bucket.put_receipts(self.witness.envelopes(since=round_index - RECEIPT_ROUNDS + 1), proofs)
        except StoreError as error:  # not worth a second try: the next round tells it again
            self._say_trouble(str(error))

    def check_store(self) -> None:
        """Write, read and remove something small; StoreError says what does not work."""
        self._bucket.probe()

    def collect_late(self, round_index: int, *, peers: Iterable[int], kind: str, deadline_s: float) -> list[int]:
        """Look once who has put up what did not come in time, and fetch that; nobody else is waited for."""
        asked = list(peers)
        there = [number for number in asked if self._is_announced(number, round_index, kind)]
        missing = super().collect_late(round_index, peers=there, kind=kind, deadline_s=deadline_s) if there else []
        return [number for number in asked if number not in there or number in missing]

    def _is_announced(self, number: int, round_index: int, kind: str) -> bool:
        try:
            return self._bucket.announced(number, round_index, kind) is not None
        except SnapshotError as error:
            self._refuse(self._name(number), str(error))
        except (StoreError, FileNotFoundError) as error:
            self._say_trouble(str(error))
        return False

    def stop_receiving(self) -> None:
        """Do nothing: of a store nothing is fetched but while a round waits for it."""

    def close(self) -> None:
        """Let go of the connection to the store."""
        self._store.close()

    def _until(self, round_index: int, kind: str) -> float:
        """Return when to give up publishing this message: one time for looking and for putting."""
        if self._publish_until is None or self._publish_until[:2] != (round_index, kind):
            self._publish_until = (round_index, kind, self._clock.now() + self._publishing_s)
        return self._publish_until[2]

    def _keep_trying(self, action: Callable[[], None], *, what: str, until: float) -> bool:
        """Try once, and again until then; return whether it succeeded."""
        pause_s = self._pauses_s[0]
        while True:
            try:
                action()
            except (StoreError, FileNotFoundError) as error:
                self._say_trouble(str(error))
            else:
                self._say_trouble("")
                return True
            if self._clock.now() + pause_s > until:
                self._notice(f"{what} could not be put into the store in {self._publishing_s:g} s: we go on without")
                self._publishing_s /= 2
                return False
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, self._pauses_s[1])

    def _remove_old(self, round_index: int) -> None:
        try:
            self._bucket.remove_old(round_index)
        except StoreError as error:  # not worth a second try: the next round tries again
            self._notice(f"old rounds of ours stay in the store: {error}")

    def _say_trouble(self, trouble: str) -> None:
        """Say what is wrong with the store, when that changes."""
        if trouble != self._trouble:
            self._notice(f"{trouble}: trying again" if trouble else f"{self._store.shown} answers again")
        self._trouble = trouble
