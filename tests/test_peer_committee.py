"""The committee between organisations: kept where the agreement allows it, deleted where not, equal to a simulation."""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import crad
from crad.api import run
from crad.cli import main
from crad.data.dataset import Images
from crad.data.readers.npz import read_npz
from crad.errors import ConfigError
from crad.federation.message import Manifest, Message, Statistics, pack, read_state
from crad.network.agreement import agreement_to_toml, differences, make_agreement, read_agreement
from crad.network.envelope import seal
from crad.network.ledger import read_ledger, read_received
from crad.network.store.kept_snapshots import KeptSnapshots
from crad.prediction.committee import make_committee
from crad.prediction.run_models import complete_models, stored_models
from crad.prediction.trained_model import Probabilities
from crad.runs.directory import RunDirectory
from crad.site.committee import MemberCommittee, build_committee
from crad.site.local_peer import prepare_local_peer
from crad.site.settings import read_site
from tests.clinics import SETTINGS, Clinics, experiment, found_clinics
from tests.hostile import HOSTILE, let_loose

ONCE: dict[str, Any] = {"method": "committee"}  # trained alone, exchanged once, at the end
ROUNDS = int(SETTINGS["rounds"])


def joined(clinics: Clinics, *numbers: int) -> str:
    """Let these members join at the same time until all have ended well; return what they said."""
    log = clinics.folder / f"log-{len(clinics.forked)}.txt"
    for process in [clinics.join_forked(number, log=log) for number in numbers]:
        assert process.wait() == 0, log.read_text()
    return log.read_text()


def found(folder: Path, *, way: str = "https", **agreed: Any) -> Clinics:
    """Three members of a federation with one exchange, over HTTPS or through a folder."""
    exchange = "https" if way == "https" else (folder / "store").as_uri()
    return found_clinics(folder, exchange=exchange, **{"settings": {**SETTINGS, **ONCE}, **agreed})


def outcome(clinics: Clinics, number: int) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((clinics.state(number) / "participant.json").read_text())
    return record


def received_files(clinics: Clinics, number: int) -> list[Path]:
    """What lies in a member's folder of others' bytes, wherever it may be."""
    state = clinics.state(number)
    return [
        path
        for name in ("exchange/in", "committee")
        for path in (state / name).rglob("*.safetensors*")
        if path.is_file()
    ]


@pytest.fixture(scope="module", params=["https", "folder"])
def federation(request, tmp_path_factory):
    clinics = found(tmp_path_factory.mktemp(request.param), way=request.param, committee=True)
    try:
        said = joined(clinics, 0, 1, 2)
        yield clinics, said
    finally:
        clinics.end()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("simulated") / "run"
    run(experiment(**ONCE), output=path)
    return path


def test_its_predictions_are_those_of_the_simulation_bit_by_bit(federation, simulated):
    clinics, _ = federation
    directory = RunDirectory(simulated)
    # Members keep the last exchange. A simulated run's own committee is of its selected round, so ask for the last.
    models = stored_models(directory, round_index=ROUNDS, objects={})
    models = replace(models, record={**models.record, "peers": [without_statistics(p) for p in models.record["peers"]]})
    models = complete_models(models, directory)
    images = np.random.default_rng(1).integers(0, 256, (300, 8, 8, 1), dtype=np.uint8)
    for number in range(3):
        expected = make_committee(models, client=number)
        ours = crad.load_model(clinics.state(number) / "committee.safetensors")
        for face in ("global", "local"):
            assert np.array_equal(ours.predict_proba(images, face=face), expected.predict_proba(images, face=face))
        assert expected.evidence == "pooled"
    last = json.loads((simulated / "rounds.jsonl").read_text().splitlines()[-1])["committee"]
    told = [outcome(clinics, number)["committee"]["accuracy"] for number in range(3)]
    assert told == pytest.approx(last["local_accuracy_per_client"])


def without_statistics(peer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in peer.items() if name != "statistics"}


