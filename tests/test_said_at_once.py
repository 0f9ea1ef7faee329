"""What goes wrong while a member takes part is said when it happens, in one line with what to do."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crad.errors import ConfigError, RunError, SnapshotError
from crad.files import disk_faults
from crad.network.agreement import make_agreement
from crad.network.identity import create_identity
from crad.network.ledger import OutgoingLedger
from crad.runs import loop
from crad.runs.callbacks import Callback, LambdaCallback
from crad.runs.records import round_record
from crad.site import join as join_module
from crad.site.certificate import CertificateWatch, check_own_certificate, watched_certificate
from crad.site.join import LedgerDisk, join
from crad.site.refusals import RefusalLog
from crad.site.settings import Site, read_site
from crad.site.setup import member_entry
from crad.site.status import read_status, status_line
from crad.site.unused_teachers import UnusedTeachers
from tests.clinics import SETTINGS, Clinics, found_clinics
from tests.organisations import Authority, agreed, make_identities

LINE = r"cannot write into .*: No space left on device: free space there and join again; nothing is lost"


@pytest.fixture(scope="module")
def founded(tmp_path_factory) -> Clinics:
    """Two members that meet in a folder; the second one never comes, and nobody waits long for it."""
    folder = tmp_path_factory.mktemp("clinics")
    short = {**SETTINGS, "rounds": 2}
    store = (folder / "store").as_uri()
    return found_clinics(folder, clients=2, exchange=store, quorum=0, deadline_s=0.1, settings=short)


@pytest.fixture
def clinics(founded: Clinics, monkeypatch) -> Clinics:
    """Nobody has joined yet; ONNX, which takes seconds, is not installed."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    shutil.rmtree(founded.state(0).parent, ignore_errors=True)
    return founded


def site(clinics: Clinics, **changes) -> Site:
    return read_site(clinics.site(0)).model_copy(update=changes)


# --- a full disk


class FullDisk:
    """Lets nothing be opened for writing whose name matches; hears of everything else that is."""

    def __init__(self) -> None:
        self.pattern: re.Pattern[str] | None = None
        self.folder = ""
        self.written: set[str] = set()

    def __call__(self, event: str, words: tuple[object, ...]) -> None:
        if event != "open" or not self.folder or not isinstance(words[0], str) or not isinstance(words[2], int):
            return
        if not words[2] & (os.O_WRONLY | os.O_RDWR) or not words[0].startswith(self.folder):
            return
        name = words[0].removeprefix(self.folder)
        self.written.add(re.sub(r"[0-9]+", "N", name))
        if self.pattern is not None and self.pattern.search(name):
            raise OSError(errno.ENOSPC, "No space left on device")


DISK = FullDisk()
sys.addaudithook(DISK)


@contextmanager
def full_for(folder: Path, pattern: str | None) -> Iterator[FullDisk]:
    DISK.folder, DISK.pattern = f"{folder}/", None if pattern is None else re.compile(pattern)
    DISK.written = set()
    try:
        yield DISK
    finally:
        DISK.folder, DISK.pattern = "", None


