"""What lies where in a store that members share, and who has signed for it.

`<federation>/<member>/round-00012/<kind>.manifest` is a signed envelope, the body lies beside it under a name of its
content; `<federation>/<member>/state` says, signed, which rounds there are; `<federation>/<member>/receipts.json` what
the member received, with everybody's signatures; `agreements/<name>/<member>.json` what it has agreed on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from crad.errors import SnapshotError, printable
from crad.federation.exchange import KEPT_ROUNDS
from crad.federation.message import Manifest, Message
from crad.files import full_disk
from crad.network.agreement import Agreement, differences
from crad.network.arrivals import Announced, RoundNumber, RoundRange, ShortName, check_announced, check_rounds
from crad.network.envelope import max_envelope_bytes, seal
from crad.network.equivocation.proof import max_proof_bytes
from crad.network.equivocation.witness import MessageKey
from crad.network.identity import Identity
from crad.network.json_input import load_object
from crad.network.ledger import OutgoingLedger
from crad.network.store.guarded_store import Objects
from crad.network.store.objects import CHUNK_BYTES, SpoiltError, StoreError

STATE = ".state"  # kinds of our own begin with a dot: no method's kind does
MAX_AGREEMENT_BYTES = 4 << 20
MAX_LINES = 5  # of differences in one message
RECEIPT_ROUNDS = 2
MAX_KINDS = 4  # of messages in a round
MAX_PROOFS = 4  # told at once


class Receipt(BaseModel):
    """An envelope that a member received from another one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    round_index: RoundNumber
    member: ShortName
    kind: ShortName
    envelope: str


