"""Members who do harm: a dictionary of behaviours. Their keys are genuine, and they know everything that happens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx

from crad.federation.message import Message
from crad.network.arrivals import Announced
from crad.network.envelope import seal
from crad.network.https.client import Answer, ReceiptDigests
from crad.network.identity import Identity
from tests.simulation.network import TOTAL_S, gone

if TYPE_CHECKING:
    from tests.simulation.schedule import World

KIND = "snapshot"


class Hostile:
    """One of them, with one behaviour; it answers each member as it likes."""

    is_up = True

    def __init__(self, world: World, number: int, behaviour: str, rng: random.Random) -> None:
        self.world, self.number, self.behaviour, self._rng = world, number, behaviour, rng
        self.last = world.agreement.rounds

    @property
    def identity(self) -> Identity:
        return self.world.identities[self.number]

    def look(self, asker: int, round_index: int, kind: str) -> Answer | None:
        name = self.behaviour
        if name == "random":  # one for each of the others and each round, so that a question has one answer
            draw = random.Random(f"{self.world.seed} {self.number} {asker} {round_index}")
            name = draw.choice([one for one in BEHAVIOURS if one != "random"])
        return BEHAVIOURS[name](self, asker, round_index)

    def envelope(self, round_index: int, variant: int = 0) -> bytes:
        """A genuine envelope of its own, for any round it likes."""
        message = self.message(round_index, variant)
        return seal(message.manifest, kind=KIND, identity=self.identity, agreement=self.world.agreement)

    def message(self, round_index: int, variant: int = 0) -> Message:
        return self.world.message(self.number, round_index, variant)

    def body(self, asker: int, announced: Announced, round_index: int, kind: str) -> bytes:
        if self.behaviour == "cuts the body":
            raise httpx.ReadError("the line has ended")
        for variant in (0, 1):
            message = self.message(announced.manifest.round_index, variant)
            if message.manifest == announced.raw:
                return bytes(message.body)
        return b"nothing of the kind"

    def receipts(self, asker: int, round_index: int) -> ReceiptDigests | None:
        """It slanders everybody: other hashes, and proofs that it does not have."""
        names = [member.name for member in self.world.agreement.members]
        lies = {name: {KIND: f"{self._rng.getrandbits(256):064x}"} for name in names}
        return ReceiptDigests(received=lies, proofs=names)

    def receipt(self, asker: int, round_index: int, name: str, kind: str) -> bytes | None:
        """What it shows of others: its own signature under their name, an older message of theirs, or rubbish."""
        number = self.world.agreement.number(name)
        old = self.world.published.get((number, max(1, round_index - 1)))
        forged = self.envelope(round_index).replace(self.identity.name.encode(), name.encode())
        return self._rng.choice([forged, old, b"{}", None])

    def proof(self, asker: int, name: str) -> bytes | None:
        return self._rng.choice([None, b"{}", b'{"crad_proof": 1}'])


def _serves_anything(one: Hostile, asker: int, round_index: int) -> Answer | None:
    return Answer(200, one.envelope(round_index))


def _claims_and_shows_the_last(one: Hostile, asker: int, round_index: int) -> Answer | None:
    return Answer(200, one.envelope(one.last)) if round_index == one.last else gone(one.last, one.last)


def _claims_the_last(one: Hostile, asker: int, round_index: int) -> Answer | None:
    return None if round_index == one.last else gone(one.last, one.last)


def _says_nothing(one: Hostile, asker: int, round_index: int) -> Answer | None:
    one.world.clock.sleep(TOTAL_S)
    raise httpx.ReadTimeout("dripped")


def _publishes_late(one: Hostile, asker: int, round_index: int) -> Answer | None:
    """When somebody honest has gone on without it, never before."""
    is_late = any(number not in one.world.hostile and index > round_index for number, index in one.world.published)
    return Answer(200, one.envelope(round_index)) if is_late else None


def _signs_two(one: Hostile, asker: int, round_index: int) -> Answer | None:
    return Answer(200, one.envelope(round_index, variant=asker % 2))


def _replays(one: Hostile, asker: int, round_index: int) -> Answer | None:
    return Answer(200, one.envelope(1))


def _shows_anothers(one: Hostile, asker: int, round_index: int) -> Answer | None:
    others = [raw for (number, _), raw in one.world.published.items() if number != one.number]
    return Answer(200, others[0]) if others else Answer(500, b"")


def _comes_and_goes(one: Hostile, asker: int, round_index: int) -> Answer | None:
    return Answer(200, one.envelope(round_index)) if round_index % 3 == 1 else None


BEHAVIOURS: dict[str, Callable[[Hostile, int, int], Answer | None]] = {
    "serves anything": _serves_anything,
    "claims the last round and shows it": _claims_and_shows_the_last,
    "claims the last round": _claims_the_last,
    "says nothing": _says_nothing,
    "publishes late": _publishes_late,
    "signs two": _signs_two,
    "replays": _replays,
    "shows another's": _shows_anothers,
    "comes and goes": _comes_and_goes,
    "cuts the body": _serves_anything,
    "random": _serves_anything,  # drawn anew for each question
}
