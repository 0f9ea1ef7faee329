"""The settings: flags over file over preset, a true round trip, and one clear line for everything that cannot work."""

from __future__ import annotations

import math
import shlex
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from crad.config import (
    PRESETS,
    Experiment,
    changed_settings,
    make_experiment,
    to_flags,
    to_toml,
    with_current_names,
    with_stored_names,
)
from crad.data.partition import MIN_SAMPLES
from crad.data.preprocessing import CROP_PADDING
from crad.errors import ConfigError
from crad.files import read_toml
from crad.models import POOL

EXAMPLES = settings(max_examples=25, derandomize=True, database=None, deadline=None)


@pytest.fixture
def write(tmp_path):
    """Write an experiment file and return where it lies."""

    def write_it(text):
        path = tmp_path / "experiment.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_it


def refusal_of(settings=None, *, path=None):
    with pytest.raises(ConfigError) as refusal:
        make_experiment(settings, path=path)
    line = str(refusal.value)
    assert "\n" not in line
    return line


# --- what wins over what


def test_flags_win_over_the_file_and_the_file_over_the_preset(write):
    path = write('preset = "mini"\nrounds = 7\nwidth = 0.5\n')
    experiment = make_experiment({"width": 0.25}, path=path)
    assert experiment.width == 0.25  # the flag
    assert experiment.rounds == 7  # the file
    assert experiment.train_limit == PRESETS["mini"]["train_limit"] == 4000  # the preset
    assert experiment.clients == 10  # the default


def test_a_preset_given_as_a_flag_replaces_the_files_preset_but_not_its_settings(write):
    experiment = make_experiment({"preset": "demo"}, path=write('preset = "mini"\nrounds = 7\n'))
    assert (experiment.preset, experiment.rounds, experiment.dataset) == ("demo", 7, "digits")
    assert experiment.width == PRESETS["demo"]["width"]


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_can_be_made_and_says_what_it_says(preset):
    experiment = Experiment(preset=preset)
    assert {key: getattr(experiment, key) for key in PRESETS[preset]} == PRESETS[preset]


def test_without_anything_the_preset_is_the_papers():
    assert make_experiment() == Experiment() == Experiment(preset="paper")


def test_flags_may_come_as_text():
    experiment = make_experiment({"rounds": "7", "alpha": "0.5", "active": "3", "augment": False})
    assert (experiment.rounds, experiment.alpha, experiment.active, experiment.augment) == (7, 0.5, 3, False)


@pytest.mark.parametrize("key", ["active", "train_limit", "test_limit", "private_counts"])
def test_none_switches_a_limit_off(key):
    assert getattr(Experiment(preset="demo", **{key: "none"}), key) is None
    assert getattr(Experiment(preset="demo", **{key: None}), key) is None


# --- the paper's settled points, METHOD section 3


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("dataset", "cifar10"),
        ("method", "crad"),
        ("clients", 10),
        ("rounds", 300),
        ("temperature", 3),
        ("distill_weight", 0.7),
        ("lr", 0.01),
        ("momentum", 0.9),
        ("weight_decay", 5e-4),
        ("batch_size", 64),
        ("clip_norm", 5.0),
        ("augment", True),
        ("epsilon", 1e-8),
        ("min_support", 2),
        ("unsupported", "consensus"),
        ("held_out", 0.2),
        ("partition", "dirichlet"),
        ("alpha", 0.3),
        ("models", ("resnet18", "resnet18-half", "cnn6")),
        ("width", 1.0),
        ("local_epochs", 1),
        ("seed", 1024),
        ("proxy_size", 500),
        ("active", None),
        ("private_counts", None),
        ("train_limit", None),
        ("test_limit", None),
        ("eval_every", 1),
    ],
)
def test_preset_paper_holds_the_settled_points(key, expected):
    assert getattr(Experiment(preset="paper"), key) == expected


def test_the_settled_points_that_are_no_settings():
    assert Experiment().models == POOL
    assert MIN_SAMPLES == 10
    assert CROP_PADDING == 4


# --- the round trip


