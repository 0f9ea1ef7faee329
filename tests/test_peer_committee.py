"""The committee between organisations: kept where the agreement allows it, deleted where not, equal to a simulation."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crad
from crad.api import run
from crad.cli import main
from crad.data.readers.npz import read_npz
from crad.network.ledger import read_ledger, read_received
from crad.prediction.committee import make_committee
from crad.prediction.run_models import complete_models, stored_models
from crad.runs.directory import RunDirectory
from tests.clinics import SETTINGS, Clinics, experiment, found_clinics

ONCE = {"method": "committee"}  # trained alone, exchanged once, at the end
ROUNDS = SETTINGS["rounds"]


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
