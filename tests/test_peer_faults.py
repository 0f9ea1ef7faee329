"""One real member's whole part in a federation while another has a fault: it finishes, and says who and why."""

from __future__ import annotations

import enum
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from crad.api import Hooks
from crad.engines.serial import SerialEngine
from crad.errors import ConfigError
from crad.federation.exchange import MemoryExchange
from crad.federation.message import Manifest, Message, pack, read_state
from crad.federation.roster import Roster
from crad.federation.rounds import Rounds
from crad.federation.world import build_world
from crad.methods import resolve_method
from crad.network import fetch, https_exchange
from crad.network.agreement import Agreement, make_agreement
from crad.network.envelope import seal
from crad.network.identity import load_identity
from crad.network.site import read_site
from crad.node import joining
from tests import town
from tests.clinics import SETTINGS, Clinics, experiment, found_clinics
from tests.town import Organisation

ROUNDS = 2
OTHER, FAULTY = 1, 2  # the one under test is member 0
KIND = "snapshot"
LARGEST = 1 << 20
Messages = dict[tuple[int, int], Message]  # by round and sender


class Fault(enum.Enum):
    """What is wrong with a member, and what of it the one under test must say."""

    NONE = ""
    NAN_WEIGHTS = "non-finite value"
    ANOTHER_ARCHITECTURE = "peer 2 sent architecture"
    WRONG_ROUND = "round 3; expected 'snapshot' of round"
    REPLAYED = "round 1; expected 'snapshot' of round 2"
    CORRUPTED = "does not match its sha256"
    OVERSIZED = f"the agreement allows {LARGEST}"
    STALE_AGREEMENT = "has another agreement: settings.lr: 0.05 here, 0.06 there"
    SLOW = "it has not published in time"
    SILENT = "in time"
    ABSENT = "it cannot be reached"


# Nothing but the deadline ends these; the one with another agreement never fetches what is published last.
WAITED_FOR = (Fault.SLOW, Fault.SILENT, Fault.ABSENT, Fault.STALE_AGREEMENT)
AFTER_ARRIVAL = (Fault.NAN_WEIGHTS, Fault.ANOTHER_ARCHITECTURE)  # the bytes are as signed; what they say is wrong


class Kept(MemoryExchange):
    """Remembers every message of a simulation."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: Messages = {}

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        self.messages[round_index, sender] = Message(message.manifest, bytes(message.body))
        super().publish(round_index, sender=sender, kind=kind, message=message)


@pytest.fixture(scope="module")
def messages(tmp_path_factory) -> Messages:
    """What the members of a healthy federation send."""
    world, kept = build_world(experiment(rounds=ROUNDS)), Kept()
    method = resolve_method(world.experiment.method, world.experiment.method_settings)
    roster = Roster(world, method.roster(world), tmp_path_factory.mktemp("simulated"))
    with closing(SerialEngine(world, method)) as engine:
        list(Rounds(method, roster, exchange=kept, engine=engine).run())
    return kept.messages


class Neighbour:
    """A member that sends what the simulation sent, or what its fault makes of that."""

    def __init__(self, organisation: Organisation, messages: Messages, fault: Fault) -> None:
        self._at_work, self._messages, self._fault = organisation, messages, fault
        self._number = organisation.number
        if fault is Fault.CORRUPTED:
            organisation.server.fault = town.Fault.CORRUPTED

    def publish(self, round_index: int) -> None:
        """Its message of a round; the slow one comes with the last round's when the others are at the next."""
        if self._fault is Fault.SLOW:
            round_index -= 1
        if not 1 <= round_index <= ROUNDS:
            return
        message = self._faulty(round_index)
        envelope = seal(message.manifest, kind=KIND, identity=self._at_work.identity, agreement=self._at_work.agreement)
        # Not through its exchange, which would refuse to send nonsense.
        self._at_work.server.outbox.publish(round_index, KIND, envelope=envelope, message=message)
        self._at_work.server.announce()

    def fetch(self, round_index: int) -> list[int]:
        """Who is there, as seen from here: the one under test must serve to its end."""
        return list(self._at_work.collect(0, round_index=round_index, deadline_s=30.0, quorum=1)[0])

    def _faulty(self, round_index: int) -> Message:
        if self._fault is Fault.REPLAYED:
            return self._messages[1, self._number]
        message = self._messages[round_index, self._number]
        manifest = Manifest.model_validate_json(message.manifest)
        match self._fault:
            case Fault.NAN_WEIGHTS:
                tensors = read_state(message.body)
                next(value for value in tensors.values() if value.is_floating_point()).view(-1)[0] = float("nan")
                spoilt = pack(tensors, kind=KIND, peer=self._number, round_index=round_index)
                made = Manifest.model_validate_json(spoilt.manifest)
                manifest = manifest.model_copy(update={"sha256": made.sha256})
                message = Message(message.manifest, bytes(spoilt.body))
            case Fault.ANOTHER_ARCHITECTURE:
                manifest = manifest.model_copy(update={"architecture": "cnn6@0.25"})
            case Fault.WRONG_ROUND:
                manifest = manifest.model_copy(update={"round_index": ROUNDS + 1})
            case Fault.OVERSIZED:
                manifest = manifest.model_copy(update={"size": LARGEST + 1})
        return Message(manifest.model_dump_json(exclude_none=True).encode(), message.body)