def test_a_member_is_told_what_all_do_together_and_who_is_in_it(federation):
    clinics, said = federation
    made = outcome(clinics, 1)["committee"]
    assert made["members"] == {f"clinic-{number}": ROUNDS for number in range(3)}
    assert made["left_out"] == {}
    own = read_npz(clinics.site(1).parent / "own.npz", with_validation=True)
    committee = crad.load_model(clinics.state(1) / "committee.safetensors")
    hits = committee.predict(own.test_images, face="local", as_index=True) == own.test_labels
    assert made["accuracy"] == pytest.approx(100 * hits.mean())
    assert made["own_accuracy"] == outcome(clinics, 1)["federated"]["local_accuracy"]
    sentence = (
        f"Your model {made['own_accuracy']:.1f} %, all of you together {made['accuracy']:.1f} %, on {len(hits)} own"
    )
    assert sentence in said
    assert sentence in (clinics.state(1) / "report.html").read_text()


def test_the_ledger_says_whose_snapshots_are_kept_and_nothing_else_stays(federation):
    clinics, _ = federation
    state = clinics.state(0)
    kept = list(read_received(state / "ledger.jsonl"))
    assert [(entry.sender, entry.what, entry.round) for entry in kept] == [
        (f"clinic-{number}", "kept", ROUNDS) for number in (1, 2)
    ]
    assert not (state / "exchange" / "in").exists()
    assert {path.name.rpartition("-")[0] for path in (state / "committee").glob("*.safetensors")} == {
        f"clinic-{number}" for number in range(3)
    }
    assert all(piece.what != "kept" for piece in read_ledger(state / "ledger.jsonl")), "these bytes did not leave"


