"""What each of the others has signed, as we received it: two different messages for one round are proof against it.

Members tell each other the hashes of what they received. Where two differ, the signed envelopes are compared: a
member's word is no proof, two signatures are. The proof is kept as a file, and its subject is left out from then on.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from crad.errors import ConfigError, SnapshotError, printable
from crad.files import write_atomically, writing_into
from crad.network.agreement import Agreement
from crad.network.arrivals import Announced, check_announced, split_kind
from crad.network.envelope import manifest_in
from crad.network.equivocation.proof import Proven, make_proof, verify_proof

MAX_SAID = 20  # lines about what one member shows
MAX_SHOWN = 16  # envelopes looked at beyond one of each member

MessageKey = tuple[str, str]  # a member's name, and the kind of message
Digests = Mapping[str, Mapping[str, str]]  # by name and kind
Show = Callable[[str, str], bytes | None]  # the envelope that somebody received from this member, of this kind


class Witness:
    """Our own receipts of the last rounds, and the proofs that came of comparing them. Safe from several threads."""

    def __init__(
        self, agreement: Agreement, own: int, folder: Path, *, notice: Callable[[str], None] = lambda text: None
    ) -> None:
        self._agreement, self._own, self._folder, self._notice = agreement, own, folder, notice
        self._lock = threading.RLock()
        self._received: dict[int, dict[MessageKey, bytes]] = {}
        self._elsewhere: dict[tuple[int, str], str] = {}  # our own messages, as others hold them
        self._said: dict[str, set[str]] = {}  # by the member that it is about
        self._proofs: dict[str, bytes] = {}
        for file in sorted(folder.glob("*.json")):
            self._take_up(file)

    def note(self, number: int, announced: Announced, kind: str) -> None:
        """Keep what a member signed; with another message of it for the same round it becomes a proof."""
        if split_kind(kind)[1] is not None:
            return  # a message for one member alone is another for everybody
        round_index, place = announced.manifest.round_index, (self._agreement.members[number].name, kind)
        with self._lock:
            known = self._received.setdefault(round_index, {}).setdefault(place, announced.envelope)
        if digest_of(known) != digest_of(announced.envelope):
            self._accuse(place[0], (known, announced.envelope))

    def forget(self, *, before: int) -> None:
        """Forget what came in rounds that nobody compares any more; by our own round, never by what others deliver."""
        with self._lock:
            for old in [index for index in self._received if index < before]:
                del self._received[old]

    def digests(self, round_index: int) -> dict[str, dict[str, str]]:
        """Return what we received in this round, by member and kind, as the sha256 of what was signed."""
        with self._lock:
            received = dict(self._received.get(round_index, {}))
        digests: dict[str, dict[str, str]] = {}
        for (name, kind), envelope in received.items():
            digests.setdefault(name, {})[kind] = digest_of(envelope)
        return digests

    def envelope(self, round_index: int, name: str, kind: str) -> bytes | None:
        """Return the envelope that we received, None if none did or it is forgotten."""
        with self._lock:
            return self._received.get(round_index, {}).get((name, kind))

    def envelopes(self, *, since: int) -> dict[int, dict[MessageKey, bytes]]:
        """Return all that we received from this round on."""
        with self._lock:
            return {index: dict(places) for index, places in self._received.items() if index >= since}

    def compare(self, round_index: int, digests: Digests, *, teller: str, show: Show) -> None:
        """Compare what another member says that it received with what we did; what differs it must show."""
        ours = self.digests(round_index)
        own = self._agreement.members[self._own].name
        told = [(name, kind, digest) for name, kinds in digests.items() for kind, digest in kinds.items()]
        differing = [
            (name, kind)
            for name, kind, digest in told
            if name != teller and (name == own or kind in ours.get(name, {})) and ours.get(name, {}).get(kind) != digest
        ]
        for name, kind in differing[: len(self._agreement.members) + MAX_SHOWN]:  # no honest member has more to show
            envelope = show(name, kind)
            if envelope is not None:
                self.examine(round_index, name, kind, envelope, teller=teller)

    def examine(self, round_index: int, name: str, kind: str, envelope: bytes, *, teller: str) -> None:
        """Take an envelope that another member received: if it is genuine and not ours, somebody signed two."""
        try:
            number = self._agreement.number(name)
            announced = check_announced(
                envelope, sender=number, round_index=round_index, kind=kind, agreement=self._agreement
            )
        except ConfigError:
            return  # a name of its own making
        except SnapshotError as error:
            text = f"{teller} shows a forgery as {printable(name)}'s {kind} of round {round_index}: {error}"
            self._say(text, about=teller)
            return
        if number == self._own:
            self._note_own(round_index, kind, announced, teller=teller)
        elif self.envelope(round_index, name, kind) is not None:
            self.note(number, announced, kind)

    @property
    def own_name(self) -> str:
        """Return our own name."""
        return self._agreement.members[self._own].name

    def note_nonsense(self, teller: str) -> None:
        """Say that a member tells of what it received in a way that nobody can read."""
        self._say(f"what {teller} says of what it received makes no sense: it is passed over", about=teller)

    def has_other(self, round_index: int, kind: str, digest: str) -> bool:
        """Return whether somebody holds another message of our own for this round: we must not sign a second one."""
        with self._lock:
            known = self._elsewhere.get((round_index, kind))
        return known is not None and known != digest

    def is_proven(self, name: str) -> bool:
        """Return whether there is a proof against this member."""
        with self._lock:
            return name in self._proofs

    def proven(self) -> list[str]:
        """Return the members against whom there is a proof."""
        with self._lock:
            return sorted(self._proofs)

    def proof(self, name: str) -> bytes | None:
        """Return the proof against a member, None if there is none."""
        with self._lock:
            return self._proofs.get(name)

    def take_proof(self, raw: bytes, *, teller: str) -> None:
        """Take a proof that another member has; what proves nothing says something about the teller alone."""
        try:
            proven = verify_proof(raw)
        except SnapshotError as error:
            self._say(f"{teller} shows a proof that is none: {error}", about=teller)
            return
        is_ours = proven.agreement == self._agreement.hash
        if is_ours and proven.member != self._agreement.members[self._own].name:
            self._keep(proven, raw)

    def _note_own(self, round_index: int, kind: str, announced: Announced, *, teller: str) -> None:
        digest = digest_of(announced.envelope)
        with self._lock:
            self._elsewhere[round_index, kind] = digest
            known = self._received.get(round_index, {}).get((self._agreement.members[self._own].name, kind))
        if known is not None and digest_of(known) != digest:
            self._say(
                f"{teller} holds another {kind} of ours for round {round_index}, signed with our key: restored from a "
                "backup, started twice, or is the key in other hands? Others may leave us out",
                about=self.own_name,
            )

    def _accuse(self, name: str, envelopes: tuple[bytes, bytes]) -> None:
        try:
            raw = make_proof(self._agreement, envelopes)
        except SnapshotError as error:
            self._say(f"{name}: {error}", about=name)
            return
        self._keep(verify_proof(raw), raw)

    def _keep(self, proven: Proven, raw: bytes) -> None:
        with self._lock:
            if proven.member in self._proofs:
                return
            self._proofs[proven.member] = raw
            path = self._folder / f"{proven.member}-round-{proven.round_index:05d}.json"
            with writing_into(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
                write_atomically(path, raw)
        self._notice(
            f"{proven.member} signed two different messages for round {proven.round_index}: it is left out from now "
            f"on; the proof is {path}, and crad peer verify-proof checks it anywhere"
        )

    def _take_up(self, file: Path) -> None:
        """Take up what was proven before a restart; a file that proves nothing is somebody else's."""
        try:
            raw = file.read_bytes()
            proven = verify_proof(raw)
        except (OSError, SnapshotError):
            return
        if proven.agreement == self._agreement.hash:
            self._proofs[proven.member] = raw

    def _say(self, text: str, *, about: str) -> None:
        """Say something once, however often it is seen; of very many things about one member only the first."""
        with self._lock:
            said = self._said.setdefault(about, set())
            if text in said or len(said) >= MAX_SAID:
                return
            said.add(text)
        self._notice(text)


def digest_of(envelope: bytes) -> str:
    """Return the sha256 of what an envelope's sender signed; a renewed certificate does not change it."""
    return hashlib.sha256(manifest_in(envelope)).hexdigest()
