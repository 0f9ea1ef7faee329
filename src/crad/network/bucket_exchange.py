"""The exchange over a store that all members can reach: nobody needs an open port, nor be there when others are.

Whoever owns the store can withhold a snapshot, but neither forge nor alter one: see `bucket.py` for what lies there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from crad.errors import ConfigError, SnapshotError
from crad.federation.exchange import KEPT_ROUNDS, Ledger
from crad.federation.message import Message
from crad.network.agreement import Agreement
from crad.network.arrivals import KIND, Rounds, common_round
from crad.network.bucket import Bucket
from crad.network.bucket_search import Search, Voice
from crad.network.identity import Identity
from crad.network.inbox import Inbox
from crad.network.ledger import OutgoingLedger
from crad.network.patience import Patience
from crad.network.store import Store, StoreError

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0


class BucketExchange:
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
        on_refused: Callable[[str, str], None] = lambda name, reason: None,
        notice: Callable[[str], None] = lambda text: None,
        pauses_s: tuple[float, float] = (SHORTEST_PAUSE_S, LONGEST_PAUSE_S),
    ) -> None:
        if agreement.members[own].name != identity.name:
            raise ConfigError(f"member {own} of the agreement is {agreement.members[own].name}, not {identity.name}")
        self._agreement, self._own = agreement, own
        self._on_refused, self._notice, self._pauses_s = on_refused, notice, pauses_s
        self._store = Store(agreement.exchange if url is None else url, options=options)
        self._bucket = Bucket(self._store, agreement, identity, outgoing)
        self._inbox = Inbox(folder / "in")
        self._rounds = Rounds(first_round=None, latest_round=None)
        self._trouble = ""  # with the store, as it was last told
        self.refused: Counter[str] = Counter()  # by member
        self.ledger = Ledger()

    def readers_to_come(self) -> list[str]:
        """Nobody: what lies in the store can be read when we are gone."""
        return []

    def begin(self, round_index: int) -> None:
        """This member starts, or starts again, at this round: nobody need wait for an older one of it."""
        self._rounds = Rounds(first_round=round_index, latest_round=None)
        self._keep_trying(lambda: self._bucket.put_state(self._rounds), what="the word that we start")

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        """Put our own message where the others find it. A store that fails is tried again.

        After the agreement's deadline the round goes on without: the others do the same.
        """
        assert sender == self._own, "a member publishes its own"
        assert KIND.fullmatch(kind), kind
        most = self._agreement.max_snapshot_bytes
        if len(message.body) > most:
            raise ConfigError(f"our {kind} has {len(message.body)} bytes, the agreement allows {most}: nobody takes it")

        def put() -> None:
            self._bucket.put_message(round_index, kind, message)
            self._rounds = self._rounds.model_copy(update={"latest_round": round_index})
            self._bucket.put_state(self._rounds)

        if self._keep_trying(put, what=f"our {kind} of round {round_index}"):
            self._remove_old(round_index)

    def collect(
        self,
        round_index: int,
        *,
        receiver: int,
        peers: Iterable[int],
        kind: str,
        deadline_s: float | None = None,
        quorum: int | None = None,
    ) -> tuple[dict[int, Message], list[int]]:
        """The others' messages of this round, and who is missing; deadline and quorum are the agreement's if not given.

        Below the quorum it waits on until the agreement's `give_up_s`, then ExchangeError.
        """
        assert receiver == self._own, "a member collects for itself"
        numbers = list(peers)
        self._inbox.forget(before=round_index - KEPT_ROUNDS + 1)
        patience = Patience.agreed(self._agreement, num_wanted=len(numbers), deadline_s=deadline_s, quorum=quorum)
        search = Search(
            self._bucket,
            self._inbox,
            self._agreement,
            round_index=round_index,
            kind=kind,
            numbers=numbers,
            patience=patience,
            voice=Voice(self._refuse, self._notice, self._say_trouble),
        )
        search.run(pauses_s=self._pauses_s)
        got = {number: search.got[number] for number in numbers if number in search.got}
        for number, message in got.items():
            self.ledger.count(sender=number, receiver=receiver, payload_bytes=message.payload_bytes)
        return got, [number for number in numbers if number not in got]

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

    def _refuse(self, name: str, reason: str) -> None:
        self.refused[name] += 1
        self._on_refused(name, reason)

    def _say_trouble(self, trouble: str) -> None:
        """What is wrong with the store, when that changes."""
        if trouble != self._trouble:
            self._notice(f"{trouble}: trying again" if trouble else f"{self._store.shown} answers again")
        self._trouble = trouble