def test_crad_predict_reads_the_file(federation, tmp_path, capsys, monkeypatch):
    clinics, _ = federation
    own = read_npz(clinics.site(2).parent / "own.npz", with_validation=True)
    np.save(tmp_path / "images.npy", own.test_images[:3])
    words = ["predict", str(clinics.state(2) / "committee.safetensors"), str(tmp_path / "images.npy"), "--json"]
    monkeypatch.setattr("sys.argv", ["crad", *words, "--face", "local"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    said = json.loads(capsys.readouterr().out)
    assert said["committee"]["members"] == [0, 1, 2]
    assert len(said["predictions"]) == 3


# --- whoever comes later


def test_who_comes_later_through_a_store_finds_all_and_the_others_join_again_without_training(tmp_path):
    clinics = found(tmp_path, way="folder", committee=True, deadline_s=3.0)
    try:
        said = joined(clinics, 0)
        assert "There is no committee: nobody else's snapshot could be used." in said
        assert not (clinics.state(0) / "committee.safetensors").exists()
        joined(clinics, 1)
        assert list(outcome(clinics, 1)["committee"]["members"]) == ["clinic-0", "clinic-1"]
        joined(clinics, 2)
        assert list(outcome(clinics, 2)["committee"]["members"]) == ["clinic-0", "clinic-1", "clinic-2"]
        before = {path: path.stat().st_mtime_ns for path in (clinics.state(0) / "checkpoint" / "states").iterdir()}
        joined(clinics, 0)
        made = outcome(clinics, 0)["committee"]
        assert list(made["members"]) == ["clinic-0", "clinic-1", "clinic-2"]
        assert made["left_out"] == {}
        after = {path: path.stat().st_mtime_ns for path in (clinics.state(0) / "checkpoint" / "states").iterdir()}
        assert after == before, "nothing was trained again"
        kept = [sorted(path.name for path in (clinics.state(number) / "committee").iterdir()) for number in (0, 2)]
        assert kept[0] == kept[1], "the same snapshots, named by their content, whoever came when"
    finally:
        clinics.end()


def test_over_https_the_first_goes_on_serving_for_a_stated_time_and_takes_what_comes_late(tmp_path):
    clinics = found(tmp_path, committee=True, deadline_s=2.0)
    for number in range(3):
        site = clinics.site(number)
        site.write_text(site.read_text() + "\nserve_s = 60\n")
    log = tmp_path / "first.txt"
    try:
        first = clinics.join_forked(0, log=log)
        wait_for(lambda: "for it, and joining again later" in log.read_text(), first, log)
        assert "There is no committee" in (clinics.state(0) / "report.html").read_text(), "there if it is stopped now"
        joined(clinics, 1, 2)
        assert first.wait() == 0, log.read_text()
        for number in range(3):
            made = outcome(clinics, number)["committee"]
            assert list(made["members"]) == ["clinic-0", "clinic-1", "clinic-2"], made
    finally:
        clinics.end()


def wait_for(is_so, process, log: Path) -> None:
    until = time.monotonic() + 60
    while not (log.exists() and is_so()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.02)


# --- where the agreement does not allow it


@pytest.mark.parametrize("method", ["committee", "experts"])
def test_what_came_is_deleted_after_the_last_round_and_the_ledger_says_how_many(tmp_path, method):
    clinics = found(tmp_path, way="folder", settings={**SETTINGS, "method": method})
    try:
        said = joined(clinics, 0, 1, 2)
        state = clinics.state(0)
        assert not received_files(clinics, 0)
        assert not (state / "committee.safetensors").exists()
        entries = {entry.sender: entry for entry in read_received(state / "ledger.jsonl")}
        # Experts are kept in a member's own state from the round on in which they are exchanged.
        assert entries.keys() == ({"checkpoint"} if method == "experts" else {"clinic-1", "clinic-2"})
        assert all(entry.what == "deleted" and entry.count and entry.bytes for entry in entries.values())
        assert all(abs(entry.time - time.time()) < 600 for entry in entries.values())
        made = outcome(clinics, 0)["committee"]
        assert (made["is_allowed"], made["deleted"]["count"]) == (False, sum(one.count for one in entries.values()))
        assert f"{made['deleted']['count']} of them" in said
        assert not foreign_memory(state), "what a method kept of the others is gone too"
    finally:
        clinics.end()


def foreign_memory(state: Path) -> list[str]:
    names = []
    for path in (state / "checkpoint" / "states").glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names += [name for name in file.keys() if name.startswith("memory.")]  # noqa: SIM118  # no mapping
    return names


@pytest.mark.parametrize("verb", ["status", "join"])
def test_after_a_crash_the_next_verb_deletes_what_was_left(tmp_path, verb, monkeypatch, capsys):
    """Killed between the last round and the deletion: as if the files had come back."""
    clinics = found(tmp_path, way="folder")
    try:
        joined(clinics, 0, 1, 2)
        state = clinics.state(0)
        left = state / "exchange" / "in" / f"round-{ROUNDS:05d}" / "snapshot-clinic-1-0123456789abcdef.safetensors"
        left.parent.mkdir(parents=True)
        left.write_bytes(bytes(1000))
        left.with_name(left.name.replace("clinic-1", "clinic-2") + ".part").write_bytes(bytes(10))
        before = len(list(read_received(state / "ledger.jsonl")))
        if verb == "join":
            # Also one that is refused at once: its keys are gone.
            shutil.rmtree(clinics.site(0).parent / "keys")
        monkeypatch.setattr("sys.argv", ["crad", "peer", verb, "--site", str(clinics.site(0))])
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code or 0) == (2 if verb == "join" else 0), capsys.readouterr().err
        if verb == "status":
            said = capsys.readouterr().out
            assert f"finished, round {ROUNDS} of {ROUNDS}; The agreement does not let" in said
        assert not received_files(clinics, 0)
        new = list(read_received(state / "ledger.jsonl"))[before:]
        assert [(one.sender, one.what, one.count, one.bytes) for one in new] == [
            ("clinic-1", "deleted", 1, 1000),
            ("clinic-2", "deleted", 1, 10),
        ]
    finally:
        clinics.end()


def test_an_agreement_that_says_nothing_has_the_hash_of_before_and_another_word_is_another_agreement(tmp_path):
    clinics = found(tmp_path)
    table = clinics.agreement.model_dump(mode="json", exclude_none=True)
    silent = make_agreement({name: value for name, value in table.items() if name != "committee"})
    forbids, allows = (make_agreement({**table, "committee": word}) for word in (False, True))
    assert "committee" not in silent.canonical()
    assert silent.hash == forbids.hash == clinics.agreement.hash
    assert allows.hash != silent.hash
    assert differences(silent, allows) == ["committee: nothing here, True there"]
    assert "committee" not in tomllib.loads(agreement_to_toml(forbids)), "an older version reads it"
    (tmp_path / "allows.toml").write_text(agreement_to_toml(allows))
    assert read_agreement(tmp_path / "allows.toml").hash == allows.hash
    with pytest.raises(ConfigError, match="committee"):
        make_agreement({**table, "committee": "yes"})


# --- hostile members


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three members that have ended through a folder; `hostile` puts something else in the place of clinic-1's."""
    clinics = found(tmp_path_factory.mktemp("trained"), way="folder", committee=True)
    try:
        joined(clinics, 0, 1, 2)
        yield clinics, prepare_local_peer(clinics.agreement, read_site(clinics.site(0)))
    finally:
        clinics.end()


def kept_with(clinics: Clinics, folder: Path, change: Callable[[Message], Message] | None) -> KeptSnapshots:
    """Clinic 0's kept snapshots, with a changed one of clinic-1 under its genuine signature; None: without it."""
    shutil.copytree(clinics.state(0) / "committee", folder)
    kept = KeptSnapshots(folder)
    before = kept.find("clinic-1")
    assert before is not None
    message = None if change is None else change(before.message)
    for path in folder.glob("clinic-1*"):
        path.unlink()
    if message is not None:
        envelope = seal(message.manifest, kind="snapshot", identity=clinics.identity(1), agreement=clinics.agreement)
        kept.keep("clinic-1", message, envelope)
    return kept


def repacked(message: Message, tensors: dict[str, torch.Tensor], **changes: Any) -> Message:
    manifest = Manifest.model_validate_json(message.manifest)
    about = {"architecture": manifest.architecture, "statistics": manifest.statistics, **changes}
    return pack(tensors, kind="snapshot", peer=1, round_index=manifest.round_index, **about)


def every(value: Callable[[torch.Tensor], torch.Tensor], message: Message) -> dict[str, torch.Tensor]:
    """Its tensors, those of floats changed."""
    tensors = read_state(bytes(message.body))
    return {name: value(one) if one.is_floating_point() else one for name, one in tensors.items()}


HARMS: dict[str, tuple[Callable[[Message], Message], str]] = {
    "wrong shape": (lambda one: repacked(one, every(lambda t: t[..., None], one)), "as tensor"),
    "non-finite": (lambda one: repacked(one, every(lambda t: t * torch.nan, one)), "non-finite value"),
    "overflow": (lambda one: repacked(one, every(lambda t: torch.full_like(t, 1e30), one)), "non-finite predictions"),
    "another network": (lambda one: repacked(one, read_state(bytes(one.body)), architecture="os:fork"), "os:fork"),
    "no statistics": (lambda one: repacked(one, read_state(bytes(one.body)), statistics=None), "class statistics"),
}


def said_by(made: MemberCommittee, images: Images) -> Probabilities:
    assert made.committee is not None
    return made.committee.predict_proba(images, "local")


@pytest.mark.parametrize("harm", HARMS)
def test_a_hostile_snapshot_is_left_out_and_named_and_the_rest_answer_as_without_it(trained, harm, tmp_path):
    clinics, part = trained
    change, reason = HARMS[harm]
    made = build_committee(part, kept_with(clinics, tmp_path / "hostile", change))
    assert reason in made.left_out["clinic-1"]
    assert list(made.rounds) == ["clinic-0", "clinic-2"]
    without = build_committee(part, kept_with(clinics, tmp_path / "without", None))
    images = np.random.default_rng(3).integers(0, 256, (20, 8, 8, 1), dtype=np.uint8)
    assert np.array_equal(said_by(made, images), said_by(without, images))


def test_noise_that_claims_to_know_everything_is_not_believed_and_changes_nothing(trained, tmp_path):
    clinics, part = trained
    claims = Statistics(counts=(10_000.0,) * 10, accuracies=(1.0,) * 10)
    torch.manual_seed(0)

    def noise(one: Message) -> Message:
        return repacked(one, every(torch.rand_like, one), statistics=claims)

    kept = kept_with(clinics, tmp_path / "hostile", noise)
    made = build_committee(part, kept)
    assert made.left_out["clinic-1"].startswith("what it says of itself is not so: of our ")
    assert made.believed["clinic-0"] == 1.0
    assert made.believed["clinic-2"] > 0.1
    without = build_committee(part, kept_with(clinics, tmp_path / "without", None))
    images = read_npz(clinics.site(0).parent / "own.npz", with_validation=True).test_images
    assert np.array_equal(said_by(made, images), said_by(without, images))


def test_a_member_that_boasts_is_believed_less(trained, tmp_path):
    clinics, part = trained

    def boast(one: Message) -> Message:
        said = Manifest.model_validate_json(one.manifest).statistics
        assert said is not None
        much = said.model_copy(update={"counts": tuple(100 * n for n in said.counts), "accuracies": (1.0,) * 10})
        return repacked(one, read_state(bytes(one.body)), statistics=much)

    honest = build_committee(part, kept_with(clinics, tmp_path / "honest", lambda message: message))
    made = build_committee(part, kept_with(clinics, tmp_path / "boasting", boast))
    assert made.believed.get("clinic-1", 0.0) < honest.believed["clinic-1"]
    assert list(honest.rounds) == ["clinic-0", "clinic-1", "clinic-2"]


def test_who_signed_two_snapshots_or_whose_file_is_gone_is_left_out(trained, tmp_path):
    clinics, part = trained
    kept = kept_with(clinics, tmp_path / "kept", lambda message: message)
    next(kept.folder.glob("clinic-1-*.safetensors")).unlink()
    made = build_committee(part, kept, proven=["clinic-2"])
    assert made.committee is None, "nobody else is left"
    assert made.left_out == {
        "clinic-1": "the file of its snapshot is gone",
        "clinic-2": "it signed two different snapshots for one round",
    }


def test_hostile_members_in_a_federation_leave_the_others_a_committee(tmp_path):
    """One whose model overflows, and one whose network no honest member lets run; both with genuine keys."""
    clinics = found_clinics(
        tmp_path,
        clients=4,
        exchange=(tmp_path / "store").as_uri(),
        deadline_s=4.0,
        committee=True,
        settings={**SETTINGS, **ONCE},
    )
    table = clinics.agreement.model_dump(mode="json", exclude_none=True)
    table["members"][3]["architecture"] = HOSTILE["names a module that kills"].network
    clinics.agreement = make_agreement(table)
    (tmp_path / "federation.toml").write_text(agreement_to_toml(clinics.agreement))
    try:
        let_loose(clinics, 2, "overflows", honest=(0, 1))
        let_loose(clinics, 3, "names a module that kills", honest=(0, 1))
        log = tmp_path / "log.txt"
        for process in [clinics.join_forked(number, log=log) for number in (0, 1)]:
            assert process.wait() == 0, log.read_text()
        for number in (0, 1):
            made = outcome(clinics, number)["committee"]
            assert list(made["members"]) == ["clinic-0", "clinic-1"]
            assert made["left_out"]["clinic-2"] == "it gives non-finite predictions"
            assert "not built in" in made["left_out"]["clinic-3"]
            committee = crad.load_model(clinics.state(number) / "committee.safetensors")
            assert isinstance(committee, crad.Committee)
            assert committee.members == (0, 1)
    finally:
        clinics.end()
