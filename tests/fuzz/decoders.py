"""Everything that reads a peer's bytes, each as a function of bytes that may raise SnapshotError and nothing else."""

from __future__ import annotations

import base64
import functools
import json
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import ValidationError

from crad.errors import SnapshotError
from crad.federation.message import Message, Statistics, pack, parse_manifest, read_body
from crad.network.agreement import Agreement, differences
from crad.network.arrivals import check_announced, check_rounds
from crad.network.certificate_check import find_member
from crad.network.envelope import open_envelope, seal
from crad.network.equivocation.proof import make_proof, verify_proof
from crad.network.equivocation.witness import Witness
from crad.network.identity import Identity
from crad.network.store.bucket import Receipts
from tests.organisations import Authority, agreed, make_identities

SENDER, ROUND, KIND, STATE = 1, 4, "snapshot", ".state"
SENT = {"layer.weight": torch.arange(6.0).view(2, 3), "layer.bias": torch.zeros(2), "seen": torch.tensor(3)}


@functools.cache
def federation() -> tuple[Agreement, Identity]:
    """An agreement of three, and the sender among them; the same keys for a whole process."""
    with tempfile.TemporaryDirectory() as folder:
        identities = make_identities(Path(folder))
        return agreed(identities), identities[SENDER]


@functools.cache
def with_authority() -> tuple[Agreement, Identity]:
    """The same with certificates of an authority."""
    authority = Authority()
    with tempfile.TemporaryDirectory() as folder:
        identities = [authority.issue(identity) for identity in make_identities(Path(folder))]
        return agreed(identities, authority=authority.pem), identities[SENDER]


@functools.cache
def genuine() -> Message:
    """What the sender would send."""
    third = (1 / 3, 0.0, 1.0)
    statistics = Statistics(counts=(5, 0, 2.5), accuracies=third, cross_entropies=third)
    return pack(SENT, kind=KIND, peer=SENDER, round_index=ROUND, architecture="cnn6@0.125", statistics=statistics)


def sealed(content: bytes, *, kind: str = KIND) -> bytes:
    agreement, identity = federation()
    return seal(content, kind=kind, identity=identity, agreement=agreement)


def read_envelope(data: bytes) -> None:
    agreement, _ = federation()
    opened = open_envelope(data, sender=agreement.members[SENDER], kind=KIND, agreement=agreement)
    assert opened == genuine().manifest, "only what the sender signed"


def read_announcement(data: bytes) -> None:
    """Behind a good signature: the sender itself is the one who lies."""
    agreement, _ = federation()
    check_announced(sealed(data), sender=SENDER, round_index=ROUND, kind=KIND, agreement=agreement)


def read_certificate(data: bytes) -> None:
    """Shown in an envelope and on a connection, where an authority vouches: no pin is in the way of the parser."""
    authority, identity = with_authority()
    envelope = json.loads(seal(b"", kind=KIND, identity=identity, agreement=authority))
    envelope["certificate"] = base64.b64encode(data).decode()
    raw = json.dumps(envelope).encode()
    with suppress(SnapshotError):
        open_envelope(raw, sender=authority.members[SENDER], kind=KIND, agreement=authority)
    find_member(data, agreement=authority)
    assert data == identity.certificate.public_bytes(Encoding.DER), "only what the authority issued"


def read_rounds(data: bytes) -> None:
    agreement, _ = federation()
    check_rounds(sealed(data, kind=STATE), sender=SENDER, kind=STATE, agreement=agreement)


def read_manifest(data: bytes) -> None:
    parse_manifest(data, sender=SENDER, round_index=ROUND, kind=KIND)


def read_tensors(data: bytes) -> None:
    read_body(Message(b"", data), sender=SENDER, expected=SENT)


def read_agreement(data: bytes) -> None:
    """A peer's agreement is any JSON; what differs must come out as a few printable lines."""
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(table, dict):
        lines = differences(federation()[0], table)
        assert len(lines) <= 21
        assert all(line.isprintable() for line in lines)


