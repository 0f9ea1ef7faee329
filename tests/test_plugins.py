"""How a name becomes an object: a built-in first, then another package's entry point, then an import path."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata

import pytest

from crad.errors import ConfigError
from crad.methods import resolve_method
from crad.plugins import call_foreign, resolve

GROUP = "crad.test_things"
KNOWN = {"crad": "ours", "uniform": "ours too"}


@pytest.fixture(autouse=True)
def workshop(tmp_path, monkeypatch):
    """A current directory for a user's own modules, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    modules, path = set(sys.modules), list(sys.path)
    yield tmp_path
    assert sys.path == path, "resolving must leave the import path as it was"
    for name in set(sys.modules) - modules:
        if name.startswith("crad_user_"):
            del sys.modules[name]


@pytest.fixture
def write(workshop):
    def write_it(name, text):
        (workshop / name).parent.mkdir(exist_ok=True)
        (workshop / name).write_text(text)
        importlib.invalidate_caches()

    return write_it


@pytest.fixture
def install(monkeypatch):
    """Pretend that another package is installed with these entry points."""

    def install_it(**entries):
        found = [metadata.EntryPoint(name, value, GROUP) for name, value in entries.items()]
        monkeypatch.setattr(metadata, "entry_points", lambda *, group: found if group == GROUP else [])

    return install_it


def resolved(name):
    return resolve("thing", name, known=KNOWN, group=GROUP)


def refusal_of(name):
    with pytest.raises(ConfigError) as refusal:
        resolved(name)
    return str(refusal.value)


def test_a_known_name_is_looked_up():
    assert resolved("crad") == "ours"


def test_an_entry_point_of_another_package_is_loaded(install, write):
    write("crad_user_package.py", "THING = 'theirs'")
    install(theirs="crad_user_package:THING")
    assert resolved("theirs") == "theirs"


def test_an_import_path_is_loaded_from_the_current_directory(write):
    write("crad_user_module.py", "THING = 'mine'")
    assert resolved("crad_user_module:THING") == "mine"


def test_an_import_path_may_lead_into_a_package(write):
    write("crad_user_folder/__init__.py", "")
    write("crad_user_folder/inner.py", "THING = 'inner'")
    assert resolved("crad_user_folder.inner:THING") == "inner"


def test_ours_win_over_an_entry_point_of_the_same_name(install, write):
    write("crad_user_package.py", "raise RuntimeError('must not be imported')")
    install(crad="crad_user_package:THING")
    assert resolved("crad") == "ours"
    assert "crad_user_package" not in sys.modules


def test_nothing_is_imported_for_the_entry_points_that_were_not_asked_for(install, write):
    write("crad_user_good.py", "THING = 'good'")
    write("crad_user_other.py", "raise RuntimeError('must not be imported')")
    install(other="crad_user_other:THING", good="crad_user_good:THING")
    assert resolved("good") == "good"


def test_an_entry_point_of_another_group_does_not_count(install, write):
    write("crad_user_package.py", "THING = 'theirs'")
    install(theirs="crad_user_package:THING")
    with pytest.raises(ConfigError, match="unknown thing 'theirs'"):
        resolve("thing", "theirs", known=KNOWN, group="crad.something_else")


def test_an_unknown_name_is_refused_with_the_nearest_and_all_known_ones(install):
    install(uniformly="somewhere:THING")
    assert refusal_of("unifrom") == ("unknown thing 'unifrom'. Did you mean 'uniform'? Known: crad, uniform, uniformly")


def test_a_module_that_does_not_exist_is_refused_with_the_reason():
    line = refusal_of("crad_user_nowhere:THING")
    assert line.startswith(
        "thing 'crad_user_nowhere:THING': importing 'crad_user_nowhere' failed with ModuleNotFoundError"
    )


def test_a_name_that_the_module_does_not_have_is_refused(write):
    write("crad_user_module.py", "THING = 1")
    line = refusal_of("crad_user_module:THINGS")
    assert line.startswith("thing 'crad_user_module:THINGS': finding 'THINGS' failed with AttributeError")


@pytest.mark.parametrize("path", [":THING", "crad_user_module:", ":"])
def test_half_an_import_path_is_refused(path):
    assert refusal_of(path) == f"thing {path!r}: expected an import path 'package.module:name'"


@pytest.mark.parametrize("path", [".relative:THING", "a b:THING", "..:x"])
def test_an_import_path_that_cannot_be_is_refused(path):
    assert refusal_of(path).startswith(f"thing {path!r}: importing ")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('broken')", "ValueError: broken"),
        ("def", "SyntaxError"),
        ("import nowhere_at_all", "nowhere_at_all"),
    ],
)
def test_a_module_that_fails_is_refused_with_its_reason(write, source, reason):
    write("crad_user_broken.py", source)
    assert reason in refusal_of("crad_user_broken:THING")


def test_an_entry_point_that_fails_is_refused_by_its_name(install):
    install(theirs="crad_user_nowhere:THING")
    line = refusal_of("theirs")
    assert line.startswith("thing 'theirs': importing 'crad_user_nowhere' failed with ModuleNotFoundError")


def test_a_plugins_own_refusal_is_passed_on(write):
    write("crad_user_strict.py", "from crad.errors import ConfigError\nraise ConfigError('not on a Sunday')")
    assert refusal_of("crad_user_strict:THING").endswith("ConfigError: not on a Sunday")


def test_the_import_path_is_restored_after_a_failure(write):
    write("crad_user_broken.py", "raise ValueError")
    before = list(sys.path)
    refusal_of("crad_user_broken:THING")
    assert sys.path == before


def test_a_method_of_the_wrong_kind_is_refused_with_what_it_is(write):
    write("crad_user_method.py", "METHOD = 3")
    with pytest.raises(ConfigError, match=r"method 'crad_user_method:METHOD' is a int, expected a crad\..*Method"):
        resolve_method("crad_user_method:METHOD")


def test_a_module_that_exits_is_refused(write):
    write("crad_user_script.py", "import sys\nsys.exit(3)")
    assert "SystemExit: 3" in refusal_of("crad_user_script:THING")


def test_a_reason_of_several_lines_is_put_on_one(write):
    write("crad_user_broken.py", "raise ValueError('first\\nsecond')")
    assert refusal_of("crad_user_broken:THING").endswith("ValueError: first second")


def test_an_interruption_is_never_swallowed(write):
    write("crad_user_slow.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        resolved("crad_user_slow:THING")


def test_an_import_path_may_end_in_an_attribute_of_an_attribute(write):
    write("crad_user_module.py", "class Box:\n    THING = 'inside'\n")
    assert resolved("crad_user_module:Box.THING") == "inside"


def test_foreign_code_may_import_from_the_current_directory_when_it_is_called(write):
    write("crad_user_late.py", "THING = 'late'")

    def import_late():
        return importlib.import_module("crad_user_late").THING

    assert call_foreign("thing", "mine", "building", import_late) == "late"


def test_foreign_code_that_fails_is_named_with_what_was_asked_of_it():
    with pytest.raises(ConfigError) as refusal:
        call_foreign("thing", "mine", "int('x')", int, "x")
    assert str(refusal.value).startswith("thing 'mine': int('x') failed with ValueError: invalid literal")
