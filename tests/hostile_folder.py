"""What hostile members do in a folder that all share as a bucket: they can write anywhere in it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from crad.federation.message import Manifest, Message
from crad.network.arrivals import RoundRange
from crad.network.ledger import OutgoingLedger
from crad.network.store.bucket import STATE, Bucket
from crad.network.store.objects import Store
from tests.hostile_garbage import bad_manifests, forged_envelope, forged_proof
from tests.hostile_member import KIND, Own

AGAIN_S = 0.3  # between two kinds of garbage
QUICK_S = 0.002
LOOKED_S = 0.2  # for everybody's first look
SLANDER_BYTES = 8 << 20
TREASURE = "outside"  # a folder beside the shared one, where nothing may be written


class Shared:
    """The shared folder in the hands of one member."""

    def __init__(self, own: Own, bucket: Bucket) -> None:
        self.own, self._bucket = own, bucket
        self.root = Path(own.agreement.exchange.removeprefix("file://"))
        self.treasure = own.folder / TREASURE

    def put(self, message: Message, *, latest: int | None = None) -> None:
        """A message with its body, and a state that says so."""
        round_index = Manifest.model_validate_json(message.manifest).round_index
        self._bucket.put_message(round_index, KIND, message, self.own.envelope(message))
        self.say(1, latest or round_index)

    def say(self, first: int, latest: int) -> None:
        self._bucket.put_state(RoundRange(first_round=first, latest_round=latest))

    def folder_of(self, number: int) -> Path:
        return self.root / self.own.agreement.hash[:16] / self.own.agreement.members[number].name

    def own_file(self, *parts: str) -> Path:
        """A path of our own, its folder made."""
        path = self.folder_of(self.own.number).joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def manifest_file(self, round_index: int) -> Path:
        return self.own_file(f"round-{round_index:05d}", f"{KIND}.manifest")

    def has_published(self, number: int, round_index: int) -> bool:
        return (self.folder_of(number) / f"round-{round_index:05d}" / f"{KIND}.manifest").exists()

    def agreement_file(self, number: int) -> Path:
        name = hashlib.sha256(self.own.agreement.name.encode()).hexdigest()[:16]
        return self.root / "agreements" / name / f"{self.own.agreement.members[number].name}.json"


@contextmanager
def opened(own: Own) -> Iterator[Shared]:
    """The shared folder, with a ledger of our own."""
    with closing(OutgoingLedger(own.home / "ledger.jsonl")) as ledger:
        yield Shared(own, Bucket(Store(own.agreement.exchange), own.agreement, own.identity, ledger))


def publish(own: Own) -> None:
    """As an honest member does, with a model that never learns."""
    with opened(own) as shared:
        own.is_ready()
        for round_index in own.rounds():
            shared.put(own.message(round_index))


# --- row 1


def claim_the_last(own: Own) -> None:
    """Sign that we have finished."""
    with opened(own) as shared:
        shared.say(own.last, own.last)
        own.is_ready()


def show_the_last(own: Own) -> None:
    """The same, with a genuine message of the last round to show."""
    with opened(own) as shared:
        shared.put(own.message(own.last))
        shared.say(own.last, own.last)
        own.is_ready()


# --- row 6


def come_and_go(own: Own) -> None:
    """Publish every other round."""
    with opened(own) as shared:
        own.is_ready()
        for round_index in own.rounds():
            if round_index % 2 == 1:
                shared.put(own.message(round_index))


def publish_late(own: Own) -> None:
    """Always when everybody has gone on without us."""
    with opened(own) as shared:
        own.is_ready()
        for round_index in own.rounds():
            while own.finished_by_all() < round_index:
                time.sleep(QUICK_S)
            shared.put(own.message(round_index))


# --- row 8


def plant_links(own: Own) -> None:
    """Put links where the honest ones write and read: to a file and a folder that are none of theirs."""
    first, second, third = own.honest
    with opened(own) as shared:
        secret, folder = shared.treasure / "secret.txt", shared.treasure / "folder"
        shared.folder_of(first).mkdir(parents=True)
        for name in (".state.writing", "state", "receipts.json", ".receipts.json.writing", "probe"):
            (shared.folder_of(first) / name).symlink_to(secret)
        (shared.folder_of(first) / "round-00001").mkdir()
        (shared.folder_of(first) / "round-00001" / f"{KIND}.manifest").symlink_to(secret)
        shared.folder_of(second).symlink_to(folder)  # it cannot publish, and must not do it elsewhere
        shared.agreement_file(third).parent.mkdir(parents=True)
        shared.agreement_file(third).symlink_to(secret)
        shared.own_file("state").symlink_to(secret)
        shared.own_file("receipts.json").symlink_to("/dev/zero")
        shared.manifest_file(1).symlink_to("/dev/zero")
        shared.own_file("round-00002").symlink_to(shared.folder_of(third) / "round-00002")  # another's as ours
        own.is_ready()


def plant_pipes(own: Own) -> None:
    """Put pipes where files should be, our own and an honest member's; opening one would wait for ever."""
    with opened(own) as shared:
        for path in (shared.own_file("state"), shared.own_file("receipts.json"), shared.manifest_file(1)):
            os.mkfifo(path)
        third = shared.folder_of(own.honest[2])
        third.mkdir(parents=True, exist_ok=True)
        for name in ("state", "receipts.json"):
            os.mkfifo(third / name)
        own.is_ready()
        message = own.message(2)
        body = f"{KIND}-{Manifest.model_validate_json(message.manifest).sha256[:16]}.safetensors"
        shared.manifest_file(2).write_bytes(own.envelope(message))
        os.mkfifo(shared.manifest_file(2).with_name(body))


