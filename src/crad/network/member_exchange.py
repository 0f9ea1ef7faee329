"""What a member's end of an exchange is, whichever way the messages go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crad.errors import ConfigError, SnapshotError
from crad.federation.exchange import KEPT_ROUNDS, ByteCounter, OvertakenError
from crad.federation.message import SNAPSHOT, Manifest, Message
from crad.network.agreement import Agreement
from crad.network.arrivals import KIND, Announced
from crad.network.attendance import AWAY_AFTER, Attendance
from crad.network.clock import SYSTEM_CLOCK, Clock
from crad.network.envelope import manifest_in, seal
from crad.network.equivocation.signatures import SignatureRecord
from crad.network.equivocation.witness import Witness, digest_of
from crad.network.identity import Identity
from crad.network.inbox import Inbox
from crad.network.round_deadline import FetchStatus, RoundDeadline
from crad.network.store.kept_snapshots import KeptSnapshots

Refused = Callable[[str, str], None]  # the member's name, and why
PROOFS, SIGNED = "proofs", "signed"


class PublicationUnknownError(Exception):
    """It cannot be found out whether we have published this round before; that it was tried has been said."""


@dataclass(frozen=True)
class ExchangePolicy:
    """What one member decides for itself about the others, and how it hears of them."""

    left_out: Mapping[int, str] = field(default_factory=dict)  # whom nothing is taken from, and why
    away_after: int = AWAY_AFTER  # missed rounds
    snapshot_bytes: Mapping[int, int] = field(default_factory=dict)  # that a member's network can need at the most
    on_refused: Refused = lambda name, reason: None
    notice: Callable[[str], None] = lambda text: None
    clock: Clock = SYSTEM_CLOCK
    kept: KeptSnapshots | None = None  # where everybody's newest snapshot stays; None: nobody's outlives its rounds


class MemberExchange(ABC):
    """One member's end: it publishes its own messages and collects those of the others until a deadline."""

    def __init__(
        self, agreement: Agreement, identity: Identity, folder: Path, *, own: int, policy: ExchangePolicy | None = None
    ) -> None:
        if agreement.members[own].name != identity.name:
            raise ConfigError(f"member {own} of the agreement is {agreement.members[own].name}, not {identity.name}")
        self._agreement, self._identity, self._own = agreement, identity, own
        self._policy = policy or ExchangePolicy()
        self._notice, self._clock = self._policy.notice, self._policy.clock
        self._others = [number for number in range(len(agreement.members)) if number != own]
        self._inbox = Inbox(folder / "in")
        self._signatures = SignatureRecord(folder / SIGNED)
        self.attendance = Attendance(self._others, away_after=self._policy.away_after)
        self.witness = Witness(agreement, own, folder / PROOFS, notice=self._notice)
        self.refused: Counter[str] = Counter()  # snapshots refused, by member
        self.traffic = ByteCounter()

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        """Make our own message of this round available to the others; never a second one of the same round."""
        assert sender == self._own, "a member publishes its own"
        if KIND.fullmatch(kind) is None:
            raise ConfigError(f"kind {kind!r}: others cannot ask for it; use letters, digits, '_', '.' and '-'")
        most = self._agreement.max_snapshot_bytes
        if len(message.body) > most:
            raise ConfigError(f"our {kind} has {len(message.body)} bytes, the agreement allows {most}: nobody takes it")
        envelope = seal(message.manifest, kind=kind, identity=self._identity, agreement=self._agreement)
        signed = self._signatures.find(round_index, kind)  # what we know ourselves needs no store
        if signed is None:
            try:
                signed = self._published_before(round_index, kind)
            except PublicationUnknownError:
                return  # what we do not know we might sign a second time
        if signed is not None and digest_of(signed) != digest_of(envelope):
            self._notice(
                f"our {kind} of round {round_index} came out otherwise than before the restart: the first stays"
            )
            self._note_own(signed, kind)
            return
        if self.witness.has_other(round_index, kind, digest_of(envelope)):
            self._notice(
                f"the others hold a {kind} of ours for round {round_index} that we know nothing of, as after a "
                "restored backup: we publish nothing in this round"
            )
            return
        self._note_own(envelope, kind)
        self._signatures.keep(round_index, kind, envelope)
        self._send(round_index, kind, message, envelope)
        self._keep(self._own, kind, message, envelope)

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
        """Return the others' messages of this round, and who is missing; deadline and quorum as agreed if not given.

        Below the quorum it waits on until the agreement's `give_up_s`, then ExchangeError. OvertakenError as soon as a
        majority of all others has delivered messages of a later round.
        """
        assert receiver == self._own, "a member collects for itself"
        asked = list(peers)
        wanted = [number for number in asked if not self._is_left_out(number)]
        self.witness.forget(before=round_index - KEPT_ROUNDS)
        self._inbox.keep_only(range(round_index - KEPT_ROUNDS + 1, round_index + 1))
        self._check_overtaken(round_index)
        if quorum is None and len(asked) < len(self._others):
            quorum = 0  # where a few are drawn, one of them alone must not be able to stop the round
        deadline = RoundDeadline.agreed(
            self._agreement, num_wanted=len(wanted), deadline_s=deadline_s, quorum=quorum, clock=self._clock
        )
        came = self._gather(round_index, kind, wanted, deadline)
        got = {number: came[number] for number in wanted if number in came and not self._is_left_out(number)}
        for number, message in got.items():
            self.traffic.count(sender=number, receiver=receiver, payload_bytes=message.payload_bytes)
            self._keep(number, kind, message, self.witness.envelope(round_index, self._name(number), kind))
        return got, [number for number in asked if number not in got]

    def collect_late(self, round_index: int, *, peers: Iterable[int], kind: str, deadline_s: float) -> list[int]:
        """Ask once more for what did not come in time, those who count as away too; return whose is still missing.

        For what may be kept after the last round: nothing is learned from it, and who does not come costs no more than
        this deadline.
        """
        before, self.attendance = self.attendance, Attendance(self._others, away_after=self._policy.away_after)
        try:
            _, missing = self.collect(
                round_index, receiver=self._own, peers=peers, kind=kind, deadline_s=deadline_s, quorum=0
            )
        finally:
            self.attendance = before
        return missing

    def latest(self) -> int | None:
        """Return the round that a majority of all others has reached, by what they delivered; None before the first."""
        return self.attendance.majority_round()

    def away(self, round_index: int) -> list[str]:
        """Return the names of those who are not waited for in this round."""
        return [self._name(number) for number in sorted(self.attendance.away(round_index))]

    @abstractmethod
    def begin(self, round_index: int) -> None:
        """Start, or start again, at this round: nobody need wait for an older one of ours."""

    @abstractmethod
    def readers_to_come(self) -> list[str]:
        """Return the others who still need us to be there for our newest round."""

    @abstractmethod
    def stop_receiving(self) -> None:
        """Let nothing more come in: the rounds are over."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections."""

    @abstractmethod
    def _published_before(self, round_index: int, kind: str) -> bytes | None:
        """Return the envelope of a message of ours that others can still see, None if there is none.

        Asked where our own record has nothing, as after a restored backup.
        """

    @abstractmethod
    def _send(self, round_index: int, kind: str, message: Message, envelope: bytes) -> None:
        """Put a message that keeps to the agreement where the others find it."""

    @abstractmethod
    def _gather(
        self, round_index: int, kind: str, wanted: Sequence[int], deadline: RoundDeadline
    ) -> Mapping[int, Message]:
        """Return what came until the round can go on; who is left out has been named."""

    def _note_announced(self, number: int, announced: Announced, kind: str) -> None:
        """Take down what a member signed, before any of it is fetched; refused if it must not be."""
        self.witness.note(number, announced, kind)
        if self.witness.is_proven(self._name(number)):
            raise SnapshotError(f"{self._name(number)} signed two different messages for one round")
        most = self._policy.snapshot_bytes.get(number)
        if kind == SNAPSHOT and most is not None and announced.manifest.size > most:
            raise SnapshotError(
                f"{self._name(number)} announces {announced.manifest.size} bytes, its network needs no more than {most}"
            )

    def _note_attendance(self, round_index: int, statuses: Mapping[int, FetchStatus], wanted: Iterable[int]) -> None:
        """Take down who was there when the round went on, and say who is not waited for from now on."""
        before = self.attendance.away(round_index)
        for number in wanted:
            status = statuses.get(number, "late")
            if status == "came":
                self.attendance.note_in_time(number, round_index)
            elif status != "ahead":  # who is past this round has not missed it: we have
                self.attendance.note_missed(number, round_index)
        for number in sorted(self.attendance.away(round_index) - before):
            self._notice(f"{self._name(number)} counts as away: rounds do not wait for it until it delivers again")

    def _check_overtaken(self, round_index: int) -> None:
        reached = self.attendance.majority_round()
        if reached is not None and reached > round_index:
            self._notice(
                f"most others have delivered round {reached}: we go on there, and round {round_index} is left out"
            )
            raise OvertakenError(f"the others are at round {reached}")

    def _not_waited_for(self, round_index: int, wanted: Iterable[int]) -> frozenset[int]:
        """Return who is away, and who has been proven something while the round went on."""
        return self.attendance.away(round_index) | {number for number in wanted if self._is_left_out(number)}

    def _is_left_out(self, number: int) -> bool:
        return number in self._policy.left_out or self.witness.is_proven(self._name(number))

    def _keep(self, number: int, kind: str, message: Message, envelope: bytes | None) -> None:
        if self._policy.kept is not None and kind == SNAPSHOT and envelope is not None:
            self._policy.kept.keep(self._name(number), message, envelope)

    def _note_own(self, envelope: bytes, kind: str) -> None:
        raw = manifest_in(envelope)
        self.witness.note(self._own, Announced(raw, Manifest.model_validate_json(raw), envelope), kind)

    def _refuse(self, name: str, reason: str) -> None:
        self.refused[name] += 1
        self._policy.on_refused(name, reason)

    def _name(self, number: int) -> str:
        return self._agreement.members[number].name
