"""Members with one fault each, as processes of their own: real servers and real clients, real TLS on loopback.

They send what a healthy federation sent in simulation, or what their fault makes of that. None of them learns.
"""

from __future__ import annotations

import enum
import os
import socket
import ssl
import threading
import time
from pathlib import Path

from crad.federation.message import Manifest, Message, pack, read_state
from crad.network.agreement import Agreement, make_agreement, read_agreement
from crad.network.envelope import seal
from crad.network.https import endpoints
from crad.network.https.server import SnapshotServer
from crad.network.identity import Identity, create_identity, load_identity
from tests import town
from tests.clinics import Clinics, Forked
from tests.organisations import Authority
from tests.town import Organisation

ROUNDS = 2
KIND = "snapshot"
LARGEST = 1 << 20  # bytes of a snapshot, as agreed
PIECE_BYTES = 1024  # in place of a megabyte: the snapshots of a test are small
UNDER_TEST, OTHER, FAULTY = 0, 1, 2


class Fault(enum.Enum):
    """What is wrong with one of three members, or with the disk of the one that is looked at."""

    NONE = "nothing"
    KILLED = "killed in the middle of a transfer"
    RESTARTED = "killed in the middle of a transfer, and there again"
    SLOW = "sends so slowly that the deadline passes"
    LATE = "answers, and publishes nothing"
    SILENT = "takes connections and never says a word"
    AWAY = "nobody is there"
    TRUNCATED = "a byte less than announced"
    CORRUPTED = "a bit flipped on the way"
    WRONG_ROUND = "a round that is still to come"
    REPLAY = "the first round again in the second"
    NAN_WEIGHTS = "a weight that is no number"
    OVERSIZED = "more bytes than agreed"
    ANOTHER_ARCHITECTURE = "another network than agreed"
    ANOTHERS_MANIFEST = "what another member has signed"
    STALE_FEDERATION_HASH = "another agreement"
    ABSENT_CERTIFICATE = "shows no certificate"
    FOREIGN_CA = "a certificate of an authority that nobody agreed on"
    STOLEN_NAME = "a certificate of its own making with a member's name"
    ANOTHERS_CERTIFICATE = "the certificate and key of another member"
    EXPIRED = "a certificate of yesterday"
    TLS_1_2 = "speaks TLS 1.2"
    DISK_FULL = "our own disk is full"


ON_THE_WAY = {
    Fault.KILLED: town.Fault.SLOW,  # so that there is a middle
    Fault.RESTARTED: town.Fault.SLOW,
    Fault.SLOW: town.Fault.SLOW,
    Fault.TRUNCATED: town.Fault.TRUNCATED,
    Fault.CORRUPTED: town.Fault.CORRUPTED,
}
STRANGERS = {Fault.ABSENT_CERTIFICATE, Fault.FOREIGN_CA, Fault.STOLEN_NAME, Fault.EXPIRED, Fault.TLS_1_2}


def be_there(clinics: Clinics, number: int, messages: Path, fault: Fault) -> Neighbour:
    """Start a neighbour and wait until it can be asked."""
    neighbour = Neighbour(clinics, number, messages, fault)
    neighbour.start()
    return neighbour


class Neighbour:
    """A member in a process of its own, as the test sees it."""

    def __init__(self, clinics: Clinics, number: int, messages: Path, fault: Fault) -> None:
        self._clinics, self._number, self._messages, self._fault = clinics, number, messages, fault
        self.folder = clinics.folder / "neighbours" / f"clinic-{number}"
        self.folder.mkdir(parents=True)

    def start(self, fault: Fault | None = None) -> None:
        """Start it, or start it again with another fault."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        words = (self._clinics.folder, self._number, self._messages, fault or self._fault)
        self.process = Forked(_live, *words)
        self._clinics.forked.append(self.process)
        while not ready.exists():
            assert self.process.poll() is None, f"it ended with {self.process.poll()}"
            time.sleep(0.01)

    def answers(self) -> list[str]:
        """What it got when it knocked at the door of the one under test."""
        return (self.folder / "answers.txt").read_text().splitlines()


def _live(folder: Path, number: int, messages: Path, fault: Fault) -> None:
    """The neighbour's process: serves, fetches and knocks until it is killed."""
    home = folder / "neighbours" / f"clinic-{number}"
    agreement = read_agreement(folder / "federation.toml")
    under_test = folder / f"clinic-{UNDER_TEST}" / "state" / agreement.hash[:12]
    member, door = agreement.members[number], str(agreement.members[UNDER_TEST].address)
    identity = _identity(folder, number, fault)
    publishers: list[Publisher] = []
    if fault is Fault.SILENT:
        host, port = str(member.address).split(":")
        silent = socket.create_server((host, int(port)))  # noqa: F841  # open as long as this process lives
    elif fault is not Fault.ABSENT_CERTIFICATE:
        if fault is Fault.STALE_FEDERATION_HASH:
            agreement = _stale(agreement)
        organisation = Organisation(identity, agreement, home, listen=str(member.address))
        publishers.append(Publisher(organisation, _published(number, messages, fault), fault))
        publishers[0].publish(1)
    (home / "ready").touch()
    context, parent = _context(identity, fault), os.getppid()
    while os.getppid() == parent:  # nobody is left behind by a test that was killed
        for publisher in publishers:
            publisher.publish(finished_rounds(under_test) + 1)
        _knock(door, context, home / "answers.txt")
        time.sleep(0.1)