@contextmanager
def neighbours(clinics: Clinics, messages: Messages, fault: Fault) -> Iterator[list[Neighbour]]:
    """The healthy one and, unless nobody answers in its place, the one with the fault."""
    with ExitStack() as opened:
        if fault is Fault.SILENT:  # takes the connection and never says a word
            host, port = str(clinics.agreement.members[FAULTY].address).split(":")
            opened.enter_context(socket.create_server((host, int(port))))
        there = []
        for number in (OTHER,) if fault in (Fault.SILENT, Fault.ABSENT) else (OTHER, FAULTY):
            own = fault if number == FAULTY else Fault.NONE
            agreement = _stale(clinics.agreement) if own is Fault.STALE_AGREEMENT else clinics.agreement
            organisation = Organisation(
                load_identity(clinics.site(number).parent / "keys"),
                agreement,
                clinics.folder / "neighbours",
                listen=str(agreement.members[number].address),
            )
            opened.callback(organisation.close)
            organisation.meet(agreement)
            there.append(Neighbour(organisation, messages, own))
        yield there


def _stale(agreement: Agreement) -> Agreement:
    table = agreement.model_dump(mode="json", exclude_none=True)
    return make_agreement({**table, "settings": {**table["settings"], "lr": 0.06}})


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    def no_onnx(*args: object) -> None:
        raise ConfigError("not in this test")

    monkeypatch.setattr(joining, "export_onnx", no_onnx)  # seconds each time, and another test's matter
    monkeypatch.setattr(fetch, "PAUSE_S", 0.05)
    monkeypatch.setattr(https_exchange, "HELLO_S", 1.0)
    monkeypatch.setattr(https_exchange, "LEAVE_S", 0.5)


def take_part(folder: Path, messages: Messages, fault: Fault) -> tuple[Clinics, list[str]]:
    """The whole part of member 0; what it said on the way."""
    deadline_s = 3.0 if fault in WAITED_FOR else 30.0
    settings = {**SETTINGS, "rounds": ROUNDS}
    clinics = found_clinics(folder, deadline_s=deadline_s, max_snapshot_bytes=LARGEST, settings=settings)
    notices: list[str] = []
    with neighbours(clinics, messages, fault) as there:

        def on_round(record) -> None:
            for neighbour in there:
                neighbour.publish(record["round"] + 1)
                if record["round"] == ROUNDS and fault is not Fault.STALE_AGREEMENT:
                    assert neighbour.fetch(ROUNDS) == [0]

        for neighbour in there:
            neighbour.publish(1)
        joining.join(
            clinics.agreement,
            read_site(clinics.site(0)),
            hooks=Hooks(on_round=on_round, on_notice=notices.append),
        )
    return clinics, notices


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
def test_a_member_with_a_fault_is_named_and_the_others_finish(fault, messages, tmp_path):
    clinics, notices = take_part(tmp_path, messages, fault)
    records = [json.loads(line) for line in (clinics.state(0) / "rounds.jsonl").read_text().splitlines()]
    outcome = json.loads((clinics.state(0) / "participant.json").read_text())
    page = (clinics.state(0) / "report.html").read_text()
    assert [record["round"] for record in records] == [*range(1, ROUNDS + 1)]
    assert "clinic-1" in {row["member"] for row in outcome["trusted"]}, "the healthy one has taught"
    assert "clinic-1" not in {**outcome["missing"], **outcome["refused"]}

    refused = [record["clients"][0]["notes"].get("refused", {}) for record in records]
    missing = [record["missing"].get("0", []) for record in records]
    if fault is Fault.NONE:
        assert (refused, missing) == ([{}] * ROUNDS, [[]] * ROUNDS)
        assert (outcome["missing"], outcome["refused"]) == ({}, {})
        return
    if fault in AFTER_ARRIVAL:
        assert [list(reasons) for reasons in refused] == [["2"]] * ROUNDS
        assert all(fault.value in reason for reason in outcome["refused"]["clinic-2"])
        assert "Not used from clinic-2" in page
        assert "clinic-2" not in {row["member"] for row in outcome["trusted"]}
        return
    first = 2 if fault is Fault.REPLAYED else 1  # its first one was new
    assert missing == [[2] if index >= first else [] for index in range(1, ROUNDS + 1)]
    assert outcome["missing"] == {"clinic-2": ROUNDS + 1 - first}
    assert f"did not come in time or was refused: clinic-2 {ROUNDS + 1 - first}." in page
    assert any("clinic-2" in notice and fault.value in notice for notice in notices), notices
    if fault not in (Fault.SLOW, Fault.SILENT, Fault.ABSENT):  # these sent nothing that could be refused
        assert any(fault.value in reason for reason in outcome["refused"]["clinic-2"])
        assert "Not used from clinic-2" in page
    assert not any("that it needs" in notice for notice in notices), "the quorum was there"
