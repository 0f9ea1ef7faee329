"""The settings carry what they are to the package: one place makes a setting known, and its help says what it wants."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import pytest
import typer
from pydantic import BaseModel, Field, ValidationError
from typer.testing import CliRunner

from crad.cli.options import MAX_CHOICES, metavar_of, with_experiment_flags
from crad.config import (
    ALWAYS_THERE,
    PUBLISHED,
    Experiment,
    Panel,
    Role,
    Sharing,
    make_experiment,
    names_of,
    names_where,
    older_names,
    setting_of,
    to_toml,
    with_stored_names,
)
from crad.errors import ConfigError, first_fault, first_foreign_fault
from crad.files import read_toml
from crad.network.agreement import SETTINGS, agreement_to_toml
from crad.runs.directory import RunDirectory, experiment_hash
from tests.organisations import agreed, make_identities

ROOT = Path(__file__).resolve().parent.parent
# As the version before the name and the metadata gave them.
IDENTITIES = {
    "crad": "8a677a9830cc152b4d757d438027411fab1b91e1defb629b250c1aef1259095c",
    "mixup": "b45f15ec2d65c0af77b3b2b2941b5d1d981269a3876ffe8ad6b8c47263b2b8b9",
    "crad-plus, strong": "e65f2127a5234a09e2aabe3c1cdd663844d1aeb3d8e5832e53640dcbd1d30070",
}


# --- roles


@pytest.mark.parametrize("name", Experiment.model_fields)
def test_every_setting_has_a_panel_a_role_and_somebody_who_decides_it(name):
    setting = setting_of(name)
    assert setting.panel in get_args(Panel)
    assert setting.role in get_args(Role)
    assert setting.sharing in get_args(Sharing)
    assert setting.help[0].isupper()
    assert "[" not in setting.help, "Rich takes it for a mark and swallows it"


def test_every_panel_and_role_has_a_setting():
    settings = [setting_of(name) for name in Experiment.model_fields]
    assert {one.panel for one in settings} == {*get_args(Panel)}
    assert {one.role for one in settings} == {*get_args(Role)}
    assert {one.sharing for one in settings} == {*get_args(Sharing)}


def test_roles_are_what_the_hand_kept_lists_said():
    assert names_of("execution") == (
        *("metrics", "committee", "committee_study", "committee_evidence"),
        *("device", "engine", "workers", "ray_address"),
    )
    assert names_of("recipe") == tuple(vars(PUBLISHED))
    assert names_of("method") == ("method", "method_settings")
    assert names_of("extent") == ("preset", "seed", "rounds", "eval_every", "committee_rule")
    assert " ".join(names_of("world")) == (
        "dataset clients active partition alpha label site ignore categories missing ranges text vocabulary "
        "text_length test_data classes_per_client held_out train_limit test_limit resize kind seconds attack attackers"
    )
    assert " ".join(names_where(lambda one: one.sets_pace)) == (
        "dataset clients active text_length train_limit test_limit resize seconds models width local_epochs batch_size "
        "private_training sampling_rate"
    )
    assert " ".join(names_where(lambda one: one.is_of_teachers)) == (
        "evidence filter distill_augment teacher_prior missing_weight distill_schedule attack attackers"
    )
    assert " ".join(SETTINGS) == (
        "method method_settings active rounds standardize held_out local_epochs batch_size optimizer lr lr_schedule "
        "warmup_rounds momentum weight_decay clip_norm temperature distill_weight min_support unsupported epsilon "
        "private_counts private_training delta max_grad_norm sampling_rate noise_multiplier accountant "
        "statistics_every norm local_loss evidence filter distill_augment teacher_prior missing_weight "
        "distill_schedule"
    )
    later = {name: setting_of(name).before for name in Experiment.model_fields}
    assert {name: value for name, value in later.items() if value is not ALWAYS_THERE} == {
        "label": None,
        "site": None,
        "ignore": None,
        "categories": None,
        "missing": None,
        "ranges": None,
        "standardize": "own",
        "text": None,
        "vocabulary": 8192,
        "text_length": 64,
        "test_data": None,
        "resize": None,
        "kind": None,
        "seconds": None,
        "optimizer": "sgd",
        "lr_schedule": "constant",
        "warmup_rounds": 0,
        "private_training": None,
        "delta": 1e-5,
        "max_grad_norm": 1.0,
        "sampling_rate": 0.25,
        "noise_multiplier": None,
        "accountant": "prv",
        "statistics_every": None,
        "norm": None,
        "canaries": 0,
        "local_loss": "plain",
        "evidence": "reported",
        "filter": None,
        "distill_augment": "same",
        "teacher_prior": "keep",
        "missing_weight": 0.0,
        "distill_schedule": "constant",
        "attack": None,
        "attackers": 0,
        "committee_rule": "support-all",
        "committee_evidence": "reported",
    }


WITH_A_NEW_SETTING = """
import io, json, os, sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import crad.config

