"""One real member's whole part in a federation while something is wrong: it finishes, and says who and why.

Three processes: `crad peer join` for member 0, a healthy neighbour and one with the fault (tests/faults.py).
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from crad.engines.serial import SerialEngine
from crad.federation.context import build_run_context
from crad.federation.exchange import MemoryExchange
from crad.federation.message import Manifest, Message
from crad.federation.roster import Roster
from crad.federation.rounds import RoundRunner
from crad.methods import resolve_method
from crad.network.ledger import read_ledger
from tests.clinics import SETTINGS, experiment, found_clinics
from tests.faults import (
    FAULTY,
    LARGEST,
    OTHER,
    PIECE_BYTES,
    ROUNDS,
    STRANGERS,
    UNDER_TEST,
    Fault,
    Neighbour,
    be_there,
    load_message,
    save_message,
)
from tests.organisations import Authority

PATIENCE_S = 120.0
SHORT_S = 3.0  # a deadline that is meant to pass

# What is said of the faulty member where its snapshots are refused on their way in, ...
REFUSED = {
    Fault.TRUNCATED: "announced",
    Fault.CORRUPTED: "does not match its sha256",
    Fault.WRONG_ROUND: "round 3; expected 'snapshot' of round",
    Fault.REPLAY: "round 1; expected 'snapshot' of round 2",
    Fault.OVERSIZED: f"the agreement allows {LARGEST}",
    Fault.ANOTHERS_MANIFEST: "clinic-2 presents 'snapshot' of 'clinic-1'",
    Fault.STALE_FEDERATION_HASH: "has another agreement: settings.lr: 0.05 here, 0.06 there",
    Fault.FOREIGN_CA: "does not prove to be it",
    Fault.STOLEN_NAME: "does not prove to be it",
    Fault.ANOTHERS_CERTIFICATE: "does not prove to be it",
    Fault.EXPIRED: "certificate has expired",
}
# ... where they are refused when they are to teach (the bytes are as signed; what they say is wrong), ...
REFUSED_AS_TEACHER = {
    Fault.NAN_WEIGHTS: "non-finite value",
    Fault.ANOTHER_ARCHITECTURE: "its own in this federation is cnn6@0.125",
}
# ... and where nothing came that could be refused.
NOT_THERE = {
    Fault.KILLED: "it cannot be reached",
    Fault.SLOW: "its snapshot has not come in full",
    Fault.LATE: "it has not published in time",
    Fault.SILENT: "in time",
    Fault.AWAY: "it cannot be reached",
    Fault.ABSENT_CERTIFICATE: "it cannot be reached",
    Fault.TLS_1_2: "it does not speak TLS 1.3",
}
HARMLESS = (Fault.NONE, Fault.RESTARTED, Fault.DISK_FULL)  # in the end everything is there
# Those who never fetch what is published last are waited for, as those who never send.
WAITED_FOR = {*NOT_THERE, *STRANGERS, Fault.STALE_FEDERATION_HASH, Fault.ANOTHERS_CERTIFICATE}


class Kept(MemoryExchange):
    """Keeps every message of a simulation."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        save_message(self._folder, round_index, sender, message)
        super().publish(round_index, sender=sender, kind=kind, message=message)


@pytest.fixture(scope="module")
def messages(tmp_path_factory) -> Path:
    """What the members of a healthy federation send, in files."""
    folder: Path = tmp_path_factory.mktemp("messages")
    context = build_run_context(experiment(rounds=ROUNDS))
    method = resolve_method(context.experiment.method, context.experiment.method_settings)
    roster = Roster(context, method.roster(context), tmp_path_factory.mktemp("simulated"))
    with closing(SerialEngine(context, method)) as engine:
        list(RoundRunner(method, roster, exchange=Kept(folder), engine=engine).run())
    return folder


class Trial:
    """A federation with a fault, and what came of it for the member under test."""

    def __init__(self, folder: Path, messages: Path, fault: Fault) -> None:
        authority = Authority() if fault in (Fault.FOREIGN_CA, Fault.EXPIRED) else None
        self.fault, self._messages = fault, messages
        self.clinics = found_clinics(
            folder,
            deadline_s=SHORT_S if fault in WAITED_FOR else 60.0,
            max_snapshot_bytes=LARGEST,
            settings={**SETTINGS, "rounds": ROUNDS},
            authority=authority,
        )
        if fault is Fault.EXPIRED and authority is not None:
            authority.issue(self.clinics.identity(FAULTY), days=-1)
        self._log = folder / "log.txt"

    def run(self) -> None:
        """To the end of the member under test."""
        there = be_there(self.clinics, OTHER, self._messages, Fault.NONE)
        self.faulty = None if self.fault is Fault.AWAY else be_there(self.clinics, FAULTY, self._messages, self.fault)
        self.state = self.clinics.state(UNDER_TEST)
        if self.fault is Fault.DISK_FULL:
            self._join_with_a_full_disk()
        process = self.clinics.join_forked(UNDER_TEST, log=self._log)
        if self.fault in (Fault.KILLED, Fault.RESTARTED):
            self._kill_in_the_middle()
        until = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            assert time.monotonic() < until, f"it hangs: {self.log}"
            time.sleep(0.05)
        assert process.poll() == 0, self.log
        assert "HTTP/1.1 200 OK" in there.answers(), "a member that knocks is answered"

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def parts(self) -> list[Path]:
        return list((self.state / "exchange" / "in").rglob("*.part"))

    def _kill_in_the_middle(self) -> None:
        assert self.faulty is not None
        until = time.monotonic() + PATIENCE_S
        while not any(part.stat().st_size > PIECE_BYTES for part in self.parts):
            assert time.monotonic() < until, self.log
            time.sleep(0.01)
        self.faulty.process.kill()
        self.faulty.process.wait()
        if self.fault is Fault.RESTARTED:
            self.faulty.start(Fault.NONE)

    def _join_with_a_full_disk(self) -> None:
        """The disk takes nothing of clinic-2's first snapshot: one line, code 2, and nothing is lost."""
        manifest = Manifest.model_validate_json(load_message(self._messages, 1, FAULTY).manifest)
        folder = self.state / "exchange" / "in" / "round-00001"
        folder.mkdir(parents=True)
        full = folder / f"snapshot-clinic-{FAULTY}-{manifest.sha256[:16]}.safetensors.part"
        full.symlink_to("/dev/full")
        process = self.clinics.join_forked(UNDER_TEST, log=self._log)
        assert process.wait() == 2
        (line,) = [line for line in self.log.splitlines() if line.startswith("crad: ")]
        assert "No space left on device: free space there and join again; nothing is lost" in line
        full.unlink()


