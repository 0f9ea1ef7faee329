"""Organisations with texts, recordings, series, and trees among networks, as real processes: each one federation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from crad.federation.peer import Peer
from crad.site.local_peer import prepare_local_peer
from crad.site.settings import read_site
from tests.clinics import Clinics
from tests.kind_clinics import Kind, found_members, series_members, sound_members, text_members, tree_members
from tests.test_recordings import people, pumps, tone, wav, whistles  # noqa: F401  # fixtures
from tests.test_tables import clinics, wards  # noqa: F401  # fixtures
from tests.test_texts import news, papers  # noqa: F401  # fixtures

# Each kind once, over one of the two ways; trees over both, with both losses and with a committee of one exchange.
WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "texts": ("text", "folder", {}),
    "recordings": ("audio", "https", {}),
    "series": ("series", "folder", {"method": "uniform"}),
    "trees": ("table", "https", {"local_loss": "balanced"}),
    "trees, one exchange": ("table", "folder", {"method": "committee"}),
}
WORDS = {"text": "texts", "audio": "recordings", "series": "series", "table": "rows"}
TRAVELS = {
    "text": "which words occur in the training texts",
    "audio": "mean and deviation of the training recordings",
    "series": "mean and deviation of every channel",
    "table": "thresholds that are values of the training rows",
}


@pytest.fixture(scope="module", params=list(WAYS))
def federation(request, tmp_path_factory) -> Iterator[tuple[str, Kind, Clinics, str]]:
    kind_name, way, agreed = WAYS[request.param]
    folder = tmp_path_factory.mktemp("kinds")
    get = request.getfixturevalue
    if kind_name == "text":
        kind = text_members(get("papers"), **agreed)
    elif kind_name == "audio":
        kind = sound_members(get("whistles"), get("people"), folder, **agreed)
    elif kind_name == "series":
        kind = series_members(get("pumps"), **agreed)
    else:
        kind = tree_members(get("wards"), **agreed)
    exchange = "https" if way == "https" else (folder / "store").as_uri()
    members = found_members(folder, kind, exchange=exchange, committee=True, **agreed)
    log = folder / "log.txt"
    try:
        for process in [members.join_forked(number, log=log) for number in range(len(kind.models))]:
            assert process.wait() == 0, log.read_text()
        yield kind_name, kind, members, log.read_text()
    finally:
        members.end()


def last_states(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "checkpoint" / "states").glob("*-round-00002-*")}


def test_everybody_ends_with_the_bytes_of_the_simulation(federation, tmp_path):
    _, kind, members, _ = federation
    kind.run(tmp_path / "simulated")
    expected = last_states(tmp_path / "simulated")
    assert len(expected) == len(kind.models)
    for number in range(len(kind.models)):
        [(name, content)] = last_states(members.state(number)).items()
        assert content == expected[name], f"clinic {number}"


def test_a_member_has_its_report_its_status_and_models_that_predict_its_own_kind(federation, crad_command):
    kind_name, kind, members, said = federation
    folder, several = members.state(0), WORDS[kind_name]
    record = json.loads((folder / "participant.json").read_text())
    assert record.get("words", {}).get("several") == several
    assert TRAVELS[kind_name] in record["also_left"]
    names = {f"clinic-{number}" for number in range(len(kind.models))}
    assert record["committee"]["members"].keys() == names
    page = (folder / "report.html").read_text()
    assert TRAVELS[kind_name] in page
    assert " images" not in page.partition("<script")[0]
    assert f"own test {several}" in said
    code, out, _ = crad_command("peer", "status", "--site", members.site(0))
    assert (code, "finished" in out, f"own test {several}" in out) == (0, True, True)
    inputs = members.site(0).parent / new_samples(kind_name, members.site(0).parent)
    for file in ("model.safetensors", "committee.safetensors"):
        code, out, err = crad_command("predict", folder / file, inputs, "--json")
        assert code == 0, err
        assert set(json.loads(out)["predictions"][0]["probabilities"]) == set(members.agreement.classes)


def new_samples(kind_name: str, folder: Path) -> str:
    """Something new of this kind, as a file."""
    if kind_name == "text":
        (folder / "new.csv").write_text("text\nthe rocket went up\nx\n")
        return "new.csv"
    if kind_name == "audio":
        (folder / "new.wav").write_bytes(wav(tone(200.0, 0.2)))
        return "new.wav"
    if kind_name == "series":
        np.save(folder / "new.npy", np.zeros((2, 2, 40), np.float32))
        return "new.npy"
    (folder / "new.csv").write_text("sex,sugar,pressure,lab\nf,4.0,110,\n")
    return "new.csv"


def test_the_doctor_understands_the_file_and_says_what_everything_costs(federation, crad_command):
    kind_name, kind, members, _ = federation
    _, out, _ = crad_command("peer", "doctor", "--site", members.site(1), "--json")
    found = {one["check"]: one for one in json.loads(out)["findings"]}
    for check in ("data", "model", "disk", "memory", "committee"):
        assert found[check]["state"] == "ok", found[check]
    assert members.agreement.data_schema.describe() in found["data"]["text"]
    understood = {
        "text": "in 'Meldung': median",
        "audio": "brought to 0.38 s: 30 get silence at their end",
        "series": "channels 'noise', 'half'",
        "table": "4 as agreed",
    }
    about = "columns" if kind_name == "table" else WORDS[kind_name]
    assert understood[kind_name] in found[about]["text"]
    cost = found["committee"]["details"]
    assert cost["members"] == len(kind.models)
    assert 0 < cost["milliseconds"] < 60_000
    assert ("thresholds" in found["model"]["text"]) == kind.models[1].startswith(("gradient", "random"))


def test_who_comes_again_trains_nothing_and_has_the_same(federation, tmp_path):
    _, _, members, _ = federation
    before = (members.state(0) / "model.safetensors").read_bytes()
    log = tmp_path / "again.txt"
    assert members.join_forked(0, log=log).wait() == 0, log.read_text()
    assert (members.state(0) / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("federation", ["texts"], indirect=True)
def test_whoever_gets_a_snapshot_of_texts_sees_which_words_were_trained_on(federation):
    _, _, members, _ = federation
    part = prepare_local_peer(members.agreement, read_site(members.site(0)))
    drawn = Peer(part.context, part.method.roster(part.context)[0]).model.state_dict()
    trained = load_file(members.state(0) / "model.safetensors")
    [name] = [key for key, weight in drawn.items() if weight.shape[:1] == (512,)]
    # The decay of adamw shrinks all rows alike; what is not along the drawn direction was learned from a text.
    aligned = torch.nn.functional.cosine_similarity(drawn[name], trained[name], dim=1)
    dataset, shard = part.context.data.dataset, part.context.data.shards[0]
    written = set(dataset.train_samples[shard.train].ravel().tolist()) - {0}
    moved = set((aligned < 1 - 1e-5).nonzero()[:, 0].tolist()) - {0}
    assert moved == written