WRITERS = {
    "secret": r"^\.secret",
    "partition": r"^\.partition\.json",
    "settings": r"^\.experiment\.toml",
    "ledger": r"^ledger\.jsonl",
    "status": r"^\.status\.json",
    "state": r"^checkpoint/states/",
    "message": r"^checkpoint/messages-",
    "checkpoint": r"^checkpoint/\.round-",
    "record": r"^rounds\.jsonl",
    "records, cut": r"^\.rounds\.jsonl",
    "logits": r"^checkpoint/logits/",
    "alone": r"^alone/rounds\.jsonl",
    "alone, its checkpoint": r"^alone/checkpoint/",
    "outcome": r"^\.participant\.json",
    "signed": r"^exchange/signed/",
    "report": r"^\.report\.html",
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_ends_a_join_in_one_line_and_nothing_is_lost(clinics, writer):
    state = clinics.state(0)
    with full_for(state, WRITERS[writer]), pytest.raises(RunError, match=LINE) as fault:
        join(clinics.agreement, site(clinics), callback=Callback())
    assert str(state) in str(fault.value)
    assert join(clinics.agreement, site(clinics), callback=Callback()).record["last_round"] == 2


def test_every_writer_of_a_join_is_among_those_tried(clinics):
    with full_for(clinics.state(0), None) as disk:
        join(clinics.agreement, site(clinics), callback=Callback())
    # The model that trains alone has the same writers in a folder of its own.
    names = {name.removeprefix("alone/") for name in disk.written}
    assert {name for name in names if not any(re.search(pattern, name) for pattern in WRITERS.values())} == set()
    assert len(names) > 8, "something was heard"


def test_a_model_that_cannot_be_written_says_so_too(clinics, monkeypatch):
    def full(*words: object, **more: object) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(join_module, "export_safetensors", full)
    with pytest.raises(RunError, match=LINE):
        join(clinics.agreement, site(clinics), callback=Callback())


def test_a_refusal_that_cannot_be_written_down_says_so_too(tmp_path):
    (tmp_path / "refused.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match=LINE), disk_faults(tmp_path):
        RefusalLog(tmp_path / "refused.jsonl").add("clinic-b", "why")


def test_what_is_no_fault_of_the_disk_is_passed_on(tmp_path):
    with pytest.raises(FileNotFoundError), disk_faults(tmp_path / "state"):
        (tmp_path / "data").read_bytes()
    with pytest.raises(ConfigError), disk_faults(tmp_path):
        raise ConfigError("ours")
    with pytest.raises(ValueError, match="not ours"), disk_faults(tmp_path):
        raise ValueError("not ours")
    (tmp_path / "folder").mkdir()
    with (
        pytest.raises(RunError, match=r"cannot read or write .*folder: Is a directory: fix that"),
        disk_faults(tmp_path),
    ):
        (tmp_path / "folder").read_bytes()


def test_a_ledger_that_cannot_be_written_is_said_at_once_and_ends_the_run_at_its_next_step(tmp_path):
    """A server's thread finds it, while the run may be waiting."""
    said: list[str] = []
    disk = LedgerDisk(tmp_path, notice=said.append)
    ledger = OutgoingLedger(tmp_path / "ledger.jsonl")
    ledger.on_fault = disk.note
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), ledger._file.fileno())
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            ledger.record(to="clinic-b", what="snapshot", size=1)
    with Path("/dev/null").open("wb") as null:
        os.dup2(null.fileno(), ledger._file.fileno())
    ledger.close()
    assert len(said) == 1
    assert re.fullmatch(f"nothing leaves any more: {LINE}", said[0])
    with pytest.raises(RunError, match=LINE):
        disk.on_step(None)  # type: ignore[arg-type]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A real disk of 150 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150k", "none", str(folder)], capture_output=True)
    if made.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_disk_that_is_full_and_then_is_not(clinics, small_disk, monkeypatch, capsys):
    from crad.cli import main

    text = clinics.site(0).read_text().replace('"state"', f'"{small_disk}"').replace('"../', f'"{clinics.folder}/')
    for name in ("keys", "own.npz"):
        text = text.replace(f'"{name}"', f'"{clinics.site(0).parent / name}"')
    path = small_disk.parent / "peer.toml"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["crad", "peer", "join", "--site", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    line = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert re.fullmatch(f"crad: {LINE}", line)
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


# --- our own certificate


NOW = datetime.now(UTC)


@pytest.fixture
def expiring(clinics, tmp_path):
    """An agreement with a certificate of ours that lasts so many days from now on, and its identity."""

    def make(days: float):
        identity = create_identity(tmp_path / "keys", "clinic-0", days=10, now=NOW + timedelta(days=days - 10))
        entry = member_entry(identity, address="127.0.0.1:1", architecture="cnn6@0.125")
        table = clinics.agreement.model_dump(mode="json", exclude_none=True)
        table["members"][0] = entry.model_dump(mode="json", exclude_none=True)
        return make_agreement(table), identity

    return make


def test_a_join_with_an_expired_certificate_is_refused_with_what_to_do(clinics, expiring, tmp_path):
    agreement, _ = expiring(-3)
    with pytest.raises(
        ConfigError, match=r"our own certificate expired on 20.*: the others refuse us: crad peer renew"
    ):
        join(agreement, site(clinics, keys=tmp_path / "keys"), callback=Callback())
    assert not clinics.state(0).exists(), "nothing was begun"


def test_a_certificate_that_is_not_valid_yet_speaks_of_the_clock(expiring):
    agreement, identity = expiring(20)
    with pytest.raises(ConfigError, match=r"not valid before 20.*set the clock \(NTP\), or crad peer renew"):
        check_own_certificate(agreement, identity)


def test_a_certificate_of_another_authority_is_refused(tmp_path):
    identities = make_identities(tmp_path)
    agreement = agreed(identities, authority=Authority().pem)
    with pytest.raises(SnapshotError, match="has not issued"):
        check_own_certificate(agreement, Authority().issue(identities[0]))


def test_an_expired_certificate_of_an_authority_is_the_authoritys_to_renew(tmp_path):
    identities, authority = make_identities(tmp_path), Authority()
    agreement = agreed(identities, authority=authority.pem)
    with pytest.raises(ConfigError, match=r"ask the authority of three clinics for a new one \(.*request.pem\)"):
        check_own_certificate(agreement, authority.issue(identities[0], days=-1))


def test_the_end_of_a_certificate_is_said_once_a_day_before_and_after(clinics, tmp_path):
    noon = NOW.replace(hour=12, minute=0)
    identity = create_identity(tmp_path, "clinic-0", days=825, now=noon)
    said: list[str] = []
    watch = CertificateWatch(clinics.agreement, identity, notice=said.append)
    end = identity.certificate.not_valid_after_utc
    for days in (-100, -31, -29.4, -29.3, -28.4, -0.3, 0.1, 0.2, 1.3):
        watch.look(end + timedelta(days=days))
    assert [line.partition(":")[0] for line in said[:3]] == [
        *(f"our own certificate is valid for {days} more days" for days in (29, 28, 0)),
    ]
    assert all(line.startswith(f"our own certificate expired on {end:%Y-%m-%d %H:%M} UTC") for line in said[3:])
    assert len(said) == 5
    assert all("crad peer renew" in line and "crad peer trust" in line for line in said)


def test_a_certificate_that_ends_while_we_wait_is_said_by_itself(clinics, monkeypatch):
    import threading

    monkeypatch.setattr("crad.site.certificate.LOOK_S", 0.02)
    identity, heard, said = clinics.identity(0), threading.Event(), []
    over = replace(identity, certificate=_ending(identity.certificate, datetime.now(UTC) + timedelta(seconds=0.3)))

    def notice(text: str) -> None:
        said.append(text)
        if "expired" in text:
            heard.set()

    with watched_certificate(clinics.agreement, over, notice=notice):
        assert heard.wait(10)
    assert "is valid for 0 more days" in said[0]


def _ending(certificate, end):
    from types import SimpleNamespace

    return SimpleNamespace(not_valid_before_utc=certificate.not_valid_before_utc, not_valid_after_utc=end)


# --- teachers that could not be learned from


def record(round_index: int, refused: dict[str, str], trust: dict[str, list[float]] | None = None):
    return {"round": round_index, "clients": [{"notes": {"refused": refused}, "trust": trust or {}}]}


def test_a_teacher_that_was_not_used_is_named_once_for_each_reason(tmp_path):
    unused = UnusedTeachers(agreed(make_identities(tmp_path)))
    overflow = {"1": "peer 1 gives non-finite predictions"}
    assert unused.news(record(4, overflow)) == [
        "round 4 learned nothing from clinic-b: it gives non-finite predictions; ask clinic-b to look at its training"
    ]
    assert unused.news(record(5, overflow)) == []
    assert unused.of(record(5, overflow)) == {"clinic-b": "it gives non-finite predictions"}
    assert unused.of(record(6, {})) == {}
    both = {**overflow, "2": "peer 2 sent architecture 'x', its own in this federation is cnn6"}
    (line,) = unused.news(record(7, both))
    assert line.startswith("round 7 learned nothing from clinic-c: it sent architecture 'x'")
    assert line.endswith("compare federation.toml and the version of crad with clinic-c")


def test_a_teacher_that_was_used_in_part_is_said_to_be(tmp_path):
    unused = UnusedTeachers(agreed(make_identities(tmp_path)))
    (line,) = unused.news(record(1, {"1": "peer 1 gives non-finite predictions"}, {"1": [0.0, 0.2, 0.0]}))
    assert line.startswith("round 1 learned only in part from clinic-b")


def test_a_join_says_it_in_its_round_and_status_has_it(clinics, monkeypatch):
    """The other member's weights are finite and overflow on every image; here it is the records that say so."""

    real = round_record

    def with_refusal(done, roster):
        made = real(done, roster)
        made["clients"][0]["notes"] = {"refused": {"1": "peer 1 gives non-finite predictions"}}
        return made

    monkeypatch.setattr(loop, "round_record", with_refusal)
    events: list[str] = []
    lines: list[str] = []

    def on_round(made):
        events.append(f"round {made['round']}")
        lines.append(status_line(read_status(clinics.agreement, site(clinics))))

    join(clinics.agreement, site(clinics), callback=LambdaCallback(on_round=on_round, on_notice=events.append))
    (said,) = [place for place, text in enumerate(events) if "non-finite" in text]
    assert events[said].startswith("round 1 learned nothing from clinic-1")
    assert said < events.index("round 2")
    assert all("not learned from clinic-1 last round: it gives non-finite predictions" in line for line in lines)
    assert len(lines) == 2
