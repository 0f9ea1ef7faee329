"""The exchange over a store that all members can reach: nobody needs an open port, nor be there when others are.

Whoever owns the store can withhold a snapshot, but neither forge nor alter one: see `bucket.py` for what lies there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crad.errors import SnapshotError
from crad.federation.message import Message
from crad.network.agreement import Agreement
from crad.network.arrivals import Rounds, common_round
from crad.network.bucket import Bucket
from crad.network.bucket_search import Search, Voice
from crad.network.gate import Notice
from crad.network.identity import Identity
from crad.network.ledger import OutgoingLedger
from crad.network.member_exchange import MemberExchange, Refused
from crad.network.patience import Patience
from crad.network.store import Store, StoreError

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0


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
        on_refused: Refused = lambda name, reason: None,
        notice: Notice = lambda text: None,
        pauses_s: tuple[float, float] = (SHORTEST_PAUSE_S, LONGEST_PAUSE_S),
    ) -> None:
        super().__init__(agreement, identity, folder, own=own, on_refused=on_refused, notice=notice)
        self._pauses_s = pauses_s
        self._store = Store(agreement.exchange if url is None else url, options=options)
        self._bucket = Bucket(self._store, agreement, identity, outgoing)
        self._rounds = Rounds(first_round=None, latest_round=None)
        self._trouble = ""  # with the store, as it was last told

    def readers_to_come(self) -> list[str]:
        """Nobody: what lies in the store can be read when we are gone."""
        return []

    def begin(self, round_index: int) -> None:
        """This member starts, or starts again, at this round: nobody need wait for an older one of it."""
        self._rounds = Rounds(first_round=round_index, latest_round=None)
        self._keep_trying(lambda: self._bucket.put_state(self._rounds), what="the word that we start")

    def _send(self, round_index: int, kind: str, message: Message) -> None:
        """A store that fails is tried again until the agreement's deadline; then the round goes on without us."""

        def put() -> None:
            self._bucket.put_message(round_index, kind, message)
            self._rounds = self._rounds.model_copy(update={"latest_round": round_index})
            self._bucket.put_state(self._rounds)

        if self._keep_trying(put, what=f"our {kind} of round {round_index}"):
            self._remove_old(round_index)

    def _gather(self, round_index: int, kind: str, wanted: Sequence[int], patience: Patience) -> dict[int, Message]:
        search = Search(
            self._bucket,
            self._inbox,
            self._agreement,
            round_index=round_index,
            kind=kind,
            numbers=wanted,
            patience=patience,
            voice=Voice(self._refuse, self._notice, self._say_trouble),
        )
        search.run(pauses_s=self._pauses_s)
        return search.got

    def latest(self) -> int | None:
        """The round that the others have reached (`common_round`), None before the first or while the store is away."""
        others = [number for number in range(len(self._agreement.members)) if number != self._own]
        claims = [self._claim_of(number) for number in others]
        return common_round([claim for claim in claims if claim is not None], agreement=self._agreement)

    def check_store(self) -> None:
        """Write, read and remove something small; StoreError says what does not work."""
        self._bucket.probe()

    def close(self) -> None:
        """Let go of the connection to the store."""
        self._store.close()

    def _claim_of(self, number: int) -> int | None:
        try:
            rounds = self._bucket.rounds_of(number)
        except (StoreError, SnapshotError):
            return None  # who cannot be asked, or cannot be believed, claims nothing
        return None if rounds is None else rounds.latest_round

    def _keep_trying(self, action: Callable[[], None], *, what: str) -> bool:
        """Whether it succeeded before the deadline."""
        deadline_s, pause_s = self._agreement.deadline_s, self._pauses_s[0]
        until = time.monotonic() + deadline_s
        while True:
            try:
                action()
            except (StoreError, FileNotFoundError) as error:
                self._say_trouble(str(error))
            else:
                self._say_trouble("")
                return True
            if time.monotonic() + pause_s > until:
                self._notice(f"{what} could not be put into the store in {deadline_s:g} s: we go on without")
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, self._pauses_s[1])

    def _remove_old(self, round_index: int) -> None:
        try:
            self._bucket.remove_old(round_index)
        except StoreError as error:  # not worth a second try: the next round tries again
            self._notice(f"old rounds of ours stay in the store: {error}")

    def _say_trouble(self, trouble: str) -> None:
        """What is wrong with the store, when that changes."""
        if trouble != self._trouble:
            self._notice(f"{trouble}: trying again" if trouble else f"{self._store.shown} answers again")
        self._trouble = trouble
