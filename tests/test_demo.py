"""`crad demo` at toy scale: every method with its verdict over the seeds; under an attack, of the honest clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crad.analysis.comparable import comparable_runs
from crad.analysis.verdict import joining_verdict
from crad.cli.compare import ANOTHER_WORLD
from crad.config import names_of
from crad.errors import RunError
from crad.runs.run_records import load_run
from tests.records import made_run

TOY = (
    "--rounds",
    1,
    "--train-limit",
    240,
    "--test-limit",
    40,
    "--proxy-size",
    0,
    "--width",
    0.125,
    "--workers",
    1,
    "--no-metrics",
)


@pytest.fixture(scope="module", autouse=True)
def no_pages():
    """They take longer than the toy runs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("crad.api.report_page", lambda runs: "")
        patched.setattr("crad.report.comparison_folder.report_page", lambda runs: "")
        yield


def test_the_demo_judges_three_joined_methods_over_three_seeds(crad_command, tmp_path):
    """Among honest members, and then where two of eight mean the opposite."""
    code, out, err = crad_command("demo", *TOY, "-o", tmp_path / "d")
    assert code == 0, err
    check_honest_part(out, tmp_path / "d")
    check_swapped_part(out, tmp_path / "d")


def check_honest_part(out: str, folder: Path) -> None:
    answer = json.loads((folder / "comparison.json").read_text())["verdict"]
    assert [(one["name"], one["num_pairs"]) for one in answer["verdicts"]] == [
        ("uniform", 18),
        ("crad", 18),
        ("crad-plus", 18),
    ]
    words = " ".join(out.split())
    assert " ".join(answer["sentence"].split()) in words
    assert "crad-plus has another loss than local (balanced)" in words
    text = (folder / "uniform-seed12/experiment.toml").read_text()
    assert "distill_weight = 0.7" in text
    assert '"cnn6@0.5"' in text


def check_swapped_part(out: str, folder: Path) -> None:
    answer = json.loads((folder / "two-swapped/comparison.json").read_text())["verdict"]
    words = " ".join(out.split())
    second = words[words.index("Eight members with a table of biopsies") :]
    assert " ".join(answer["sentence"].split()) in second
    for one in answer["verdicts"]:
        joined, num = f"{one['gains'][0]['joined']:.2f}", one["num_pairs"]
        assert f"{one['name']} {joined}" in second, "of the honest clients alone"
        assert num == 18, "two of eight are left out"
    by_seed = [
        load_run(folder / f"two-swapped/crad-plus-seed{seed}").summary["honest"]["global_accuracy"]
        - load_run(folder / f"two-swapped/uniform-seed{seed}").summary["honest"]["global_accuracy"]
        for seed in (11, 12, 13)
    ]
    assert f"seed by seed: {', '.join(f'{one:+.1f}' for one in by_seed)}." in second
    text = (folder / "two-swapped/uniform-seed11/experiment.toml").read_text()
    assert 'dataset = "breast-cancer"' in text
    assert 'attack = "label-flip"' in text
    assert out.splitlines()[-1] == str(folder)


def test_who_asks_for_another_world_gets_that_one_alone(crad_command, tmp_path):
    code, out, err = crad_command("demo", *TOY, "--seeds", 1, "--clients", 3, "-o", tmp_path / "d")
    assert code == 0, err
    assert "biopsies" not in out
    assert not (tmp_path / "d/two-swapped").exists()


def test_every_setting_of_a_world_is_another_world_but_how_much_of_it():
    said = {"active", "held_out", "train_limit", "test_limit"}
    assert said | ANOTHER_WORLD == {*names_of("world"), "models", "liars"}
    assert not said & ANOTHER_WORLD
    assert {"classes_per_client", "text", "kind"} <= ANOTHER_WORLD


def test_training_alone_is_the_floor_of_the_honest_clients_of_an_attack(crad_command, tmp_path):
    methods = ("--methods", "local,uniform", "--seeds", "1,2", "--attack", "noise", "--attackers", 1)
    code, out, err = crad_command("demo", *TOY, *methods, "-o", tmp_path / "d")
    assert code == 0, err
    assert "of 10 honest clients gained" in " ".join(out.split())
    assert 'attack = "none"' in (tmp_path / "d/local-seed1/experiment.toml").read_text(), "no attack reaches it"
    alone, joined = (
        [load_run(tmp_path / "d" / f"{name}-seed{seed}") for seed in (1, 2)] for name in ("local", "uniform")
    )
    verdict = joining_verdict(comparable_runs([*alone, *joined])[0])
    assert verdict is not None
    gain = verdict.verdicts[0].gains[0]
    assert gain.joined == pytest.approx(sum(run.summary["honest"]["global_accuracy"] for run in joined) / 2)
    floors = [
        client["global_accuracy"]
        for mine, theirs in zip(alone, joined, strict=True)
        for client in mine.rounds[-1]["clients"]
        if client["client"] not in theirs.summary["attackers"]
    ]
    assert len(floors) == 10
    assert gain.alone == pytest.approx(sum(floors) / 10)


def test_runs_under_different_attacks_stay_apart_with_training_alone_between_them():
    runs = [made_run("local", clients=4), made_run(clients=4), made_run("uniform", clients=4, liars=1)]
    with pytest.raises(RunError, match="differ in their attack"):
        comparable_runs(runs)
    assert len(comparable_runs([runs[0], runs[2]])[0]) == 2