class Receipts(BaseModel):
    """What a member says that it received, and its proofs by member. Nobody signs this: every part proves itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    receipts: list[Receipt]
    proofs: dict[ShortName, str]


def parse_receipts(raw: bytes, *, most: int) -> Receipts:
    """Return what a member says that it received, no more than so many receipts; ValueError at the first fault."""
    table = load_object(raw, keys=Receipts.model_fields.keys())
    receipts, proofs = table.get("receipts"), table.get("proofs")
    if not isinstance(receipts, list) or not isinstance(proofs, dict) or max(len(receipts), len(proofs)) > most:
        raise ValueError("these are no receipts")
    return Receipts(receipts=[Receipt.model_validate(entry) for entry in receipts], proofs=proofs)


class Bucket:
    """The federation's part of a store. Reading is by any member's number; writing is our own alone."""

    def __init__(self, store: Objects, agreement: Agreement, identity: Identity, outgoing: OutgoingLedger) -> None:
        self.store = store
        self._agreement, self._identity, self._outgoing = agreement, identity, outgoing
        self._is_introduced = False

    def announced(self, number: int, round_index: int, kind: str) -> Announced | None:
        """Return what a member announces for this round; None if nothing is there, refused if it is not its own."""
        envelope = self._read_envelope(f"{self._round_folder(number, round_index)}/{kind}.manifest")
        if envelope is None:
            return None
        return check_announced(envelope, sender=number, round_index=round_index, kind=kind, agreement=self._agreement)

    def body_path(self, number: int, announced: Announced, kind: str) -> str:
        """Return where an announced body should lie."""
        folder = self._round_folder(number, announced.manifest.round_index)
        return f"{folder}/{_body_name(kind, announced.manifest)}"

    def rounds_of(self, number: int) -> RoundRange | None:
        """Return which rounds a member has signed for; None if it has not."""
        envelope = self._read_envelope(f"{self._folder_of(number)}/state")
        if envelope is None:
            return None
        return check_rounds(envelope, sender=number, kind=STATE, agreement=self._agreement)

    def compare_agreements(self, number: int) -> None:
        """Refuse a member that has put up another agreement than ours, with what differs.

        Nobody signs this file, and nothing but the words of a refusal depends on it.
        """
        name = self._agreement.members[number].name
        raw = self.store.read(self._agreement_path(name), most=MAX_AGREEMENT_BYTES)
        if raw is None or raw == self._agreement.text:
            return
        try:
            table = json.loads(raw)
        except (ValueError, RecursionError):
            table = None
        if not isinstance(table, dict):
            raise SnapshotError(f"what lies in the store as the agreement of {name} is none")
        lines = differences(self._agreement, table)[:MAX_LINES]
        if lines:
            raise SnapshotError(f"{name} has another agreement: {'; '.join(lines)}")

    def signed_before(self, round_index: int, kind: str) -> bytes | None:
        """Return the envelope of our own message of this round, if it lies there with its body."""
        try:
            envelope = self._read_envelope(f"{self._round_folder(self._own, round_index)}/{kind}.manifest")
            if envelope is None:
                return None
            own = check_announced(
                envelope, sender=self._own, round_index=round_index, kind=kind, agreement=self._agreement
            )
        except (SnapshotError, SpoiltError):
            return None  # somebody else's doing
        is_whole = self.store.size(self.body_path(self._own, own, kind)) == own.manifest.size
        return envelope if is_whole else None

    def receipts_of(self, number: int) -> Receipts | None:
        """Return what a member says that it received; None if it says nothing, refused if that makes no sense."""
        places = len(self._agreement.members) * RECEIPT_ROUNDS * MAX_KINDS
        most = places * 2 * max_envelope_bytes(self._agreement) + MAX_PROOFS * max_proof_bytes(self._agreement)
        raw = self.store.read(f"{self._folder_of(number)}/receipts.json", most=most)
        try:
            return None if raw is None else parse_receipts(raw, most=places)
        except ValueError as error:
            raise SnapshotError(f"{self._agreement.members[number].name} tells nonsense: {printable(error)}") from error

    def put_receipts(self, received: Mapping[int, Mapping[MessageKey, bytes]], proofs: Mapping[str, bytes]) -> None:
        """Put up what we received, so that the others can compare it with what they did, and our proofs."""
        receipts = [
            Receipt(round_index=index, member=name, kind=kind, envelope=envelope.decode())
            for index, places in received.items()
            for (name, kind), envelope in places.items()
        ]
        told = {name: raw.decode() for name, raw in sorted(proofs.items())[:MAX_PROOFS]}
        content = Receipts(receipts=receipts, proofs=told)
        raw = content.model_dump_json().encode()
        self._put(f"{self._folder_of(self._own)}/receipts.json", raw, what="receipts")

    def put_message(self, round_index: int, kind: str, message: Message, envelope: bytes) -> None:
        """Put up our own message: first the body, then the envelope that announces it."""
        folder = self._round_folder(self._own, round_index)
        manifest = Manifest.model_validate_json(message.manifest)
        about = {"round_index": round_index, "kind": kind}
        body_path = f"{folder}/{_body_name(kind, manifest)}"
        self._put(body_path, message.body, what="snapshot", sha256=manifest.sha256, **about)
        self._put(f"{folder}/{kind}.manifest", envelope, what="manifest", **about)

    def put_state(self, rounds: RoundRange) -> None:
        """Say where we stand: who waits for something older need not, who comes back knows where the others are."""
        if not self._is_introduced:
            self._put(self._agreement_path(self._identity.name), self._agreement.text, what="agreement")
            self._is_introduced = True
        state = rounds.model_dump_json().encode()
        envelope = seal(state, kind=STATE, identity=self._identity, agreement=self._agreement)
        self._put(f"{self._folder_of(self._own)}/state", envelope, what="state", round_index=rounds.latest_round)

    def remove_old(self, round_index: int) -> None:
        """Take away our own rounds that nobody asks for any more."""
        folder = self._folder_of(self._own)
        for name in self.store.names(folder):
            number = name.removeprefix("round-")
            if name.startswith("round-") and number.isdecimal() and int(number) <= round_index - KEPT_ROUNDS:
                self.store.remove(f"{folder}/{name}")

    def probe(self, *, size: int = 1) -> tuple[float, float]:
        """Write, list, read and remove so many bytes: seconds of writing and reading; StoreError if one fails."""
        folder, name, content = self._folder_of(self._own), "probe", bytes(size)
        began = time.perf_counter()
        self._put(f"{folder}/{name}", content, what="probe")
        written = time.perf_counter()
        if self.store.read(f"{folder}/{name}", most=size + 1) != content:
            raise StoreError(f"{self.store.shown} does not give back what was put there")
        read = time.perf_counter()
        if name not in self.store.names(folder):
            raise StoreError(f"{self.store.shown} does not list what was put there: allow listing")
        self.store.remove(f"{folder}/{name}")
        return written - began, read - written

    @property
    def _own(self) -> int:
        return self._agreement.number(self._identity.name)

    def _read_envelope(self, path: str) -> bytes | None:
        # One byte more than allowed is enough to be refused.
        return self.store.read(path, most=max_envelope_bytes(self._agreement) + 1)

    def _put(self, path: str, content: bytes | memoryview, *, what: str, **about: Any) -> None:  # noqa: ANN401
        self.store.write(path, self._leaving(memoryview(content), what=what, **about))

    def _leaving(self, content: memoryview, *, what: str, **about: Any) -> Iterator[memoryview]:  # noqa: ANN401
        """Yield the content a megabyte at a time, each written into the ledger before it leaves."""
        for first in range(0, len(content), CHUNK_BYTES):
            chunk = content[first : first + CHUNK_BYTES]
            try:
                self._outgoing.record(to=self.store.shown, what=what, size=len(chunk), first=first, **about)
            except OSError as error:
                raise full_disk(self._outgoing.path.parent, error) from error
            yield chunk

    def _folder_of(self, number: int) -> str:
        return f"{self._agreement.hash[:16]}/{self._agreement.members[number].name}"

    def _round_folder(self, number: int, round_index: int) -> str:
        return f"{self._folder_of(number)}/round-{round_index:05d}"

    def _agreement_path(self, name: str) -> str:
        # By the federation's name, which a new agreement keeps: others in the same store are none of our business.
        return f"agreements/{hashlib.sha256(self._agreement.name.encode()).hexdigest()[:16]}/{name}.json"


def _body_name(kind: str, manifest: Manifest) -> str:
    # By its content: a round that is published again never shows one manifest beside the other's body.
    return f"{kind}-{manifest.sha256[:16]}.safetensors"
