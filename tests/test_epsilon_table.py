"""The small tables of accuracy against epsilon, held against the kept runs themselves."""

from __future__ import annotations

import json
import re
import tomllib
from statistics import mean

from tests.conftest import ROOT
from tools.epsilon_table import EPSILONS, METHODS, epsilon_table

PRIVATE = ROOT / "evidence" / "private"


def figures(method: str, epsilon: float | str, metric: str) -> dict[int, float]:
    """Return a figure of every kept run on heart, by seed."""
    found = {}
    for path in sorted((PRIVATE / "runs").glob(f"heart-{method}-seed*")):
        said = tomllib.loads((path / "experiment.toml").read_text())
        if said["private_training"] == epsilon:
            found[said["seed"]] = json.loads((path / "summary.json").read_text())[metric]
    return found


def test_means_and_paired_differences_are_those_of_the_kept_runs():
    for metric, asked in (("global_accuracy", "asked_global_accuracy"), ("local_accuracy", "asked_local_accuracy")):
        lines = epsilon_table(PRIVATE, "heart", asked).splitlines()
        rows = {line.split(" | ")[0].strip("| `"): line.strip("| ").split(" | ")[1:] for line in lines[2:]}
        for place, epsilon in enumerate(EPSILONS):
            said = "none" if epsilon == "none" else float(epsilon)
            alone, joined = (figures(name, said, metric) for name in ("local", "uniform"))
            assert alone.keys() == joined.keys() == {1, 2, 3}
            assert rows["local"][place] == f"{mean(alone.values()):.1f}"
            shown = re.match(r"(\S+) \(\**([+-]\S+) ±", rows["uniform"][place])
            assert shown, rows["uniform"][place]
            assert float(shown[1]) == round(mean(joined.values()), 1)
            gain = mean(joined[seed] - alone[seed] for seed in alone)
            assert abs(float(shown[2]) - gain) < 0.051, "paired with the same epsilon"


def test_every_method_has_a_line_and_every_epsilon_a_column():
    lines = epsilon_table(PRIVATE, "pathmnist", "asked_global_accuracy").splitlines()
    assert lines[0].split(" | ")[1:] == [*EPSILONS[:-1], f"{EPSILONS[-1]} |"]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2 : 2 + len(METHODS)]] == list(METHODS.values())