def round_trip(experiment, tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(to_toml(experiment), encoding="utf-8")
    return make_experiment(path=path)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_survives_the_file(preset, tmp_path):
    experiment = Experiment(preset=preset)
    assert round_trip(experiment, tmp_path) == experiment


def test_changed_settings_survive_the_file(tmp_path):
    experiment = Experiment(
        preset="demo",
        dataset='a "quoted" \\ name é',
        models=("cnn6", "my.module:build"),
        active=2,
        private_counts=0.5,
        lr=1e-7,
        augment=False,
        partition="shards",
        seed=2**40,
    )
    assert round_trip(experiment, tmp_path) == experiment


def test_a_limit_switched_off_stays_off_though_the_preset_sets_one(tmp_path):
    experiment = Experiment(preset="demo", train_limit=None)
    assert 'train_limit = "none"' in to_toml(experiment)
    assert round_trip(experiment, tmp_path).train_limit is None


def test_the_file_holds_every_setting_so_that_later_presets_cannot_change_it(tmp_path, monkeypatch):
    experiment = Experiment(preset="mini")
    assert tomllib.loads(to_toml(experiment)).keys() == with_stored_names(experiment.model_dump()).keys()
    assert with_current_names(tomllib.loads(to_toml(experiment))).keys() == Experiment.model_fields.keys()
    text = to_toml(experiment)
    monkeypatch.setitem(PRESETS, "mini", {"rounds": 1, "width": 2.0, "active": 1})
    path = tmp_path / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    assert make_experiment(path=path) == experiment


# --- the command that repeats it


def test_a_preset_as_it_is_needs_no_flag():
    assert changed_settings(Experiment(preset="mini")) == {}
    assert to_flags({}) == ""


def test_only_what_differs_from_the_preset_is_named():
    experiment = Experiment(preset="mini", rounds=30, width=0.25, train_limit=None)
    assert changed_settings(experiment) == {"width": 0.25, "train_limit": None}


def test_flags_by_hand():
    settings = {"local_epochs": 2, "augment": False, "models": ("cnn6", "a:b"), "active": None, "dataset": "my data"}
    assert to_flags(settings) == "--local-epochs 2 --no-augment --models cnn6,a:b --active none --dataset 'my data'"
    assert to_flags({"augment": True}) == "--augment"


# --- refusals


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha", 0),
        ("alpha", -1),
        ("alpha", math.nan),
        ("alpha", math.inf),
        ("rounds", 0),
        ("rounds", 2.5),
        ("rounds", "many"),
        ("rounds", None),
        ("clients", 0),
        ("clients", "none"),  # only a limit can be switched off
        ("active", 0),
        ("batch_size", 1),
        ("local_epochs", 0),
        ("eval_every", 0),
        ("seed", -1),
        ("lr", 0),
        ("lr", math.nan),
        ("momentum", 1),
        ("momentum", math.nan),
        ("weight_decay", -1e-9),
        ("clip_norm", 0),
        ("clip_norm", math.inf),
        ("temperature", 0),
        ("temperature", math.nan),
        ("distill_weight", 1.01),
        ("distill_weight", math.nan),
        ("min_support", -1),
        ("min_support", math.nan),
        ("epsilon", 0),
        ("held_out", 0),
        ("held_out", 1),
        ("held_out", math.nan),
        ("width", 0),
        ("width", 4.1),
        ("width", math.nan),
        ("private_counts", 0),
        ("private_counts", math.nan),
        ("train_limit", 0),
        ("test_limit", -5),
        ("proxy_size", -1),
        ("classes_per_client", 0),
        ("models", []),
        ("models", 6),
        ("augment", "perhaps"),
        ("unsupported", "mean"),
        ("partition", "random"),
        ("device", "tpu"),
        ("dataset", 3),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_key_and_itself(key, value):
    line = refusal_of({key: value})
    assert line.startswith(f"{key} = {value!r}: ")


@pytest.mark.parametrize(
    ("key", "allowed"), [("unsupported", "'consensus' or 'zero'"), ("partition", "'quantity' or 'natural'")]
)
def test_a_wrong_choice_is_answered_with_the_choices(key, allowed):
    assert allowed in refusal_of({key: "x"})


def test_more_active_clients_than_there_are_is_refused_with_both_numbers():
    assert refusal_of({"active": 11}) == "active is 11, but there are only 10 clients"
    assert Experiment(active=10).active == 10


def test_the_preset_counts_when_active_is_compared():
    assert refusal_of({"preset": "demo", "active": 7}) == "active is 7, but there are only 6 clients"


@pytest.mark.parametrize(
    ("key", "nearest"), [("alpah", "alpha"), ("local-epochs", "local_epochs"), ("Temperature", "temperature")]
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key, nearest):
    line = refusal_of({key: 1})
    assert line.startswith(f"unknown setting {key!r}. Did you mean {nearest!r}? Known: accountant, active, alpha, ")


def test_an_unknown_key_in_the_file_is_refused_too(write):
    assert "unknown setting 'roundz'. Did you mean 'rounds'?" in refusal_of(path=write("roundz = 3"))


def test_an_unknown_key_that_resembles_nothing_gets_the_list_alone():
    line = refusal_of({"zzzzzz": 1})
    assert "Did you mean" not in line
    assert "Known: accountant, active, " in line


def test_codes_and_ranges_of_columns_may_be_dictionaries_as_for_a_frame():
    given = Experiment(missing={"chol": 0, "rest bp": "?"}, ranges={"age": (0, 120), "chol": "60:600"})
    assert given == Experiment(missing="chol=0,rest bp=?", ranges="age=0:120,chol=60:600")
    assert Experiment(missing={}, ignore=[]) == Experiment()
    assert "column 'a,b' cannot be named here" in refusal_of({"missing": {"a,b": 0}})


def test_an_unknown_preset_is_refused_with_the_known_ones(write):
    assert (
        refusal_of({"preset": "papr"}) == "unknown preset 'papr'. Did you mean 'paper'? Known: demo, mini, paper, small"
    )
    assert "unknown preset '3'" in refusal_of(path=write("preset = 3"))


def test_invalid_toml_is_refused_with_the_place(write):
    path = write("rounds = 3\nalpha = \n")
    line = refusal_of(path=path)
    assert line.startswith(f"{path} is not valid TOML: ")
    assert "line 2" in line


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert f"{path} is not valid TOML" in refusal_of(path=path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    path = tmp_path / "nowhere.toml"
    assert refusal_of(path=path) == f"cannot read the experiment file {path}: No such file or directory"


def test_a_folder_is_refused_by_name(tmp_path):
    assert refusal_of(path=tmp_path) == f"cannot read the experiment file {tmp_path}: Is a directory"


def test_a_bad_value_in_the_file_is_refused_like_a_flag(write):
    path = write("alpha = nan")
    assert math.isnan(read_toml(path)["alpha"])
    assert refusal_of(path=path).startswith("alpha = nan: ")


def test_a_value_with_a_line_break_is_quoted_on_one_line():
    assert refusal_of({"rounds": "a\nb"}).startswith("rounds = 'a\\nb': ")


def test_an_experiment_is_frozen():
    experiment = Experiment()
    with pytest.raises(ValidationError, match="frozen"):
        experiment.rounds = 3
    assert experiment.rounds == 300
    assert hash(experiment) == hash(Experiment())


# --- properties

numbers: dict[str, st.SearchStrategy[Any]] = {
    "alpha": st.floats(1e-6, 1e6),
    "rounds": st.integers(1, 10**6),
    "active": st.none() | st.integers(1, 10),
    "lr": st.floats(1e-12, 10),
    "seed": st.integers(0, 2**62),
    "private_counts": st.none() | st.floats(1e-3, 100),
    "dataset": st.text(alphabet="ab/\\\"'\n\t =#é", min_size=1, max_size=8),
    "models": st.lists(st.sampled_from(POOL), min_size=1, max_size=4).map(tuple),
    "augment": st.booleans(),
}


@EXAMPLES
@given(changes=st.fixed_dictionaries({}, optional=numbers), preset=st.sampled_from(["paper", "mini"]))
def test_any_valid_settings_survive_the_file(changes, preset):
    experiment = Experiment(preset=preset, **changes)
    assert make_experiment(tomllib.loads(to_toml(experiment))) == experiment


def read_flags(line):
    """Flags as the command line reads them: everything but a switch is text."""
    settings: dict[str, Any] = {}
    words = iter(shlex.split(line))
    for flag in words:
        name = flag.removeprefix("--").replace("-", "_")
        if name.removeprefix("no_") == "augment":
            settings["augment"] = name == "augment"
        else:
            settings[name] = next(words)
    if "models" in settings:
        settings["models"] = tuple(settings["models"].split(","))
    return settings


@EXAMPLES
@given(changes=st.fixed_dictionaries({}, optional=numbers), preset=st.sampled_from(["paper", "mini"]))
def test_any_experiment_is_repeated_by_its_flags(changes, preset):
    experiment = Experiment(preset=preset, **changes)
    assert make_experiment({"preset": preset, **read_flags(to_flags(changed_settings(experiment)))}) == experiment


anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a1.\n", max_size=3) | st.lists(st.integers())
)


@EXAMPLES
@given(key=st.sampled_from(sorted(Experiment.model_fields.keys() - {"preset"})), value=anything)
def test_any_value_of_any_setting_is_accepted_or_refused_with_one_line(key, value):
    line = None
    try:
        Experiment(**{key: value})
    except ConfigError as error:
        line = str(error)
    assert line is None or (key in line and "\n" not in line)


# --- found by reading the code against the specification


@pytest.mark.parametrize("text", ['preset = ["paper"]', '[preset]\nname = "paper"'])
def test_a_preset_that_is_no_name_is_refused(write, text):
    assert "preset" in refusal_of(path=write(text))
