"""What a member's end of an exchange is, whichever way the messages go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from crad.errors import ConfigError
from crad.federation.exchange import KEPT_ROUNDS, Ledger
from crad.federation.message import Message
from crad.network.agreement import Agreement
from crad.network.arrivals import KIND
from crad.network.gate import Notice
from crad.network.identity import Identity
from crad.network.inbox import Inbox
from crad.network.patience import Patience

Refused = Callable[[str, str], None]  # the member's name, and why


class MemberExchange(ABC):
    """One member's end: it publishes its own messages and collects those of the others, with patience."""

    def __init__(
        self,
        agreement: Agreement,
        identity: Identity,
        folder: Path,
        *,
        own: int,
        on_refused: Refused,
        notice: Notice,
    ) -> None:
        if agreement.members[own].name != identity.name:
            raise ConfigError(f"member {own} of the agreement is {agreement.members[own].name}, not {identity.name}")
        self._agreement, self._identity, self._own = agreement, identity, own
        self._on_refused, self._notice = on_refused, notice
        self._inbox = Inbox(folder / "in")
        self.refused: Counter[str] = Counter()  # snapshots refused, by member
        self.ledger = Ledger()

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        """Make our own message of this round available to the others."""
        assert sender == self._own, "a member publishes its own"
        if KIND.fullmatch(kind) is None:
            raise ConfigError(f"kind {kind!r}: others cannot ask for it; use letters, digits, '_', '.' and '-'")
        most = self._agreement.max_snapshot_bytes
        if len(message.body) > most:
            raise ConfigError(f"our {kind} has {len(message.body)} bytes, the agreement allows {most}: nobody takes it")
        self._send(round_index, kind, message)

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
        wanted = list(peers)
        self._inbox.forget(before=round_index - KEPT_ROUNDS + 1)
        patience = Patience.agreed(self._agreement, num_wanted=len(wanted), deadline_s=deadline_s, quorum=quorum)
        came = self._gather(round_index, kind, wanted, patience)
        got = {number: came[number] for number in wanted if number in came}
        for number, message in got.items():
            self.ledger.count(sender=number, receiver=receiver, payload_bytes=message.payload_bytes)
        return got, [number for number in wanted if number not in got]

    @abstractmethod
    def begin(self, round_index: int) -> None:
        """This member starts, or starts again, at this round: nobody need wait for an older one of it."""

    @abstractmethod
    def latest(self) -> int | None:
        """The round that the others have reached (`common_round`), None before the first or if nobody can be asked."""

    @abstractmethod
    def readers_to_come(self) -> list[str]:
        """The others who still need us to be there for our newest round."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections."""

    @abstractmethod
    def _send(self, round_index: int, kind: str, message: Message) -> None:
        """Put a message that keeps to the agreement where the others find it."""

    @abstractmethod
    def _gather(self, round_index: int, kind: str, wanted: Sequence[int], patience: Patience) -> Mapping[int, Message]:
        """What came until the round can go on; who is left out has been named."""

    def _refuse(self, name: str, reason: str) -> None:
        self.refused[name] += 1
        self._on_refused(name, reason)