def check_left_out(trial: Trial, records, outcome) -> None:
    """The faulty one is named in the records, the log and the report; everybody else's snapshots were used."""
    first = 2 if trial.fault is Fault.REPLAY else 1  # its first one was new
    missing = [record["missing"].get("0", []) for record in records]
    page = (trial.state / "report.html").read_text()
    assert missing == [[FAULTY] if index >= first else [] for index in range(1, ROUNDS + 1)]
    assert outcome["missing"] == {"clinic-2": ROUNDS + 1 - first}
    assert f"did not come in time or was refused: clinic-2 {ROUNDS + 1 - first}." in page
    said = {**REFUSED, **NOT_THERE}[trial.fault]
    assert any("clinic-2" in line and said in line for line in trial.log.splitlines()), trial.log
    assert "that it needs" not in trial.log, "the quorum was there"
    if trial.fault in REFUSED:
        assert any(said in reason for reason in outcome["refused"]["clinic-2"])
        assert "Not used from clinic-2" in page
    else:
        assert outcome["refused"] == {}


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
def test_a_fault_costs_no_more_than_its_snapshots_and_is_named(fault, messages, tmp_path):
    trial = Trial(tmp_path, messages, fault)
    try:
        trial.run()
    finally:
        trial.clinics.end()
    records = [json.loads(line) for line in (trial.state / "rounds.jsonl").read_text().splitlines()]
    outcome = json.loads((trial.state / "participant.json").read_text())
    assert [record["round"] for record in records] == [*range(1, ROUNDS + 1)]
    assert "clinic-1" in {row["member"] for row in outcome["trusted"]}, "the healthy one has taught"
    assert "clinic-1" not in {**outcome["missing"], **outcome["refused"]}
    assert trial.parts == [] or fault in (Fault.KILLED, Fault.SLOW), "only what may still come is kept"
    if trial.faulty is not None and fault in STRANGERS:
        answers = set(trial.faulty.answers())
        assert answers
        assert not any(answer.startswith("HTTP") for answer in answers), "whoever it is, it is told nothing"

    refused = [record["clients"][0]["notes"].get("refused", {}) for record in records]
    if fault in REFUSED_AS_TEACHER:
        assert [list(reasons) for reasons in refused] == [[str(FAULTY)]] * ROUNDS
        assert all(REFUSED_AS_TEACHER[fault] in reason for reason in outcome["refused"]["clinic-2"])
        assert "Not used from clinic-2" in (trial.state / "report.html").read_text()
        told = [line for line in trial.log.splitlines() if "learned nothing from clinic-2: it sent" in line]
        assert len(told) == 1, "in the round it happens, and once"
        assert told[0].startswith("round 1 ")
        assert "clinic-2" not in {row["member"] for row in outcome["trusted"]}
        return
    assert refused == [{}] * ROUNDS
    if fault not in HARMLESS:
        check_left_out(trial, records, outcome)
        return
    assert (outcome["missing"], outcome["refused"]) == ({}, {})
    assert "clinic-2" in {row["member"] for row in outcome["trusted"]}
    if fault is Fault.RESTARTED:
        check_resumed(trial.faulty)


def check_resumed(faulty: Neighbour | None) -> None:
    """What had arrived before the kill was not sent again."""
    assert faulty is not None
    ledger = faulty.folder / f"clinic-{FAULTY}" / "ledger.jsonl"
    firsts = [piece.first for piece in read_ledger(ledger) if (piece.what, piece.round) == ("snapshot", 1)]
    assert firsts.count(0) == 1, "not from the beginning again"
    assert firsts[0] == 0


def test_every_fault_has_one_outcome():
    """A new fault must be given one; the test above is for all of them."""
    outcomes = [*REFUSED, *REFUSED_AS_TEACHER, *NOT_THERE, *HARMLESS]
    assert sorted(fault.name for fault in outcomes) == sorted(fault.name for fault in Fault)
