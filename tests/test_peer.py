"""Organisations as real processes: the same weights as in simulation, and what a member has in hand at the end."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from crad.api import run
from crad.network.ledger import read_ledger
from tests.clinics import SETTINGS, Clinics, experiment, found_clinics

PATIENCE_S = 400
KILLED = 2  # the clinic that is killed after its first round


def assert_finished(process) -> None:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "Report:" in out


def finish_forked(clinics: Clinics, numbers) -> None:
    """The same with a fast start: that a member is a process of its own, the others show."""
    log = clinics.folder / "log.txt"
    for process in [clinics.join_forked(number, log=log) for number in numbers]:
        assert process.wait() == 0, log.read_text()
    assert "Report:" in log.read_text()


# Two ways of exchanging, and both ends of what a method may be made of, and of how a student takes its steps.
ADAMW = {"optimizer": "adamw", "lr": 0.003, "lr_schedule": "cosine", "warmup_rounds": 1}
WAYS: dict[str, dict[str, Any]] = {"over_https": ADAMW, "over_a_folder": {"method": "crad-plus", "matching": "mixup"}}


@pytest.fixture(scope="module")
def over_https(tmp_path_factory):
    """One of them is killed in the middle and joins again: nobody may see that in the weights.

    It alone is started, twice, and exports to ONNX; the others are forked.
    """
    agreed = {**SETTINGS, **WAYS["over_https"]}
    clinics = found_clinics(tmp_path_factory.mktemp("https"), quorum=1, settings=agreed)
    try:
        killed = clinics.join(KILLED)
        logs = [clinics.folder / f"log-{number}.txt" for number in (0, 1)]
        others = [clinics.join_forked(number, log=log) for number, log in enumerate(logs)]
        while not (clinics.state(KILLED) / "rounds.jsonl").exists():
            assert killed.poll() is None, killed.communicate()
            time.sleep(0.01)
        killed.kill()
        killed.communicate()
        assert_finished(clinics.join(KILLED))
        for process, log in zip(others, logs, strict=True):
            assert process.wait() == 0, log.read_text()
            assert "Report:" in log.read_text()
        yield clinics
    finally:
        clinics.end()


@pytest.fixture(scope="module")
def over_a_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder")
    agreed = {**SETTINGS, **WAYS["over_a_folder"]}
    clinics = found_clinics(folder, exchange=(folder / "store").as_uri(), settings=agreed)
    try:
        finish_forked(clinics, range(3))
        yield clinics
    finally:
        clinics.end()


def last_states(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "checkpoint" / "states").glob("*-round-00003-*")}


@pytest.mark.parametrize("way", list(WAYS))
def test_the_weights_are_those_of_the_simulation_bit_by_bit(way, tmp_path, request):
    clinics = request.getfixturevalue(way)
    run(experiment(**WAYS[way]), output=tmp_path / "simulated")
    expected = last_states(tmp_path / "simulated")
    assert len(expected) == 3
    for number in range(3):
        states = last_states(clinics.state(number))
        assert len(states) == 1
        for name, content in states.items():
            assert content == expected[name], f"clinic {number}"


def test_a_member_has_its_model_its_report_and_its_ledger(over_https):
    folder = over_https.state(1)
    record = json.loads((folder / "participant.json").read_text())
    assert record["member"] == "clinic-1"
    assert record["rounds_taken_part"] == 3
    assert record["missing"] == {}
    difference = record["federated"]["local_accuracy"] - record["alone"]["local_accuracy"]
    assert record["difference"] == pytest.approx(difference)
    assert {row["member"] for row in record["trusted"]} == {"clinic-0", "clinic-2"}
    page = (folder / "report.html").read_text()
    assert f"{record['alone']['local_accuracy']:.2f} %" in page
    with safe_open(folder / "model.safetensors", "pt") as model:
        assert json.loads(model.metadata()["classes"]) == list(over_https.agreement.classes)
        assert model.metadata()["architecture"] == "cnn6@0.125"
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"


def test_what_left_is_in_the_ledger_to_the_byte(over_https):
    folder = over_https.state(0)
    pieces = [piece for piece in read_ledger(folder / "ledger.jsonl") if piece.what == "snapshot"]
    assert {piece.to for piece in pieces} == {"clinic-1", "clinic-2"}
    for name in ("clinic-1", "clinic-2"):
        rounds = {piece.round for piece in pieces if piece.to == name}
        assert rounds == {1, 2, 3}
    record = json.loads((folder / "participant.json").read_text())
    for name in ("clinic-1", "clinic-2"):
        assert record["left"][name]["snapshot"] == sum(piece.bytes for piece in pieces if piece.to == name)


def test_the_exported_onnx_model_says_what_the_model_says(over_https):
    onnxruntime = pytest.importorskip("onnxruntime")
    import numpy as np
    import torch
    from safetensors.torch import load_file

    from crad.models import Architecture, build_model

    folder = over_https.state(2)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)
    given, local = session.run(["probabilities", "local_probabilities"], {"pixels": pixels})
    model = build_model(Architecture("cnn6", 0.125), num_classes=10, in_channels=1, image_size=(8, 8), seed=0)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    mean, std = (
        torch.tensor(values).view(1, 1, 1, 1) for values in (over_https.agreement.mean, over_https.agreement.std)
    )
    with torch.no_grad():
        inputs = (torch.from_numpy(pixels).permute(0, 3, 1, 2) - mean) / std
        expected = torch.softmax(model.eval()(inputs), dim=1).numpy()
    assert np.allclose(given, expected, atol=1e-5)
    assert np.allclose(local, expected, atol=1e-5), "under the plain loss both faces are one"


def test_secrets_are_the_owners_alone(over_https):
    for path in (over_https.folder / "clinic-0" / "keys" / "key.pem", over_https.state(0) / "secret"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_joining_again_after_the_end_changes_nothing(over_a_folder):
    before = last_states(over_a_folder.state(0))
    finish_forked(over_a_folder, [0])
    assert last_states(over_a_folder.state(0)) == before


def test_a_member_that_was_killed_goes_on_and_the_others_do_not_wait_for_ever(over_https):
    lines = (over_https.state(KILLED) / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["round"] for line in lines]
    assert rounds == sorted(set(rounds)), "no round twice"
    assert rounds[-1] == 3