def read_proof(data: bytes) -> None:
    proven = verify_proof(data)
    assert proven.member == federation()[1].name, "only against whoever signed both"


def read_receipts(data: bytes) -> None:
    """What a member says that it received: it may prove something against nobody but who signed two."""
    agreement, _ = federation()
    try:
        receipts = Receipts.model_validate_json(data)
    except ValidationError:
        return
    said: list[str] = []
    witness = Witness(agreement, 0, Path(tempfile.gettempdir()) / "nowhere", notice=said.append)
    own = check_announced(sealed(genuine().manifest), sender=SENDER, round_index=ROUND, kind=KIND, agreement=agreement)
    witness.note(SENDER, own, KIND)
    for one in receipts.receipts:
        witness.examine(one.round_index, one.member, one.kind, one.envelope.encode(), teller="clinic-c")
    for raw in receipts.proofs.values():
        witness.take_proof(raw.encode(), teller="clinic-c")
    assert witness.proven() == []
    assert all(line.isprintable() for line in said)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "envelope": read_envelope,
    "certificate": read_certificate,
    "announcement": read_announcement,
    "rounds": read_rounds,
    "manifest": read_manifest,
    "tensors": read_tensors,
    "agreement": read_agreement,
    "proof": read_proof,
    "receipts": read_receipts,
}


def seeds() -> dict[str, bytes]:
    """A good input for every target, to begin from."""
    message = genuine()
    rounds = json.dumps({"first_round": 1, "latest_round": 4}).encode()
    return {
        "envelope": sealed(message.manifest),
        "certificate": with_authority()[1].certificate.public_bytes(Encoding.DER),
        "announcement": message.manifest,
        "rounds": rounds,
        "manifest": message.manifest,
        "tensors": bytes(message.body),
        "agreement": federation()[0].text,
        "proof": make_proof(federation()[0], (sealed(message.manifest), sealed(_another().manifest))),
        "receipts": _receipts(),
    }


def _another() -> Message:
    return pack(SENT, kind=KIND, peer=SENDER, round_index=ROUND, architecture="cnn6@0.25")


def _receipts() -> bytes:
    receipt = {"round_index": ROUND, "member": federation()[1].name, "kind": KIND}
    shown = {**receipt, "envelope": sealed(genuine().manifest).decode()}
    return json.dumps({"receipts": [shown], "proofs": {federation()[1].name: "{}"}}).encode()


def survive(name: str, data: bytes) -> bool:
    """Whether the input was taken; refused in one printable line is the other thing that may happen."""
    try:
        TARGETS[name](data)
    except SnapshotError as refusal:
        line = str(refusal)
        assert line.isprintable(), line
        assert len(line) < 1000, line
        return False
    return True


# Numbers, depths and texts at which decoders stumble.
SPLINTERS = (
    *(b"0", b"-1", b"1e999", b"NaN", b"9" * 30, b"9" * 5000, b"18446744073709551615", b"9223372036854775808"),
    *(
        b"null",
        b"true",
        b'""',
        b"[]",
        b"{}",
        b"[" * 3000,
        b'{"a":' * 2000,
        b"\\ud800",
        b"\xff\xfe",
        b"\x00",
        b"\x1b[2J",
    ),
    *(b'"__metadata__":', b'"BF16"', b'"dtype":[]', b'"shape":[0,-1]', b'"data_offsets":[0]', b"\xff" * 8),
)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with one to four things wrong."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place, stop = sorted(rng.randint(0, len(content)) for _ in range(2))
        stop = min(stop, place + 40)
        match rng.randrange(6):
            case 0 if content:
                content[min(place, len(content) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                del content[place:stop]
            case 2:
                content[place:place] = content[place:stop]
            case 3:
                content[place:stop] = rng.choice(SPLINTERS)
            case 4:
                content[place:place] = rng.choice(SPLINTERS)
            case _:
                content[place:stop] = rng.randbytes(stop - place)
    return bytes(content)