class Publisher:
    """A neighbour at work: its messages, each when the one under test has come so far."""

    def __init__(self, organisation: Organisation, messages: dict[int, Message], fault: Fault) -> None:
        endpoints.CHUNK_BYTES = PIECE_BYTES
        self._at_work, self._messages, self._signer = organisation, dict(messages), organisation.identity
        organisation.server.fault = ON_THE_WAY.get(fault, town.Fault.NONE)
        if fault is Fault.TLS_1_2:
            _speak_tls_1_2(organisation.server)
        if fault is Fault.ANOTHERS_MANIFEST:
            self._signer = load_identity(organisation.folder.parents[2] / f"clinic-{OTHER}" / "keys")
        organisation.meet(organisation.agreement)
        # The one under test serves its last round until everybody has it.
        threading.Thread(target=self._fetch_last, daemon=True).start()

    def publish(self, round_index: int) -> None:
        """The message of this round, unless it is there already."""
        message = self._messages.pop(round_index, None)
        if message is not None:
            envelope = seal(message.manifest, kind=KIND, identity=self._signer, agreement=self._at_work.agreement)
            # Not through its exchange, which would refuse to send nonsense.
            self._at_work.server.outbox.publish(round_index, KIND, envelope=envelope, message=message)
            self._at_work.server.announce()

    def _fetch_last(self) -> None:
        self._at_work.collect(UNDER_TEST, round_index=ROUNDS, deadline_s=200.0)


def finished_rounds(state: Path) -> int:
    """How many rounds a member has written down."""
    try:
        return (state / "rounds.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def _identity(folder: Path, number: int, fault: Fault) -> Identity:
    """The member's own keys, or what it has in their place."""
    own = load_identity(folder / f"clinic-{number}" / "keys")
    elsewhere = folder / "neighbours" / f"clinic-{number}" / "keys"
    match fault:
        case Fault.FOREIGN_CA:
            return Authority().issue(create_identity(elsewhere, own.name))
        case Fault.STOLEN_NAME:
            return create_identity(elsewhere, own.name)
        case Fault.ANOTHERS_CERTIFICATE:
            return load_identity(folder / f"clinic-{OTHER}" / "keys")
    return own


def _published(number: int, messages: Path, fault: Fault) -> dict[int, Message]:
    """What it gives out, by round."""
    if fault is Fault.LATE:
        return {}
    sender = OTHER if fault is Fault.ANOTHERS_MANIFEST else number
    rounds = {index: load_message(messages, index, sender) for index in range(1, ROUNDS + 1)}
    if fault is Fault.REPLAY:
        return dict.fromkeys(rounds, rounds[1])
    return {index: _changed(message, number, index, fault) for index, message in rounds.items()}


def _changed(message: Message, number: int, round_index: int, fault: Fault) -> Message:
    manifest = Manifest.model_validate_json(message.manifest)
    match fault:
        case Fault.NAN_WEIGHTS:
            tensors = read_state(message.body)
            next(value for value in tensors.values() if value.is_floating_point()).view(-1)[0] = float("nan")
            message = pack(tensors, kind=KIND, peer=number, round_index=round_index)
            sha256 = Manifest.model_validate_json(message.manifest).sha256
            manifest = manifest.model_copy(update={"sha256": sha256})
        case Fault.ANOTHER_ARCHITECTURE:
            manifest = manifest.model_copy(update={"architecture": "cnn6@0.25"})
        case Fault.WRONG_ROUND:
            manifest = manifest.model_copy(update={"round_index": ROUNDS + 1})
        case Fault.OVERSIZED:
            manifest = manifest.model_copy(update={"size": LARGEST + 1})
    return Message(manifest.model_dump_json(exclude_none=True).encode(), bytes(message.body))


def _stale(agreement: Agreement) -> Agreement:
    table = agreement.model_dump(mode="json", exclude_none=True)
    return make_agreement({**table, "settings": {**table["settings"], "lr": 0.06}})


def _speak_tls_1_2(server: SnapshotServer) -> None:
    context = server._server.config.ssl
    assert context is not None, "it has one"
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2


def _context(identity: Identity, fault: Fault) -> ssl.SSLContext:
    """A client that believes anybody: it is the other side that must refuse."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if fault is not Fault.ABSENT_CERTIFICATE:
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    if fault is Fault.TLS_1_2:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def _knock(door: str, context: ssl.SSLContext, answers: Path) -> None:
    host, port = door.split(":")
    try:
        raw = socket.create_connection((host, int(port)), timeout=5)
    except OSError:
        return  # nobody is at home yet, or any more
    with raw, answers.open("a") as file:
        file.write(f"{knock(raw, context)}\n")


def knock(raw: socket.socket, context: ssl.SSLContext) -> str:
    """What whoever shows this gets: the status line, or why there is none."""
    try:
        with context.wrap_socket(raw) as line:
            line.sendall(b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n")
            return line.recv(64).partition(b"\r\n")[0].decode() or "closed"
    except OSError as error:  # also what ssl raises
        return f"refused: {type(error).__name__}"


def save_message(folder: Path, round_index: int, sender: int, message: Message) -> None:
    """Keep a message for processes that are started later."""
    (folder / f"{round_index}-{sender}.manifest").write_bytes(message.manifest)
    (folder / f"{round_index}-{sender}.body").write_bytes(message.body)


def load_message(folder: Path, round_index: int, sender: int) -> Message:
    """A message that was kept."""
    manifest, body = (folder / f"{round_index}-{sender}.{part}" for part in ("manifest", "body"))
    return Message(manifest.read_bytes(), body.read_bytes())
