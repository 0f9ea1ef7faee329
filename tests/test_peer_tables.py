"""Organisations with a table each, as real processes: the weights of the simulation, and what they have in the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import crad
from crad.api import run
from crad.config import Experiment
from crad.errors import SnapshotError
from crad.federation.context import build_run_context
from crad.federation.message import Message, Statistics, pack
from crad.federation.peer import Peer
from crad.federation.teachers import TeacherCache
from crad.models import TableEncoder
from crad.prediction.committee import make_committee
from crad.prediction.run_models import complete_models, stored_models
from crad.runs.directory import RunDirectory
from crad.site.doctor.findings import Findings
from crad.site.doctor.own_model import check_data
from crad.site.local_peer import LocalPeer, prepare_local_peer
from crad.site.settings import read_site
from tests.clinics import Clinics
from tests.conftest import change
from tests.test_peer_committee import without_statistics
from tests.test_tables import clinics, encoder_of, wards  # noqa: F401  # fixtures
from tests.ward_clinics import LEARNING, MODELS, found_wards

HUGE = 1e30
# Two ways of exchanging, and both ways of standardising.
WAYS: dict[str, dict[str, object]] = {
    "https": {},
    "folder": {"standardize": "schema", "method": "committee", "local_loss": "balanced"},
}


@pytest.fixture(scope="module", params=list(WAYS))
def federation(request, tmp_path_factory, wards) -> Iterator[tuple[str, Clinics, str]]:  # noqa: F811
    folder = tmp_path_factory.mktemp(request.param)
    exchange = "https" if request.param == "https" else (folder / "store").as_uri()
    members = found_wards(folder, wards, exchange=exchange, committee=True, **WAYS[request.param])
    log = folder / "log.txt"
    try:
        for process in [members.join_forked(number, log=log) for number in range(3)]:
            assert process.wait() == 0, log.read_text()
        yield request.param, members, log.read_text()
    finally:
        members.end()


def simulation(wards: Experiment, **changes: object) -> Experiment:  # noqa: F811
    """The simulation that the members must equal; its schema has the ranges that they have agreed on."""
    ranges = "pressure=40:300,sugar=0.9:20,lab=0:300"
    return change(wards, models=MODELS, width=1, proxy_size=0, ranges=ranges, eval_every=1, **LEARNING, **changes)


def last_states(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "checkpoint" / "states").glob("*-round-00002-*")}


def test_weights_and_committee_are_those_of_the_simulation_bit_by_bit(federation, wards, tmp_path):  # noqa: F811
    way, members, _ = federation
    run(simulation(wards, **WAYS[way]), output=tmp_path / "simulated")
    expected = last_states(tmp_path / "simulated")
    assert len(expected) == 3
    for number in range(3):
        [(name, content)] = last_states(members.state(number)).items()
        assert content == expected[name], f"clinic {number}"
    if way != "folder":
        return  # what a committee of crad hears was published before the last round's learning
    directory = RunDirectory(tmp_path / "simulated")
    models = stored_models(directory, round_index=2, objects={})
    models = replace(models, record={**models.record, "peers": [without_statistics(p) for p in models.record["peers"]]})
    models = complete_models(models, directory)
    rows = np.array([[110, 4.0, 0, np.nan], [np.nan, 6.5, 2, 17.2], [140, np.nan, 1, 130]], np.float32)
    for number in range(3):
        together = crad.load_model(members.state(number) / "committee.safetensors")
        said = make_committee(models, client=number).predict_proba(rows)
        np.testing.assert_array_equal(together.predict_proba(rows), said)


def test_a_member_has_its_model_its_report_and_predicts_a_table_of_the_agreed_columns(federation, crad_command):
    way, members, said = federation
    folder = members.state(1)
    record = json.loads((folder / "participant.json").read_text())
    assert record["words"] == {"one": "row", "several": "rows"}
    assert record["committee"]["members"].keys() == {"clinic-0", "clinic-1", "clinic-2"}
    page = (folder / "report.html").read_text()
    assert "own test rows" in page
    assert " images" not in page.partition("<script")[0]
    assert ("mean and deviation of every column" in page) == (way == "https")
    assert "own test rows" in said
    code, out, _ = crad_command("peer", "status", "--site", members.site(1))
    assert (code, "finished" in out, "own test rows" in out) == (0, True, True)
    with safe_open(folder / "model.safetensors", "pt") as model:
        columns = json.loads(model.metadata()["columns"])
    assert [column["name"] for column in columns] == ["pressure", "sugar", "sex", "lab"]
    new = folder / "new.csv"
    new.write_text("sex,sugar,pressure,lab\nf,4.0,110,\n")
    for file in ("model.safetensors", "committee.safetensors"):
        code, out, err = crad_command("predict", folder / file, new, "--json")
        assert code == 0, err
        assert set(json.loads(out)["predictions"][0]["probabilities"]) == {"no", "yes"}


def test_the_doctor_says_what_it_understood_of_the_table(wards, tmp_path):  # noqa: F811
    members = found_wards(tmp_path, wards)
    findings = Findings()
    assert check_data(members.agreement, read_site(members.site(1)), findings) is not None
    found = {one.check: one for one in findings.all}
    assert {one.state for one in findings.all} == {"ok"}
    assert "(here 'glucose mmol', times 10)" in found["columns"].text
    assert found["columns"].details["passed_over"] == ["patient"]
    assert "rows of 4 columns (3 numbers, 1 categories), label 'ill'" in found["data"].text


def test_a_network_for_images_cannot_join_a_federation_about_tables(wards, tmp_path, crad_command):  # noqa: F811
    members = found_wards(tmp_path, wards)
    assert crad_command("peer", "init", "--name", "late", "--folder", tmp_path / "late", "--address", "h:1")[0] == 0
    code, _, err = crad_command("peer", "trust", tmp_path / "federation.toml", tmp_path / "late" / "member.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert "late: model 'cnn6' is for data of kind 'image', and this is of kind 'table': choose mlp, mlp-deep," in err
    text = (members.site(0).parent / "peer.toml").read_text()
    (members.site(0).parent / "peer.toml").write_text(text.replace('name = "clinic-0"', 'name = "late"'))
    words = ("--site", members.site(0), "--member", tmp_path / "late" / "member.toml", "--label", "ill")
    code, _, err = crad_command("peer", "invite", "--federation", "x", *words, "--output", tmp_path / "x.toml")
    assert (code, "choose mlp, mlp-deep, tab-transformer" in err) == (2, True)


def test_a_table_that_does_not_fit_is_refused_by_doctor_and_join_with_the_line_to_write(
    wards,  # noqa: F811
    tmp_path,
    crad_command,
):
    members = found_wards(tmp_path, wards)
    path = members.site(1)
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("columns.sex")))
    said = (
        "own.csv: column 'sex' holds 'W', 'M' (line 2), the agreed categories are 'f', 'm': write "
        'columns.sex.categories = { "W" = "...", "M" = "..." } into peer.toml, or columns.sex.missing = "W" if it '
        "means a gap"
    )
    code, _, err = crad_command("peer", "join", "--site", path)
    assert (code, err.count("\n")) == (2, 1)
    assert err.endswith(f"{said}\n")
    code, out, err = crad_command("peer", "doctor", "--site", path, "--json")
    [problem] = [one for one in json.loads(out)["findings"] if one["check"] == "data"]
    assert (code, problem["state"]) == (2, "problem")
    assert problem["text"].endswith(said)


# --- hostile snapshots


@pytest.fixture(scope="module", params=["own", "schema"])
def member(request, tmp_path_factory, wards) -> LocalPeer:  # noqa: F811
    members = found_wards(tmp_path_factory.mktemp("alone"), wards, standardize=request.param)
    return prepare_local_peer(members.agreement, read_site(members.site(0)))


def foreign(member: LocalPeer, **buffers: float) -> Message:
    """A snapshot of member 1, well formed, whose first layer has these values throughout."""
    spec = replace(member.method.roster(member.context)[1], clients=(0,))  # its rows are elsewhere: ours will do
    weights = dict(Peer(member.context, spec).model.state_dict())
    for name, value in buffers.items():
        weights[f"encoder.{name}"] = torch.full_like(weights[f"encoder.{name}"], value)
    statistics = Statistics(counts=(20.0, 20.0), accuracies=(0.9, 0.9))
    return pack(weights, kind="snapshot", peer=1, round_index=1, architecture=MODELS[1], statistics=statistics)


HOSTILE = {
    "a scale of 1e30": {"scale": HUGE},
    "a mean of 3e38": {"mean": 3e38, "scale": 0.0},
    "both": {"mean": -3e38, "scale": 3e38},
    "a negative scale": {"scale": -HUGE},
}


@pytest.mark.parametrize("buffers", HOSTILE.values(), ids=HOSTILE)
def test_whatever_statistics_a_snapshot_has_what_it_says_is_finite_or_it_is_refused(member, buffers):
    cache = TeacherCache(member.context)
    message = foreign(member, **buffers)
    if member.experiment.standardize == "schema":
        with pytest.raises(
            SnapshotError, match=r"peer 1 sent 'encoder\.(mean|scale)' that is not by the agreed ranges"
        ):
            cache.decode(message, sender=1, round_index=1)
        return
    teacher = cache.get(cache.decode(message, sender=1, round_index=1))
    rows = torch.tensor([[3e38, -3e38, 1.0, 120.0], [torch.nan] * 4, [120.0, 5.0, 0.0, 100.0]])
    assert teacher(rows).isfinite().all()


def test_statistics_that_are_no_numbers_are_refused_and_honest_ones_taken(member):
    cache = TeacherCache(member.context)
    with pytest.raises(SnapshotError, match=r"peer 1 sent a non-finite value in tensor 'encoder\.scale'"):
        cache.decode(foreign(member, scale=float("nan")), sender=1, round_index=1)
    assert cache.decode(foreign(member), sender=1, round_index=1).peer == 1


# --- by own statistics, or by the agreed ranges


def test_by_the_schema_everybody_prepares_rows_alike_and_nothing_of_anybodys_rows_is_in_it(wards):  # noqa: F811
    context = build_run_context(simulation(wards, standardize="schema"))
    encoders = [encoder_of(Peer(context, one).model) for one in crad.federation.method.one_peer_per_client(context)]
    for encoder in encoders:
        assert encoder.mean.tolist() == pytest.approx([170, 10.45, 150])
        assert encoder.scale[:3].tolist() == pytest.approx([4 / 260, 4 / 19.1, 4 / 300])
        assert encoder.scale[3:].tolist() == [1.0] * 7


def test_a_range_counts_as_four_deviations():
    encoder = TableEncoder((0, 2))
    encoder.fit_ranges([(0.0, 100.0), None])
    assert encoder(torch.tensor([[0.0, 0.0], [100.0, 1.0], [50.0, torch.nan]]))[:, 0].tolist() == [-2.0, 2.0, 0.0]