# --- row 9


def overflow(own: Own) -> None:
    """Weights that are finite, outputs that are not."""
    with opened(own) as shared:
        own.is_ready()
        for round_index in own.rounds():
            shared.put(own.message(round_index, is_huge=True))


def sign_two(own: Own) -> None:
    """When the first of the others has a message, put another one in its place.

    Only when everybody has looked once: from then on each looks again in a moment of its own.
    """
    with opened(own) as shared:
        own.is_ready()
        for round_index in own.rounds():
            first, second = (own.message(round_index, variant) for variant in (0, 1))
            shared.put(second)
            shared.manifest_file(round_index).unlink()  # its body stays
            while not all(shared.has_published(number, round_index) for number in own.honest):
                time.sleep(QUICK_S)
            time.sleep(LOOKED_S)
            shared.put(first)
            while own.finished() < round_index and not any(own.has_received(one, first) for one in own.honest):
                time.sleep(QUICK_S)
            _replace(shared.manifest_file(round_index), own.envelope(second))


def slander(own: Own) -> None:
    """Forgeries as others' messages, proofs that are none, and so many that they take megabytes."""
    names = [member.name for member in own.agreement.members if member.name != own.identity.name]
    with opened(own) as shared:
        own.is_ready()
        for round_index in own.rounds():
            shown = [
                {
                    "round_index": index,
                    "member": name,
                    "kind": KIND,
                    "envelope": forged_envelope(own, name, index).decode(),
                }
                for name in names
                for index in {max(1, round_index - 1), round_index}
            ]
            shown *= max(1, SLANDER_BYTES // len(json.dumps(shown)))
            proofs = {name: forged_proof(own, name).decode() for name in names}
            raw = json.dumps({"receipts": shown, "proofs": proofs}).encode()
            _replace(shared.own_file("receipts.json"), raw)
            shared.put(own.message(round_index))


def leave_garbage(own: Own) -> None:
    """Another kind of garbage every moment: as manifests, as our state, as receipts and as our agreement."""
    with opened(own) as shared:
        own.is_ready()
        for count in itertools.count():
            if own.is_over():
                return
            round_index = min(own.finished() + 1, own.turn[-1])
            garbage = bad_manifests(own, round_index)
            raw = garbage[count % len(garbage)]
            _replace(shared.manifest_file(round_index), raw)
            _replace(shared.own_file("state"), raw.replace(f'"{KIND}"'.encode(), f'"{STATE}"'.encode()))
            _replace(shared.own_file("receipts.json"), raw)
            _replace(shared.agreement_file(own.number), raw)
            time.sleep(AGAIN_S)


def announce_too_much(own: Own) -> None:
    """In odd rounds a terabyte, signed; in even ones the truth, beside a body of a terabyte of nothing."""
    with opened(own) as shared:
        own.is_ready()
        for round_index in own.rounds():
            is_odd = round_index % 2 == 1
            message = own.manifest(round_index, size=2**40) if is_odd else own.message(round_index)
            sha256 = Manifest.model_validate_json(message.manifest).sha256
            body = shared.manifest_file(round_index).with_name(f"{KIND}-{sha256[:16]}.safetensors")
            body.write_bytes(message.body)
            os.truncate(body, 2**40)  # sparse: it takes no room; before anybody knows of the true one
            _replace(shared.manifest_file(round_index), own.envelope(message))
            shared.say(1, round_index)


def _replace(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(raw)
    beside.replace(path)