class Wider(crad.config.Experiment):
    mood: Annotated[
        Literal["calm", "wild"],
        crad.config.Setting("How clients feel", "Training", "learning", "agreed", before="calm"),
    ] = "calm"

crad.config.Experiment = crad.config.experiment.Experiment = Wider  # before any other module asks for it
crad.config.setting_lists.ExperimentFields = Wider

import typer
from crad.cli import make_app
from crad.cli.options import with_experiment_flags
from crad.config import make_experiment, to_flags, to_toml, changed_settings
from crad.runs.directory import experiment_hash
from crad.runs.names import names
from tests.organisations import agreed, make_identities
from tests.records import made_run

def said(app, words):
    with redirect_stdout(io.StringIO()) as out:
        app(words, standalone_mode=False)
    return out.getvalue()

app = typer.Typer()
app.command()(with_experiment_flags()(lambda settings: print(json.dumps(settings))))
folder = Path(sys.argv[1])
wild = make_experiment({"mood": "wild"})
(folder / "wild.toml").write_text('mood = "wild"\\n')
identities = make_identities(folder / "keys")
calm_agreement, wild_agreement = agreed(identities), agreed(identities, settings={"mood": "wild"})
print(json.dumps({
    "help": said(make_app(["run", "--help"]), ["run", "--help"]),
    "flag": json.loads(said(app, ["--mood", "wild"])),
    "file": make_experiment(path=folder / "wild.toml") == wild,
    "stored": 'mood = "wild"' in to_toml(wild).splitlines(),
    "command": to_flags(changed_settings(wild)),
    "calm": experiment_hash(make_experiment()),
    "wild": experiment_hash(wild),
    "names": names([made_run(), made_run(mood="wild")]),
    "calm agreed": calm_agreement.settings.get("mood"),
    "wild agreed": wild_agreement.experiment(dataset="own.npz").mood,
    "agreements differ": calm_agreement.hash != wild_agreement.hash,
}))
"""


def test_a_new_setting_is_made_known_in_one_place(tmp_path):
    words = [sys.executable, "-c", WITH_A_NEW_SETTING, str(tmp_path)]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    training = panels_of(found.pop("help"))["Training"]
    assert re.search(r"--mood\s+\[calm\|wild\]\s+How clients feel \(calm\)", training)
    assert found.pop("wild") not in IDENTITIES.values()
    assert found == {
        "flag": {"mood": "wild"},
        "file": True,
        "stored": True,
        "command": "--mood wild",
        "calm": IDENTITIES["crad"],  # as without the setting: runs of before are still the same
        "names": ["crad (mood=calm)", "crad (mood=wild)"],
        "calm agreed": None,  # agreements of before keep their hash
        "wild agreed": "wild",
        "agreements differ": True,
    }


# --- a setting by its older name


def test_the_key_in_files_and_hashes_is_the_older_name():
    assert older_names() == {"data": "dataset", "matching": "distill_augment"}
    assert experiment_hash(Experiment()) == IDENTITIES["crad"]
    assert experiment_hash(Experiment(distill_augment="mixup")) == IDENTITIES["mixup"]
    assert experiment_hash(Experiment(method="crad-plus", distill_augment="strong")) == IDENTITIES["crad-plus, strong"]
    stored = tomllib.loads(to_toml(Experiment(distill_augment="mixup")))
    assert stored["matching"] == "mixup"
    assert "distill_augment" not in stored


def test_a_setting_is_understood_by_its_older_name(tmp_path):
    wanted = Experiment(distill_augment="mixup")
    assert Experiment(matching="mixup") == wanted
    assert Experiment(**with_stored_names(wanted.model_dump())) == wanted
    path = tmp_path / "experiment.toml"
    path.write_text('matching = "mixup"\n')
    assert make_experiment(path=path) == wanted
    assert make_experiment({"distill_augment": "strong"}, path=path).distill_augment == "strong", "flags win"
    assert make_experiment({"matching": "strong"}, path=path).distill_augment == "strong"
    assert Experiment(**{**Experiment().model_dump(), "matching": "mixup"}) == wanted, "over what was not set"


@pytest.mark.parametrize("flag", ["--distill-augment", "--matching"])
def test_either_flag_sets_it(flag):
    app = typer.Typer()
    app.command()(with_experiment_flags()(lambda settings: print(json.dumps(settings))))
    done = CliRunner().invoke(app, [flag, "mixup", "--no-augment"])
    assert json.loads(done.output) == {"distill_augment": "mixup", "augment": False}


def test_a_setting_by_both_of_its_names_is_refused_where_they_differ():
    assert Experiment(distill_augment="mixup", matching="mixup").distill_augment == "mixup"
    with pytest.raises(ConfigError, match=r"matching = 'strong': it is distill_augment by .* 'mixup'"):
        Experiment(distill_augment="mixup", matching="strong")


def test_a_run_directory_of_before_is_the_same_run(tmp_path):
    text = to_toml(Experiment(preset="demo", distill_augment="mixup"))
    assert '\nmatching = "mixup"\n' in text
    (tmp_path / "experiment.toml").write_text(text)
    stored = RunDirectory(tmp_path).experiment()
    assert stored.distill_augment == "mixup"
    assert to_toml(stored) == text, "to the last byte"


def test_an_agreement_by_either_name_is_the_same(tmp_path):
    identities = make_identities(tmp_path)
    older, newer = (agreed(identities, settings={name: "mixup"}) for name in ("matching", "distill_augment"))
    assert older.hash == newer.hash
    assert b'"matching":"mixup"' in newer.text
    assert b"distill_augment" not in newer.text
    assert 'matching = "mixup"' in agreement_to_toml(newer).splitlines()
    assert newer.experiment(dataset="own.npz").distill_augment == "mixup"


# --- help


def panels_of(text: str) -> dict[str, str]:
    """The panels of a help page by title, each as one line of words per flag, borders removed."""
    found = re.findall(r"╭─ (.+?) ─+╮\n(.*?)╰─+╯", text, flags=re.DOTALL)
    assert len({title for title, _ in found}) == len(found), "no panel stands there twice"
    return {title: "\n".join(line.strip("│").rstrip() for line in body.splitlines()) for title, body in found}


def flags_of(panel: str) -> dict[str, str]:
    """What a panel says about each flag, folded lines joined."""
    rows: dict[str, str] = {}
    for line in panel.splitlines():
        if named := re.match(r" (--[a-z-]+)(.*)", line):
            assert named[1] not in rows
            rows[named[1]] = named[2]
        elif rows:  # a panel of arguments has none
            rows[list(rows)[-1]] += line
    return {flag: " ".join(text.split()) for flag, text in rows.items()}


@pytest.fixture(scope="module", params=[80, 120])
def width(request) -> int:
    return int(request.param)


@pytest.fixture(scope="module", params=["run", "compare", "reproduce", "demo", "data split"])
def help_page(request, width) -> tuple[str, str]:
    """A verb and its help on a terminal of this width."""
    words = [sys.executable, "-m", "crad", *request.param.split(), "--help"]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT / "src"), "COLUMNS": str(width), "TERMINAL_WIDTH": str(width)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= width
    return request.param, done.stdout


WITHOUT = {
    "compare": {"method", "seed"},
    "reproduce": {"method", "seed"},
    "demo": {"method", "seed", "preset"},
    "data split": {*names_of("method", "execution")},
}


def test_the_help_shows_every_setting_once_in_its_panel(help_page):
    verb, text = help_page
    shown = {title: flags_of(panel) for title, panel in panels_of(text).items()}
    own = [name for name in Experiment.model_fields if name not in WITHOUT.get(verb, ())]
    panels = [title for title in get_args(Panel) if any(setting_of(name).panel == title for name in own)]
    assert [title for title in shown if title in get_args(Panel)] == panels, "in their order"
    for title in panels:
        names = {f"--{name.replace('_', '-')}" for name in own if setting_of(name).panel == title}
        assert shown[title].keys() == names | ({"--liars"} if title == "Simulated attacks" else set())
    flags = [flag for rows in shown.values() for flag in rows]
    assert len(flags) == len({*flags})
    assert "--matching" not in flags, "an older name is understood and not shown"


def test_no_flag_is_without_help_or_wants_an_n(help_page):
    for panel in panels_of(help_page[1]).values():
        for flag, text in flags_of(panel).items():
            name = flag.removeprefix("--").replace("-", "_")
            assert not re.match(r"N\b(?!AME)", text), flag
            assert re.search(r"[a-z]{3}", text), f"{flag} has no help"
            if name in Experiment.model_fields and name not in ("preset", "seed"):
                beginning = setting_of(name).help.split()[0]
                assert beginning in text, f"{flag}: {text}"


def test_the_help_names_every_choice_in_one_piece(help_page):
    shown = {flag: text for panel in panels_of(help_page[1]).values() for flag, text in flags_of(panel).items()}
    chosen = {name: choices for name in Experiment.model_fields if (choices := choices_of(name))}
    assert {"partition", "filter", "attack", "engine", "evidence", "distill_augment"} <= chosen.keys()
    for name, choices in chosen.items():
        for choice in choices:
            if (flag := f"--{name.replace('_', '-')}") in shown:
                assert re.search(rf"(?<![\w-]){choice}(?![\w-])", shown[flag]), f"{flag} {choice}: {shown[flag]}"


def choices_of(name: str) -> list[str]:
    """Return the words that a setting may be, where it is one of several; with None or without."""
    kind = Experiment.model_fields[name].annotation
    kinds = [one for one in get_args(kind) if one is not type(None)] if get_origin(kind) is not Literal else [kind]
    return [*map(str, get_args(kinds[0]))] if kinds and get_origin(kinds[0]) is Literal else []


def test_what_a_flag_wants_follows_from_the_type_of_its_setting():
    wanted = {
        "models": "NAME,...",
        "alpha": "NUMBER",
        "private_counts": "NUMBER",
        "rounds": "COUNT",
        "train_limit": "COUNT",
        "method": "NAME",
        "method_settings": "NAME=VALUE,...",
        "preset": "[paper|mini|small|demo]",
        "partition": "NAME",  # five of them: its help names them
        "unsupported": "[consensus|zero]",
        "local_loss": "[plain|balanced]",
        "attack": "NAME",  # nine of them: its help names them
        "seed": "INTEGER",
        "workers": "COUNT|auto",
    }
    assert {name: metavar_of(name) for name in wanted} == wanted
    assert all(len(metavar_of(name)) <= MAX_CHOICES for name in Experiment.model_fields)


# --- one reader, one line for a fault


class Table(BaseModel):
    name: Annotated[str, Field(min_length=3)]
    sizes: tuple[int, ...] = ()
    kind: Literal["a", "b"] = "a"


def fault_in(**values: object) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        Table(**values)  # type: ignore[arg-type]  # that is the point
    return refused.value


def test_the_first_fault_says_which_key_and_its_value():
    assert first_fault(fault_in(name="x")) == "name = 'x': string should have at least 3 characters"
    assert first_fault(fault_in()) == "name: field required"
    assert first_fault(fault_in(name=4)) == "name = 4: input should be a valid string"
    assert first_fault(fault_in(name="long", sizes=["one"])).startswith("sizes.0 = 'one': input should be")
    assert first_fault(fault_in(name="long", sizes=["one"]), depth=1).startswith("sizes = 'one': input should be")


def test_the_first_fault_is_one_short_line_whatever_stands_there():
    line = first_fault(fault_in(name="long", kind="\x1b[31m\n" * 1000))
    assert line.isprintable()
    assert len(line) < 1000
    assert first_fault(fault_in(name="long", sizes=list("abc")))


def test_the_first_fault_of_a_peer_does_not_repeat_its_words():
    assert first_foreign_fault(fault_in(name="x")) == "name: String should have at least 3 characters"
    assert "\x1b" not in first_foreign_fault(fault_in(name="long", kind="\x1b[31m"))


def test_a_toml_file_that_cannot_be_read_is_named(tmp_path):
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError) as refused:
        read_toml(missing, what="the agreement", hint="ask for one")
    assert str(refused.value) == f"cannot read the agreement {missing}: No such file or directory; ask for one"
    with pytest.raises(ConfigError) as refused:
        read_toml(missing)
    assert str(refused.value) == f"cannot read {missing}: No such file or directory"


def test_only_one_module_reads_toml():
    readers = [path.name for path in (ROOT / "src").rglob("*.py") if "tomllib" in path.read_text(encoding="utf-8")]
    assert readers == ["files.py"]
