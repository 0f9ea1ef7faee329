"""`crad peer doctor` finds what would go wrong in round 1, says what to do, and what a round will cost."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections import namedtuple
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from crad.cli import main
from crad.network.agreement import agreement_to_toml, make_agreement
from crad.network.https import endpoints
from crad.network.https.client import MemberClient
from crad.network.https.dial_back import TRIES, DialBack
from crad.network.https.server import SnapshotServer
from crad.network.https.tls import MemberContext
from crad.network.identity import create_identity, load_identity
from crad.network.ledger import OutgoingLedger, read_ledger
from crad.network.store.objects import Store
from crad.site.doctor import Finding, Findings, examine, resources
from crad.site.doctor.committee_cost import check_committee
from crad.site.doctor.estimate import transfer_s
from crad.site.doctor.findings import size_text
from crad.site.doctor.keys import check_keys
from crad.site.doctor.others import Speeds, check_members
from crad.site.doctor.own_model import ResourceNeeds, check_data, check_local_peer, check_state
from crad.site.doctor.own_port import listening, running_join
from crad.site.doctor.shared_store import check_store
from crad.site.settings import read_site
from crad.site.setup import member_entry
from tests.clinics import Clinics, found_clinics
from tests.organisations import with_addresses

OWN, THERE, ALSO_THERE, ABSENT = range(4)


@pytest.fixture(scope="module")
def founded(tmp_path_factory) -> Clinics:
    return found_clinics(tmp_path_factory.mktemp("clinics"), clients=4)


@pytest.fixture
def clinics(founded: Clinics) -> Clinics:
    """Nobody has joined yet."""
    for number in range(4):
        shutil.rmtree(founded.folder / f"clinic-{number}" / "state", ignore_errors=True)
    return founded


def own_site(clinics, **changes):
    return read_site(clinics.site(OWN)).model_copy(update=changes)


def own_identity(clinics, number=OWN):
    return load_identity(clinics.folder / f"clinic-{number}" / "keys")


def changed(agreement, **changes):
    return make_agreement({**agreement.model_dump(mode="json", exclude_none=True), **changes})


@contextmanager
def served(clinics, number, *, agreement=None, at=None):
    """A member's real server at its agreed address, or at somebody else's."""
    agreement = agreement or clinics.agreement
    folder = clinics.folder / f"clinic-{number}" / "state" / "served"
    with (
        closing(OutgoingLedger(folder / "ledger.jsonl")) as ledger,
        SnapshotServer(
            agreement,
            own_identity(clinics, number),
            folder,
            listen=clinics.agreement.members[number if at is None else at].address,
            ledger=ledger,
        ),
    ):
        yield folder / "ledger.jsonl"


def found(findings, check, state=None):
    """The only finding of a check, in this state."""
    (finding,) = [one for one in findings.all if one.check == check and state in (None, one.state)]
    return finding


def meet(clinics, agreement=None, **changes):
    """What is found at the other members."""
    findings = Findings()
    check_members(agreement or clinics.agreement, own_site(clinics, **changes), own_identity(clinics), findings)
    return findings


def meet_one(clinics, **options):
    with served(clinics, THERE, **options):
        return meet(clinics)


# --- the whole


def test_two_members_that_are_there_and_one_that_is_not(clinics):
    heard: list[Finding] = []
    steps: list[str] = []
    findings = Findings(on_finding=heard.append, on_step=steps.append)
    with served(clinics, THERE) as ledger, served(clinics, ALSO_THERE):
        examine(clinics.site(OWN), findings)
    assert heard == findings.all
    assert findings.of("problem") == []
    (absent,) = findings.of("warning")
    assert absent.check == "clinic-3"
    assert "not there yet, or port closed" in absent.text
    assert "clinic-3" in absent.advice
    for name in ("clinic-1", "clinic-2"):
        there = found(findings, name)
        assert there.state == "ok"
        assert there.details["bytes_per_s"] > 0
        assert there.details["is_reached"]
        assert abs(there.details["clock_s"]) < 30
    assert {piece.what for piece in read_ledger(ledger)} == {"hello", "probe", "reach"}
    left = list(read_ledger(clinics.state(OWN) / "ledger.jsonl"))
    assert {(piece.to, piece.what) for piece in left} == {("clinic-1", "hello"), ("clinic-2", "hello")}, "tried back"
    assert any("clinic-1" in step for step in steps)


def test_the_estimate_counts_every_member_and_every_round(clinics):
    findings = Findings()
    with served(clinics, THERE):
        examine(clinics.site(OWN), findings)
    size = found(findings, "model").details["snapshot_bytes"]
    cost = found(findings, "estimate").details
    assert cost["round"]["sent_bytes"] == 3 * size
    assert cost["all_rounds"]["sent_bytes"] == 3 * 3 * size
    assert cost["round"]["received_bytes"] == pytest.approx(3 * size, rel=0.05)  # everybody has the same model
    seconds = cost["round"]["transfer_s"] + cost["round"]["computing_s"]
    assert cost["all_rounds"]["seconds"] == pytest.approx(3 * seconds)


def test_the_committee_is_weighed_and_said_to_be_allowed_or_not(clinics):
    said = {}
    for is_allowed in (False, True):
        agreement = changed(clinics.agreement, committee=is_allowed)
        own = check_data(agreement, own_site(clinics), Findings())
        assert own is not None
        needs = check_local_peer(agreement, own_site(clinics), own, Findings())
        assert needs is not None
        findings = Findings()
        check_committee(needs, findings)
        resources.check_disk(needs, own_site(clinics), findings)
        said[is_allowed] = found(findings, "committee"), found(findings, "disk").details["need_bytes"]
    allowed, forbidden = said[True][0], said[False][0]
    assert allowed.text.startswith("the agreement allows it: all together at the end are 4 models: ")
    assert "does not allow it (committee = true would): what comes from others is deleted" in forbidden.text
    assert (allowed.details["is_allowed"], forbidden.details["is_allowed"]) == (True, False)
    assert needs is not None
    weights = needs.snapshot_bytes + sum(needs.received_bytes.values())
    assert allowed.details["disk_bytes"] == 2 * weights == said[True][1] - said[False][1]
    assert 0.5 * weights < allowed.details["memory_bytes"] < 20 * weights
    assert 0 < allowed.details["milliseconds"] < 10_000


def test_without_problems_the_command_ends_well_and_with_one_in_code_2_and_one_line(clinics, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["crad", "peer", "doctor", "--site", str(clinics.site(OWN))])
    with served(clinics, THERE), pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (0, "")
    assert out.splitlines()[-1] == "Ready to join, with 2 to think about: crad peer join"
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (2, "crad: a problem to fix before joining: others\n")
    told = json.loads(out)
    assert (told["problems"], told["warnings"]) == (1, 3)
    (problem,) = [finding for finding in told["findings"] if finding["state"] == "problem"]
    assert problem["text"] == "none of the 3 other members answers"


# --- files and keys


def test_files_that_cannot_be_read_end_the_examination(clinics, tmp_path):
    findings = Findings()
    examine(tmp_path / "peer.toml", findings)
    assert [(one.check, one.state) for one in findings.all] == [("peer.toml", "problem")]
    (tmp_path / "peer.toml").write_text(clinics.site(OWN).read_text().replace("../federation.toml", "none.toml"))
    findings = Findings()
    examine(tmp_path / "peer.toml", findings)
    assert [(one.check, one.state) for one in findings.all] == [("peer.toml", "ok"), ("agreement", "problem")]


def test_who_is_not_in_the_agreement_is_told_who_is(clinics, tmp_path):
    text = clinics.site(OWN).read_text().replace('name = "clinic-0"', 'name = "clinic-9"')
    shutil.copy(clinics.folder / "federation.toml", tmp_path)
    (tmp_path / "peer.toml").write_text(text.replace("../federation.toml", "federation.toml"))
    findings = Findings()
    examine(tmp_path / "peer.toml", findings)
    assert "clinic-0" in found(findings, "agreement", "problem").text


def with_own_identity(clinics, folder, **options):
    """The agreement with another certificate of ours, and its identity."""
    identity = create_identity(folder, "clinic-0", **options)
    entry = member_entry(identity, address="127.0.0.1:1", architecture="cnn6@0.125")
    members = [entry, *clinics.agreement.members[1:]]
    tables = [member.model_dump(mode="json", exclude_none=True) for member in members]
    return changed(clinics.agreement, members=tables)


def test_an_expired_certificate_is_a_problem_and_nobody_is_asked(clinics, tmp_path):
    long_ago = datetime.now(UTC) - timedelta(days=100)
    agreement = with_own_identity(clinics, tmp_path / "keys", days=90, now=long_ago)
    (tmp_path / "federation.toml").write_text(agreement_to_toml(agreement))
    text = clinics.site(OWN).read_text().replace("../federation.toml", "federation.toml")
    (tmp_path / "peer.toml").write_text(text)
    findings = Findings()
    examine(tmp_path / "peer.toml", findings)
    assert "expired" in found(findings, "certificate", "problem").text
    assert found(findings, "others").text == "not asked"


def test_a_certificate_that_ends_soon_is_a_warning_ours_and_theirs(clinics, tmp_path):
    agreement = with_own_identity(clinics, tmp_path / "keys", days=10)
    findings = Findings()
    assert check_keys(agreement, own_site(clinics, keys=tmp_path / "keys"), findings) is not None
    assert found(findings, "certificate").state == "warning"
    assert found(findings, "certificate").details["days_left"] == 9
    findings = Findings()
    names = {"name": "clinic-1", "keys": clinics.folder / "clinic-1" / "keys"}
    check_keys(agreement, own_site(clinics, **names), findings)
    assert [(one.check, one.state) for one in findings.all][2:] == [("clinic-0", "warning")]


def test_another_certificate_than_the_agreed_one_is_a_problem(clinics, tmp_path):
    create_identity(tmp_path / "keys", "clinic-0")
    findings = Findings()
    assert check_keys(clinics.agreement, own_site(clinics, keys=tmp_path / "keys"), findings) is None
    assert "the agreement knows clinic-0 by" in found(findings, "certificate", "problem").text


def test_a_key_that_others_can_read_is_a_problem(clinics, tmp_path):
    create_identity(tmp_path / "keys", "clinic-0").key_path.chmod(0o644)
    findings = Findings()
    assert check_keys(clinics.agreement, own_site(clinics, keys=tmp_path / "keys"), findings) is None
    assert "chmod 600" in found(findings, "key", "problem").text


# --- what we bring


def test_classes_that_nobody_agreed_on_are_a_problem(clinics, tmp_path):
    with np.load(clinics.folder / "clinic-0" / "own.npz") as file:
        arrays = {**file, "class_names": np.array(["zero", *file["class_names"][1:]])}
    np.savez(tmp_path / "own.npz", **arrays)
    findings = Findings()
    assert check_data(clinics.agreement, own_site(clinics, data=tmp_path / "own.npz"), findings) is None
    assert "class 'zero' is not in the federation's list" in found(findings, "data", "problem").text


def test_images_are_counted_by_class_and_split_and_absent_classes_are_a_note(clinics, tmp_path):
    rng = np.random.default_rng(1)
    sizes = {"train": [0] * 8 + [1] * 4, "val": [0, 0, 1], "test": [0]}
    arrays: dict[str, Any] = {f"{name}_labels": np.array(labels) for name, labels in sizes.items()}
    images: dict[str, Any] = {
        f"{name}_images": rng.integers(0, 255, (len(labels), 8, 8, 1), dtype=np.uint8) for name, labels in sizes.items()
    }
    np.savez(tmp_path / "own.npz", class_names=np.array(["3", "5"]), **arrays, **images)
    findings = Findings()
    assert check_data(clinics.agreement, own_site(clinics, data=tmp_path / "own.npz"), findings) is not None
    data = found(findings, "data", "ok")
    assert "3 8/2/1, 4 0/0/0, 5 4/1/0" in data.text
    assert data.details["counts"]["train"] == [0, 0, 0, 8, 0, 4, 0, 0, 0, 0]
    assert data.details["without_images"] == ["0", "1", "2", "4", "6", "7", "8", "9"]


def burden_of(clinics, agreement, findings):
    site = own_site(clinics)
    own = check_data(agreement, site, findings)
    assert own is not None
    return check_local_peer(agreement, site, own, findings)


def test_a_snapshot_larger_than_agreed_is_a_problem(clinics):
    findings = Findings()
    assert burden_of(clinics, changed(clinics.agreement, max_snapshot_bytes=20_000), findings) is None
    assert "the agreement allows 20.0 KB" in found(findings, "model", "problem").text


def test_a_member_whose_network_may_not_run_here_is_left_out_and_named(clinics):
    table = clinics.agreement.model_dump(mode="json", exclude_none=True)
    table["members"][2]["architecture"] = "ctypes:string_at"
    findings = Findings()
    needs = burden_of(clinics, make_agreement(table), findings)
    assert needs is not None
    assert set(needs.received_bytes) == {"clinic-1", "clinic-3"}
    assert findings.of("problem") == []
    assert "its network ctypes:string_at is not built in" in found(findings, "clinic-2", "warning").text


@pytest.mark.parametrize(("times", "state"), [(0.5, "problem"), (1.5, "warning"), (2.5, "ok")])
def test_disk_and_memory_are_compared_with_the_need(clinics, monkeypatch, times, state):
    findings = Findings()
    needs = burden_of(clinics, clinics.agreement, findings)
    assert needs is not None
    resources.check_disk(needs, own_site(clinics), findings)
    resources.check_memory(needs, findings)
    disk, memory = (found(findings, check).details["need_bytes"] for check in ("disk", "memory"))
    # two rounds of all four, six states with momentum, the model twice at the end
    assert disk == (2 + 12 + 2) * needs.snapshot_bytes + 2 * 3 * needs.largest_bytes
    assert memory > 128 * 2**20
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(int(times * disk)))
    monkeypatch.setattr(resources, "available_memory_bytes", lambda device: int(times * memory))
    findings = Findings()
    resources.check_disk(needs, own_site(clinics), findings)
    resources.check_memory(needs, findings)
    assert [(one.check, one.state) for one in findings.all] == [("disk", state), ("memory", state)]


def test_a_state_folder_that_cannot_be_made_is_a_problem(clinics, tmp_path):
    (tmp_path / "file").touch()
    findings = Findings()
    assert not check_state(clinics.agreement, own_site(clinics, state=tmp_path / "file"), findings)
    assert "cannot write into" in found(findings, "state", "problem").text


# --- our own port


def test_a_port_that_another_program_has_is_a_problem(clinics):
    site = own_site(clinics)
    host, port = site.listen.split(":")
    findings = Findings()
    with (
        socket.create_server((host, int(port))),
        listening(clinics.agreement, site, own_identity(clinics), findings) as is_up,
    ):
        assert not is_up
    assert "another program has it" in found(findings, "port", "problem").text


def test_a_port_that_our_own_join_has_is_well(clinics):
    status = {"state": "learning", "process": os.getppid(), "updated": time.time()}
    clinics.state(OWN).mkdir(parents=True)
    (clinics.state(OWN) / "status.json").write_text(json.dumps(status))
    with served(clinics, THERE), served(clinics, OWN):
        findings = meet(clinics)
    assert found(findings, "port").state == "ok"
    assert found(findings, "port").details["process"] == os.getppid()
    assert found(findings, "clinic-1").state == "ok", "reached back through the join"
    findings = meet(clinics)
    assert found(findings, "port").state == "warning", "it does not listen yet, and is not taken its port"


@pytest.mark.parametrize("status", [{"state": "finished"}, {"process": os.getpid()}, {"process": 2**22 + 1}])
def test_a_join_that_has_ended_is_not_running(clinics, status):
    clinics.state(OWN).mkdir(parents=True)
    whole = {"state": "learning", "process": os.getppid(), **status}
    (clinics.state(OWN) / "status.json").write_text(json.dumps(whole))
    assert running_join(clinics.agreement, own_site(clinics)) is None


# --- the others


def test_another_agreement_is_a_problem_with_what_differs(clinics):
    findings = meet_one(clinics, agreement=changed(clinics.agreement, seed=6))
    assert "seed: 5 here, 6 there" in found(findings, "clinic-1", "problem").text


def test_a_member_that_does_not_reach_us_is_a_problem(clinics):
    findings = meet_one(clinics, agreement=with_addresses(clinics.agreement, {"clinic-0": "127.0.0.1:1"}))
    text = found(findings, "clinic-1", "problem").text
    assert "does not reach us back at 127.0.0.1:1" in text
    assert found(findings, "clinic-1", "ok"), "we reach it"


def test_somebody_else_at_a_members_address_is_a_problem(clinics):
    with served(clinics, ALSO_THERE, at=THERE):
        findings = meet(clinics)
    assert "does not prove to be it" in found(findings, "clinic-1", "problem").text


def test_a_member_that_refuses_our_certificate_is_a_problem(clinics, tmp_path):
    stranger = with_own_identity(clinics, tmp_path / "keys")
    findings = meet_one(clinics, agreement=stranger)
    assert "refuses our certificate" in found(findings, "clinic-1", "problem").text


@pytest.mark.parametrize(("ahead_s", "says"), [(90, "90 s ahead of ours"), (-90, "90 s behind ours")])
def test_a_clock_that_is_off_is_a_warning(clinics, monkeypatch, ahead_s, says):
    clock = SimpleNamespace(time=lambda: time.time() + ahead_s, monotonic=time.monotonic)
    monkeypatch.setattr(endpoints, "time", clock)
    text = found(meet_one(clinics), "clinic-1", "warning").text
    assert abs(int(text.split()[3]) - 90) <= 5
    assert says.split(" ", 1)[1] in text


def test_another_version_is_a_warning(clinics, monkeypatch):
    monkeypatch.setattr(endpoints, "__version__", "0.0.1")
    assert "crad 0.0.1" in found(meet_one(clinics), "clinic-1", "warning").text


def test_too_few_for_a_round_is_a_warning(clinics):
    agreement = changed(clinics.agreement, quorum=2)
    with served(clinics, THERE, agreement=agreement):
        findings = meet(clinics, agreement)
    assert found(findings, "others", "warning").text == "1 others are there, a round needs 2"


# --- whether a member reaches us


def ask(clinics, path):
    context = MemberContext.to(
        clinics.agreement.members[THERE], identity=own_identity(clinics), agreement=clinics.agreement
    )
    address = clinics.agreement.members[THERE].address
    with httpx.Client(verify=context, base_url=f"https://{address}", trust_env=False, timeout=30) as client:
        return client.get(path)


def test_a_member_tries_our_agreed_address_and_no_other(clinics):
    own = clinics.agreement.members[OWN].address
    with socket.create_server(("127.0.0.1", 0)) as trap, served(clinics, THERE):
        elsewhere = "{}:{}".format(*trap.getsockname())
        answer = ask(clinics, f"/v1/reach?address={elsewhere}").json()
        trap.settimeout(0.2)
        with pytest.raises(TimeoutError):
            trap.accept()
    assert (answer["is_reached"], answer["address"]) == (False, own)
    with served(clinics, THERE), served(clinics, OWN):
        assert ask(clinics, "/v1/reach").json() == {"is_reached": True, "address": own, "reason": ""}


def test_a_member_tries_one_at_a_time_and_says_that_it_is_busy(clinics, monkeypatch):
    monkeypatch.setattr(DialBack, "begin", lambda self, name: False)
    with served(clinics, THERE):
        assert ask(clinics, "/v1/reach").status_code == 429
        findings = meet(clinics)
    assert "cannot say now" in found(findings, "clinic-1", "warning").text


def test_a_member_that_answers_but_not_whether_it_reaches_us_is_there(clinics, monkeypatch):
    def silent(self):
        raise httpx.ReadTimeout("no answer")

    monkeypatch.setattr(MemberClient, "reach", silent)
    findings = meet_one(clinics)
    assert not found(findings, "clinic-1", "ok").details["is_reached"]
    assert "cannot say now" in found(findings, "clinic-1", "warning").text


def test_tries_are_counted_by_member_and_in_all_and_a_failed_one_ends(clinics):
    try_back = DialBack(clinics.agreement, own_identity(clinics, THERE))
    assert try_back.begin("clinic-0")
    assert not try_back.begin("clinic-0")
    assert not try_back.reach("clinic-0").is_reached
    assert try_back.begin("clinic-0")
    assert [try_back.begin(f"clinic-{number}") for number in range(2, 2 + TRIES)] == [True] * (TRIES - 1) + [False]


# --- through a store


def test_a_store_is_tried_as_a_round_uses_it(clinics, tmp_path, monkeypatch):
    agreement = changed(clinics.agreement, exchange=(tmp_path / "store").as_uri())
    identity, findings = own_identity(clinics), Findings()
    speeds = check_store(agreement, own_site(clinics), identity, findings)
    assert speeds is not None
    assert set(speeds.incoming) == {"clinic-1", "clinic-2", "clinic-3"}
    assert [(one.check, one.state) for one in findings.all] == [
        ("store", "ok"),
        *((f"clinic-{number}", "warning") for number in (1, 2, 3)),
    ]
    monkeypatch.setattr(Store, "names", lambda self, path: [])
    findings = Findings()
    assert check_store(agreement, own_site(clinics), identity, findings) is None
    assert "does not list" in found(findings, "store", "problem").text


# --- the cost


def test_transfer_takes_as_long_as_the_slowest_member_or_the_whole_line():
    needs = ResourceNeeds(None, 100, {"a": 100, "b": 100, "c": 100}, None)  # type: ignore[arg-type]  # sizes are enough
    slow = Speeds({"a": 100.0, "b": 10.0}, copies=3)
    assert transfer_s(needs, slow, share=1.0, sent=300) == 10.0, "b, and c who was not measured"
    alike = Speeds({"a": 100.0, "b": 100.0, "c": 100.0}, copies=3)
    assert transfer_s(needs, alike, share=1.0, sent=300) == 3.0, "all three share our line"
    assert transfer_s(needs, Speeds({"a": 100.0}, copies=1, outgoing=1.0), share=1.0, sent=100) == 100.0
    assert transfer_s(needs, Speeds({}, copies=3), share=1.0, sent=300) is None


@pytest.mark.parametrize(("size", "text"), [(912, "912 bytes"), (45_100_000, "45.1 MB"), (450e9, "450 GB")])
def test_sizes_as_people_say_them(size, text):
    assert size_text(size) == text
