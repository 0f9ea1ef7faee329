"""What was tried and dropped is still read where it was off, and refused in one line where it was on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from crad.config import Experiment, make_experiment, stored_experiment, to_toml
from crad.config.older_names import DROPPED
from crad.errors import ConfigError, SnapshotError
from crad.federation.teachers import TeacherCache
from crad.runs.directory import experiment_hash
from tests.conftest import ROOT
from tests.federation import Federation
from tests.organisations import agreed, make_identities

ON = {
    "snapshot_average": 0.5,
    "calibration": "temperature",
    "pooling": "log",
    "distill_by_class": 1.0,
    "filter": "consensus-of-three",
    "distill_schedule": "falling",
}
each = pytest.mark.parametrize("name", ON)


def refusal(name: str) -> str:
    return rf"{name} = {ON[name]!r} was tried and dropped \(docs/choosing-the-rule.md\): take crad at commit e30c49f"


def stored(path, **settings):
    """A run's file as the version wrote it that had the settings."""
    ours = to_toml(Experiment(method="crad-plus"))
    kept = [line for line in ours.splitlines() if line.split(" = ")[0] not in settings]
    path.write_text("\n".join([*(f"{name} = {json.dumps(value)}" for name, value in settings.items()), *kept]))
    return path


def test_a_run_without_them_is_read_as_it_was(tmp_path):
    experiment = stored_experiment(stored(tmp_path / "experiment.toml", **DROPPED))
    assert experiment == Experiment(method="crad-plus")
    assert not set(DROPPED) & set(experiment.model_dump())
    assert make_experiment(path=tmp_path / "experiment.toml") == experiment


def test_kept_runs_are_found_by_the_name_that_they_had():
    kept = sorted((ROOT / "evidence/main/runs").glob("*/experiment.toml"))
    assert kept
    assert any("snapshot_average" in path.read_text() for path in kept)
    for path in kept:
        assert path.parent.name.endswith(experiment_hash(stored_experiment(path))[:8])


@each
def test_a_run_with_one_is_refused_with_where_it_can_be_read(tmp_path, name):
    path = stored(tmp_path / "experiment.toml", **{name: ON[name]})
    with pytest.raises(ConfigError, match=rf"experiment.toml: {refusal(name)} .* to read a run that had it$"):
        stored_experiment(path)


@each
def test_none_can_be_set(name):
    with pytest.raises(ConfigError, match=refusal(name)):
        Experiment(**{name: ON[name]})


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


def test_an_agreement_that_says_that_they_are_off_keeps_its_hash(identities):
    for method in ("crad", "crad-plus"):
        assert agreed(identities, settings={"method": method, **DROPPED}).hash == (
            agreed(identities, settings={"method": method}).hash
        )


@each
def test_an_agreement_on_one_is_refused(identities, name):
    with pytest.raises(ConfigError, match=refusal(name)) as refused:
        agreed(identities, settings={name: ON[name]})
    assert "\n" not in str(refused.value)


def test_what_anybody_wrote_there_is_one_short_line(identities):
    with pytest.raises(ConfigError, match="was tried and dropped") as refused:
        agreed(identities, settings={"pooling": [1000 * "\x1b\n"]})
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


def test_a_temperature_in_a_manifest_is_refused_like_any_word_that_nobody_knows(shallow):
    federation = Federation(shallow)
    message = federation.peer(1).snapshot(1)
    manifest = json.loads(message.manifest)
    assert manifest["statistics"].keys() == {"counts", "accuracies"}
    manifest["statistics"]["temperature"] = 2.0
    with pytest.raises(SnapshotError, match=r"peer 1 sent a malformed manifest: statistics.temperature: Extra inputs"):
        TeacherCache(federation.context).decode(
            replace(message, manifest=json.dumps(manifest).encode()), sender=1, round_index=1
        )
