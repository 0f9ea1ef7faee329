"""The run directory: created once, never written over, and whole after a crash, a kill or a full disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad import files
from crad.config import Experiment, names_of
from crad.errors import BusyError, ConfigError, RunError
from crad.files import write_atomically, write_flushed
from crad.runs.directory import RunDirectory, experiment_hash

EXAMPLES = settings(max_examples=20, derandomize=True, database=None, deadline=None)

EXPERIMENT = Experiment(rounds=3, method="local")


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def begun(directory):
    directory.create(EXPERIMENT)
    return directory


def contents(folder: Path):
    """Everything in a folder with its bytes and its time of change."""
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- creation


def test_a_new_directory_holds_the_experiment_and_nothing_else(directory):
    directory.create(EXPERIMENT)
    assert [path.name for path in directory.path.iterdir()] == ["experiment.toml"]
    assert directory.experiment() == EXPERIMENT


def test_parents_are_made(tmp_path):
    RunDirectory(tmp_path / "a" / "b" / "c").create(EXPERIMENT)
    assert (tmp_path / "a" / "b" / "c" / "experiment.toml").is_file()


def test_an_empty_directory_may_be_used(directory):
    directory.path.mkdir()
    directory.create(EXPERIMENT)
    assert directory.experiment() == EXPERIMENT


def test_checking_makes_nothing(directory):
    directory.check_free(EXPERIMENT)
    assert not directory.path.exists()


def test_the_files_lie_where_the_design_says(directory):
    assert directory.experiment_file == directory.path / "experiment.toml"
    assert directory.rounds_file == directory.path / "rounds.jsonl"
    assert directory.summary_file == directory.path / "summary.json"
    assert directory.checkpoint_folder == directory.path / "checkpoint"


def test_a_used_directory_is_refused_untouched_and_says_how_to_go_on(begun):
    begun.append_round({"round": 1})
    before = contents(begun.path)
    with pytest.raises(RunError, match=r"holds a run of this very experiment; continue it with crad run --resume"):
        begun.create(EXPERIMENT)
    assert contents(begun.path) == before


def test_a_directory_of_another_experiment_is_refused_untouched_without_the_advice_to_resume(begun):
    before = contents(begun.path)
    with pytest.raises(RunError, match="holds a run of another experiment; choose another output") as refusal:
        begun.create(Experiment(rounds=4, method="local"))
    assert "--resume" not in str(refusal.value)
    assert contents(begun.path) == before


def test_another_device_is_still_the_same_experiment(begun):
    with pytest.raises(RunError, match="this very experiment"):
        begun.check_free(EXPERIMENT.model_copy(update={"device": "cpu"}))


def test_a_foreign_directory_is_refused_untouched(directory):
    directory.path.mkdir()
    (directory.path / "thesis.txt").write_text("years of work")
    before = contents(directory.path)
    with pytest.raises(RunError, match="exists and is no run directory"):
        directory.create(EXPERIMENT)
    assert contents(directory.path) == before


def test_a_file_in_the_place_of_the_directory_is_refused_untouched(directory):
    directory.path.write_text("not a folder")
    with pytest.raises(RunError, match="exists and is no run directory"):
        directory.create(EXPERIMENT)
    assert directory.path.read_text() == "not a folder"


def test_a_directory_under_a_file_is_refused_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write to .*: Not a directory; choose another output"):
        RunDirectory(tmp_path / "file" / "run").create(EXPERIMENT)


def test_a_folder_of_runs_names_those_to_choose_from(tmp_path):
    for number in range(10):
        RunDirectory(tmp_path / f"crad-seed{number}").create(EXPERIMENT)
    with pytest.raises(RunError) as refusal:
        RunDirectory(tmp_path).experiment()
    names = ", ".join(f"crad-seed{number}" for number in range(8))
    assert str(refusal.value) == (
        f"{tmp_path} is no run directory but a folder of runs: choose one of them, such as {tmp_path / 'crad-seed0'}; "
        f"there are {names} and 2 more"
    )


def test_a_directory_without_an_experiment_is_no_run(directory):
    with pytest.raises(RunError, match=r"is no run directory: it has no experiment\.toml"):
        directory.experiment()


def test_a_damaged_experiment_file_is_refused_and_kept(begun):
    begun.experiment_file.write_text("rounds = ")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        begun.create(EXPERIMENT)
    assert begun.experiment_file.read_text() == "rounds = "


# --- rounds


def lines(directory):
    return directory.rounds_file.read_text().splitlines()


def test_rounds_come_back_as_they_were_appended(begun):
    records = [{"round": 1, "global_accuracy": None}, {"round": 2, "global_accuracy": 12.5, "note": "é\n"}]
    for record in records:
        begun.append_round(record)
    assert begun.rounds() == records
    assert len(lines(begun)) == 2


def test_before_the_first_round_there_are_none(begun):
    assert begun.rounds() == []


def test_a_last_line_cut_off_by_a_crash_is_left_out(begun):
    begun.append_round({"round": 1})
    begun.append_round({"round": 2})
    whole = begun.rounds_file.read_bytes()
    for cut in range(len(whole) // 2, len(whole)):  # anywhere in the second line
        begun.rounds_file.write_bytes(whole[:cut])
        assert begun.rounds() == [{"round": 1}]


def test_damage_before_the_last_line_is_no_crash_and_refused(begun):
    begun.rounds_file.write_text('{"round": 1}\n{"rou\n{"round": 3}\n')
    with pytest.raises(RunError, match=r"rounds.jsonl is damaged"):
        begun.rounds()


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_cutting_drops_what_goes_beyond_the_checkpoint(begun, after):
    for number in (1, 2, 3):
        begun.append_round({"round": number})
    kept = begun.cut_rounds(after=after)
    assert [record["round"] for record in kept] == list(range(1, after + 1))
    assert begun.rounds() == kept


def test_rounds_can_be_appended_after_a_cut_off_line_was_cut(begun):
    begun.append_round({"round": 1})
    with begun.rounds_file.open("a") as file:
        file.write('{"round": 2, "clie')
    begun.cut_rounds(after=1)
    begun.append_round({"round": 2})
    assert begun.rounds() == [{"round": 1}, {"round": 2}]


def test_a_checkpoint_beyond_the_lines_is_refused_and_the_lines_are_kept(begun):
    begun.append_round({"round": 1})
    with pytest.raises(RunError, match="does not hold rounds 1 to 2 that the checkpoint follows"):
        begun.cut_rounds(after=2)
    assert begun.rounds() == [{"round": 1}]


def test_a_gap_in_the_rounds_is_refused(begun):
    begun.append_round({"round": 1})
    begun.append_round({"round": 3})
    with pytest.raises(RunError, match="does not hold rounds 1 to 2"):
        begun.cut_rounds(after=2)


def test_a_number_that_json_does_not_know_is_never_written(begun):
    begun.append_round({"round": 1})
    with pytest.raises(ValueError, match="JSON"):
        begun.append_round({"round": 2, "loss": float("nan")})
    assert begun.rounds() == [{"round": 1}]


@EXAMPLES
@given(
    records=st.lists(
        st.dictionaries(
            st.text("ab\n\u2028é", max_size=3), st.none() | st.floats(-1e9, 1e9) | st.text("x\n\r\u2028", max_size=3)
        ),
        max_size=4,
    )
)
def test_any_records_take_one_line_each_and_come_back(tmp_path_factory, records):
    directory = RunDirectory(tmp_path_factory.mktemp("run"))
    for record in records:
        directory.append_round(record)
    assert directory.rounds() == records
    if records:
        assert directory.rounds_file.read_bytes().count(b"\n") == len(records)


# --- other files


def test_json_and_text_come_back(begun):
    begun.write_json("summary.json", {"a": [1, None, "é"]})
    begun.write_text("report.html", "<p>é</p>")
    assert begun.read_json("summary.json") == {"a": [1, None, "é"]}
    assert (begun.path / "report.html").read_text(encoding="utf-8") == "<p>é</p>"


def test_a_missing_summary_says_how_to_finish_the_run(begun):
    with pytest.raises(RunError, match=f"is not there yet: finish the run with crad run --resume {begun.path}"):
        begun.read_json("summary.json")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe"])
def test_a_damaged_summary_is_refused(begun, content):
    begun.summary_file.write_bytes(content)
    with pytest.raises(RunError, match=r"summary.json is damaged"):
        begun.read_json("summary.json")


# --- atomic writes


def test_a_write_replaces_the_whole_content(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"a long old content")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_appending_keeps_what_was_there(tmp_path):
    path = tmp_path / "file"
    write_flushed(path, b"one,", mode="ab")
    write_flushed(path, b"two", mode="ab")
    assert path.read_bytes() == b"one,two"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch, failing):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", full_disk)
    else:
        monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_first_write_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_content(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_content_reaches_the_disk_before_the_name_does(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, Path.replace

    def noted(name, function):
        def note_and_call(*args):
            events.append(name)
            return function(*args)

        return note_and_call

    monkeypatch.setattr(os, "fsync", noted("flush", fsync))
    monkeypatch.setattr(Path, "replace", noted("rename", replace))
    write_atomically(tmp_path / "file", b"new")
    assert events == ["flush", "rename", "flush"]  # the file, its name, the folder


def test_litter_of_a_killed_write_is_in_nobodys_way(tmp_path):
    (tmp_path / ".file.writing").write_bytes(b"half of it")
    write_atomically(tmp_path / "file", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_cutting_rounds_on_a_full_disk_loses_none(begun, monkeypatch):
    for number in (1, 2):
        begun.append_round({"round": number})
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        begun.cut_rounds(after=1)
    assert begun.rounds() == [{"round": 1}, {"round": 2}]


# --- identity


def test_a_run_goes_on_with_the_evidence_that_its_committees_began_with(directory):
    directory.create(EXPERIMENT)
    other = EXPERIMENT.model_copy(update={"committee_evidence": "reported"})
    assert experiment_hash(other) == experiment_hash(EXPERIMENT)
    directory.check_same(EXPERIMENT.model_copy(update={"workers": 2, "metrics": False}))
    with pytest.raises(RunError, match=r"began with committee_evidence = 'pooled', not 'reported': go on with that"):
        directory.check_same(other)
    directory.write_json("summary.json", {})
    directory.check_same(other)  # it is finished: nothing is added to its rounds


def test_where_no_committee_is_measured_its_evidence_is_nobody_s_business(directory):
    without = EXPERIMENT.model_copy(update={"committee": False})
    directory.create(without)
    directory.check_same(without.model_copy(update={"committee_evidence": "reported"}))


@pytest.mark.parametrize("change", [{"device": "cuda"}, {"engine": "ray"}, {"workers": 8}])
def test_how_a_run_is_executed_does_not_change_its_identity(change):
    assert change.keys() <= {*names_of("execution")}
    assert experiment_hash(EXPERIMENT.model_copy(update=change)) == experiment_hash(EXPERIMENT)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"alpha": 0.31},
        {"active": 3},
        {"method": "crad"},
        {"dataset": "digits"},
        {"private_counts": 1.0},
        {"models": ("cnn6",)},
        {"augment": False},
    ],
)
def test_whatever_decides_the_outcome_changes_the_identity(change):
    assert experiment_hash(EXPERIMENT.model_copy(update=change)) != experiment_hash(EXPERIMENT)


def another(value):
    """Some other value of the same type; an unset limit becomes a number."""
    if isinstance(value, bool):
        return not value
    return {int: 77, float: 0.77, str: "other", tuple: ("other",), type(None): 1, dict: {"mu": 0.3}}[type(value)]


def test_every_field_but_those_of_the_execution_is_part_of_the_identity():
    texts = ("label", "site", "ignore", "categories", "missing", "ranges", "text", "test_data", "kind")
    for name in Experiment.model_fields.keys() - {*names_of("execution")}:
        value = "other" if name in texts else another(getattr(EXPERIMENT, name))
        changed = EXPERIMENT.model_copy(update={name: value})
        assert experiment_hash(changed) != experiment_hash(EXPERIMENT), name


def test_the_identity_survives_the_file(begun):
    assert experiment_hash(begun.experiment()) == experiment_hash(EXPERIMENT)


def test_whole_numbers_given_for_floats_do_not_change_the_identity():
    assert experiment_hash(Experiment(min_support=2, temperature=3, width=1)) == experiment_hash(Experiment())


# --- found by reading the code against the specification


def test_rounds_that_are_no_text_are_refused(begun):
    begun.rounds_file.write_bytes(b'{"round": 1}\n\xff\xfe\n')
    with pytest.raises(RunError, match="is damaged"):
        begun.rounds()


def test_a_directory_that_cannot_be_written_to_is_refused_with_the_reason(directory, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    directory.path.mkdir()
    monkeypatch.setattr(files, "write_flushed", deny)
    with pytest.raises(RunError, match="Permission denied"):
        directory.create(EXPERIMENT)


def test_a_line_that_is_no_record_is_refused(begun):
    begun.rounds_file.write_text(json.dumps([1]) + "\n")
    with pytest.raises(RunError):
        begun.cut_rounds(after=1)


def test_of_two_processes_that_begin_a_run_one_does(tmp_path, monkeypatch):
    directory, experiment = RunDirectory(tmp_path / "run"), Experiment()
    with monkeypatch.context() as patched:  # both have looked before either has written
        patched.setattr(RunDirectory, "check_free", lambda self, experiment: None)
        directory.create(experiment)
        before = directory.experiment_file.stat().st_ino
        with pytest.raises(BusyError, match=r"run is in use by another process"):
            directory.create(experiment)

    assert directory.experiment_file.stat().st_ino == before
    assert [path.name for path in directory.path.iterdir()] == ["experiment.toml"]


def test_a_run_that_another_process_is_about_to_begin_is_no_foreign_folder(tmp_path):
    (tmp_path / ".experiment.toml.17.writing").write_bytes(b"data")
    RunDirectory(tmp_path).create(Experiment())
    assert RunDirectory(tmp_path).experiment() == Experiment()


def test_a_run_is_busy_while_somebody_holds_its_lock(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    seen = [directory.is_busy]
    directory.create(Experiment())
    seen.append(directory.is_busy)
    with directory.locked():
        seen.append(directory.is_busy)
    seen.append(directory.is_busy)

    assert seen == [False, False, True, False]


def test_a_run_that_is_being_run_is_called_busy_not_in_the_way(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.create(EXPERIMENT)
    with directory.locked(), pytest.raises(BusyError, match="is in use by another process"):
        directory.check_free(EXPERIMENT)
    with pytest.raises(RunError, match="holds a run of this very experiment; continue it with crad run --resume"):
        directory.check_free(EXPERIMENT)


def test_without_hard_links_a_run_can_be_begun_too(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    RunDirectory(tmp_path / "run").create(Experiment())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["experiment.toml"]
