"""The benchmarks compare like with like: the naive loop does what the package does; the page shows what was written.

All of them run here at toy size, the studies too, so that none is broken by a change that does not look at it.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import crad
from benchmarks import page
from benchmarks.__main__ import BENCHMARKS
from benchmarks.__main__ import main as measure
from benchmarks.aggregation import SORTED
from benchmarks.harness import Section, count_flops, interleave, speedup, write_json
from benchmarks.naive import NaiveFederation, class_loop_target
from crad.config import Experiment
from crad.device import ComputePart, computing_timed, stopwatch
from crad.errors import ConfigError
from crad.methods import check_recipe, resolve_method
from crad.randomness import repeatable
from tests.conftest import ROOT, change
from tests.federation import Federation
from tests.test_aggregation_properties import wide_case


def test_one_naive_round_ends_at_the_weights_and_losses_of_the_package(tiny):
    with repeatable(0, device="cpu"):
        naive = NaiveFederation(tiny)
        losses = naive.run_round(1)
    federation = Federation(tiny)
    done = federation.next_round()
    assert losses == pytest.approx([done.learned[k].losses["total"] for k in range(tiny.clients)], rel=1e-3)
    for peer, client in zip(federation.peers(), naive.clients, strict=True):
        theirs = client.model.state_dict()
        for name, tensor in peer.model.state_dict().items():
            torch.testing.assert_close(tensor, theirs[name], rtol=2e-3, atol=2e-4)
        assert peer.statistics().counts == tuple(client.statistics[0].tolist())


@pytest.mark.parametrize("num_classes", [3, 100])
def test_the_slower_aggregations_give_the_same_target(num_classes):
    case = wide_case(3, num_teachers=9, num_samples=4, num_classes=num_classes)
    target = crad.aggregate(case.q, case.counts, case.accuracies)
    torch.testing.assert_close(class_loop_target(case.q, case.counts, case.accuracies), target)
    assert torch.equal(crad.aggregate(case.q, case.counts, case.accuracies, SORTED), target)


def test_variants_take_turns_and_ratios_are_paired():
    calls = []
    seconds = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, warmup=1)
    assert calls == ["a", "b"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}
    ratio = speedup([2.0, 30.0, 4.0], [1.0, 10.0, 1.0])
    assert (ratio.lower, ratio.median, ratio.upper) == (2.5, 3.0, 3.5)


def test_flops_of_a_matrix_product_are_counted():
    left, right = torch.rand(4, 5), torch.rand(5, 6)
    assert count_flops(lambda: left @ right) == 2 * 4 * 5 * 6


def test_page_renders_what_was_written(tmp_path):
    section = Section("teacher", "Teacher inference", ("model", "ratio"), [["cnn6", "1.50"]], notes=["One thread."])
    write_json(tmp_path / "result.json", hardware="a machine", command="python -m benchmarks", sections=[section])
    text = page.render(json.loads((tmp_path / "result.json").read_text()))
    assert "| cnn6 | 1.50 |" in text
    assert "a machine" in text
    assert "One thread." in text


def test_generated_part_of_the_page_is_replaced_and_the_rest_is_kept(tmp_path):
    path = tmp_path / "performance.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.replace_generated(path, "new")
    assert path.read_text() == f"before\n{page.BEGIN}\n\nnew\n\n{page.END}\nafter\n"


def study(name: str) -> Any:
    """One of the studies; imported late, because they need packages that nothing else does."""
    return importlib.import_module(f"benchmarks.studies.{name}")


@pytest.fixture
def one_thread():
    """Benchmarks compute on one thread and leave it at that; the tests after them had as many as before."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_runs(name, one_thread, tmp_path, capsys):
    measure([name, "--toy", "--output", str(tmp_path)])
    [written] = tmp_path.glob("*.json")
    result = json.loads(written.read_text())
    assert result["command"] == f"python -m benchmarks {name} --toy"
    [section] = result["sections"]
    assert section["name"] == name
    assert section["rows"]
    assert section["numbers"]
    assert all(len(row) == len(section["columns"]) for row in section["rows"])
    assert section["title"] in page.render(result)
    assert section["columns"][0] in capsys.readouterr().out
    if name == "round":
        assert_computing_is_taken_apart(*section["numbers"])


@pytest.mark.parametrize("has_noise", [True, False])
def test_the_study_of_audits_runs(has_noise, real_data, monkeypatch, capsys):
    monkeypatch.setenv("CRAD_DATA", str(real_data))
    audits = study("audit")
    small = {"rounds": 2, "eval_every": 2, "canaries": 50, "noise_multiplier": 3.0, "accountant": "rdp"}
    key = {"dataset": "heart", "seed": 1, "epsilon": 4.0, "has_noise": has_noise}
    found = audits.measure("heart", 1, 4.0, has_noise=has_noise, settings=small)
    assert found["canaries"] == 4 * 50
    assert found["lower_bound"] < found["ceiling"]
    audits.show([{**key, **found}])
    assert ("the noise switched off" in capsys.readouterr().out) is not has_noise


def test_the_study_of_committees_of_every_size_runs(tiny, tmp_path, capsys):
    sizes = study("committee_size")
    found = sizes.measure(crad.run(change(tiny, method="committee", clients=3, rounds=2), output=tmp_path / "run"))
    assert [one["size"] for one in found] == [1, 2, 3]
    assert all(0 <= one[name] <= 100 for one in found for name in ("global_accuracy", "local_accuracy"))
    assert found[2]["milliseconds"] > found[0]["milliseconds"] > 0
    lines = [{"preset": "mini", "dataset": "tiny", "seed": 1, **one} for one in found]
    sizes.show(lines)
    assert "| tiny, mini | 3 |" in capsys.readouterr().out
    sizes.draw(lines, tmp_path / "chart.svg")
    assert "milliseconds an image" in (tmp_path / "chart.svg").read_text()


def assert_computing_is_taken_apart(numbers):
    for parts, seconds in zip(numbers["parts_s"], numbers["crad_s"], strict=True):
        assert set(parts) == {"teachers", "student", "evaluation"}
        assert all(part > 0 for part in parts.values())
        assert sum(parts.values()) < seconds
    assert numbers["largest_loss_gap"] < 1e-3


def test_computing_inside_of_computing_counts_once_and_only_while_somebody_listens():
    def inner():
        with stopwatch.part("teachers"):
            return 1

    def outer():
        with stopwatch.part("evaluation"):
            return inner() + 1

    heard: dict[ComputePart, float] = {}
    with computing_timed(heard):
        assert outer() == 2
        assert set(heard) == {"evaluation"}
        assert inner() == 1
    assert set(heard) == {"evaluation", "teachers"}
    before = dict(heard)
    assert outer() == 2
    assert heard == before


def test_computing_that_fails_is_counted_and_leaves_the_clock_free():
    def fail():
        with stopwatch.part("student"):
            raise ValueError("no")

    heard: dict[ComputePart, float] = {}
    with computing_timed(heard):
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                fail()
            assert heard.pop("student") >= 0


def test_what_lies_beyond_computing_is_told_for_every_round(one_thread, tiny_npz, capsys):
    rest = study("rest")

    rest.main(["2", "20", "2", f"dataset={tiny_npz}", "width=0.125"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["round 1", "round 2"]
    assert all("student" in line and "teachers" in line and "beyond computing" in line for line in lines)


def test_meanings_are_studied_in_three_ways(one_thread, tiny_npz, capsys):
    meaning = study("meaning")

    meaning.main([str(tiny_npz), "3", "clients=2,rounds=2,width=0.125,train_limit=none,test_limit=none"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0].split()[-1] for line in lines] == ["honest", "shifted", "swapped"]
    assert all("of 1 others were told" in line for line in lines)


def test_choices_are_compared_with_the_candidate(monkeypatch, tmp_path, capsys):
    choosing = study("choosing")

    rng = np.random.default_rng(1)
    sizes = {"train": 80, "test": 20}
    arrays: dict[str, Any] = {}
    for split, size in sizes.items():
        arrays[f"{split}_labels"] = np.arange(size) % 4
        arrays[f"{split}_images"] = rng.integers(0, 256, (size, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "cifar10.npz", **arrays)
    monkeypatch.setenv("CRAD_DATA", str(tmp_path))
    world = "clients=2,rounds=3,eval_every=1,width=0.125,alpha=1.0,train_limit=80,test_limit=20"
    choosing.main([str(tmp_path / "runs"), "11", "plain loss", world])
    out = capsys.readouterr().out
    assert "| candidate | 1 |" in out
    assert "| plain loss | 1 |" in out
    choosing.main([str(tmp_path / "runs"), "11", "plain loss", world])  # none is trained twice
    assert capsys.readouterr().out.count("\n") < out.count("\n")


def test_the_study_of_rates_runs_once_and_looks_at_validation_alone(
    one_thread, tiny_npz, monkeypatch, tmp_path, capsys
):
    small = study("small")
    monkeypatch.setattr(small, "CANDIDATES", {"0.01": small.CANDIDATES["0.01"]})
    world = (
        f"dataset={tiny_npz},clients=2,rounds=2,eval_every=1,width=0.125,train_limit=none,test_limit=10,proxy_size=0"
    )
    small.main([str(tmp_path), f"{world},workers=1"])
    out = capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / small.MEASURED).read_text().splitlines()]
    assert [(one["name"], one["method"], one["rounds_averaged"]) for one in lines] == [
        (name, method, 2) for name in small.CANDIDATES for method in ("local", "centralized")
    ]
    assert not [key for one in lines for key in one if "global" in key or "test" in key]
    assert "Decided: " in out
    (tmp_path / small.MEASURED).write_text("".join(json.dumps(one) + "\n" for one in lines[:1]))
    for run in (tmp_path / "runs").iterdir():
        shutil.rmtree(run / "checkpoint")  # nothing is trained again: the second line is read from its run
    small.main([str(tmp_path), f"{world},workers=1"])
    assert [json.loads(line) for line in (tmp_path / small.MEASURED).read_text().splitlines()] == lines
    table = out[out.index("| rate |") :]
    assert capsys.readouterr().out.endswith(table)


RATES = {
    "the best constant one": ((50, 60, 58), (50, 50, 50), "0.02"),
    "less than a point is nothing": ((50, 51.8, 50), (50, 50, 50), "0.01"),
    "a whole point is something": ((50, 52, 50), (50, 50, 50), "0.02"),
    "falling helps local": ((50, 50, 50), (51, 50, 50), "0.03, cosine"),
    "falling helps local too little": ((50, 50, 50), (50.9, 50.9, 50.9), "0.01"),
    "falling is ahead of all by a point": ((50, 50, 50), (51, 53, 52), "0.06, cosine"),
}


@pytest.mark.parametrize(("steady", "falling", "taken"), RATES.values(), ids=RATES)
def test_a_rate_is_taken_by_the_rule_that_was_written_down(steady, falling, taken):
    small = study("small")
    local = dict(zip(small.CANDIDATES, (*steady, *falling), strict=True))
    assert small.decide({name: {"local": one, "centralized": 50.0} for name, one in local.items()}) == taken


def test_a_falling_rate_that_costs_the_ceiling_more_than_it_brings_is_not_taken():
    small = study("small")
    alike = {name: {"local": 50.0, "centralized": 50.0} for name in small.CANDIDATES}
    assert small.decide({**alike, "0.1, cosine": {"local": 52.0, "centralized": 47.0}}) == "0.01"
    assert small.decide({**alike, "0.1, cosine": {"local": 52.0, "centralized": 48.0}}) == "0.1, cosine"


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="memory is read from Linux's /proc")
def test_an_exchange_between_processes_is_measured(one_thread, capsys):
    exchange = study("exchange")

    exchange.main(["2", "1", "1"])
    out = capsys.readouterr().out
    assert "2 members, 1 MB each, 2 transfers a round" in out
    assert out.splitlines()[-1].startswith("| 1 | ")


@pytest.mark.skipif(
    os.name == "nt" or os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")),
    reason="network namespaces need root, ip and tc",
)
def test_a_cut_line_is_studied(capsys):
    cut_link = study("cut_link")

    cut_link.main(["1", "4"])
    assert "times the size" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own folding uses what it deprecates
@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
def test_int8_engines_take_turns(one_thread, capsys):
    pytest.importorskip("onnxruntime")
    int8 = study("int8")

    int8.main(["speed", "--widths", "0.125", "--models", "cnn6", "--repeats", "1"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| cnn6")]
    assert [row.split("|")[2].strip() for row in rows] == list(int8.engines(8))


def test_candidates_for_the_rule_are_measured_once(monkeypatch, tmp_path, tiny_npz, capsys):
    rule = study("rule")

    small = {"clients": 3, "rounds": 2, "eval_every": 2, "resize": None, "train_limit": 120, "test_limit": 20}
    monkeypatch.setattr(rule, "WORLD", {**rule.WORLD, **small, "models": ("cnn6",)})
    monkeypatch.setattr(rule, "MEASURED_ROUNDS", 1)
    words = [str(tmp_path), str(tiny_npz), "101", "crad-plus;lambda rising"]
    rule.main(words)
    before = (tmp_path / "rule.jsonl").read_text()
    baseline, rising = rule.read(tmp_path)
    assert [baseline["name"], rising["name"]] == ["crad-plus", "lambda rising"]
    assert len(baseline["clients"]) == 3
    rule.main(words)
    assert (tmp_path / "rule.jsonl").read_text() == before, "nothing is measured twice"
    assert f"over crad-plus | own | average | s |\n|---|{6 * '---:|'}\n| crad-plus | " in capsys.readouterr().out


def test_every_candidate_for_the_rule_can_run_but_those_that_were_dropped():
    rule = study("rule")

    for name, settings in rule.CANDIDATES.items():
        if name in rule.DROPPED:
            with pytest.raises(ConfigError, match="was tried and dropped"):
                Experiment(**{**rule.WORLD, **settings})
            continue
        experiment = Experiment(**{**rule.WORLD, **settings})
        check_recipe(experiment, resolve_method(experiment.method, experiment.method_settings))
    with pytest.raises(ConfigError, match=r"unknown candidate 'averge 0.5'.*average 0.5"):
        rule.main(["runs", "cifar10", "101", "averge 0.5"])


def test_a_candidate_that_was_dropped_is_refused_in_one_line(tmp_path):
    words = [sys.executable, "-m", "benchmarks.studies.rule", str(tmp_path / "runs"), "cifar10", "101", "average 0.5"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "rule: candidate 'average 0.5' lost and was dropped: run it at commit e30c49f\n"
    assert not (tmp_path / "runs").exists()


def test_what_was_measured_of_dropped_candidates_is_still_shown_and_decided():
    rule = study("rule")
    lines = rule.read(ROOT / "evidence" / "rule")
    assert {rule.key_of(one) for one in lines} == set(rule.planned())
    assert rule.winners(lines) == []
    for dataset in rule.DATA:
        assert len(rule.table(lines, dataset)) == 2 + len(rule.CANDIDATES) == 20


def test_the_rule_of_decision_by_hand():
    """1.5 points on both data sets, five pairs of six, and at home not more than two points lower."""
    rule = study("rule")

    def lines(**more):
        return [
            {"dataset": dataset, "seed": seed, "name": name, "accuracy": 20.0, "own": 50.0, **more.get(dataset, {})}
            if name == "log pooling"
            else {"dataset": dataset, "seed": seed, "name": name, "accuracy": 20.0, "own": 50.0}
            for dataset, seed, name in rule.planned()
        ]

    ahead = {"accuracy": 22.0, "own": 48.0}
    assert rule.winners(lines(cifar10=ahead, pathmnist=ahead)) == ["log pooling"]
    assert rule.winners(lines(cifar10=ahead)) == [], "on one data set alone"
    assert rule.winners(lines(cifar10=ahead, pathmnist={"accuracy": 21.4})) == []
    assert rule.winners(lines(cifar10=ahead, pathmnist={**ahead, "own": 47.9})) == []
    of_one_seed = lines(cifar10=ahead, pathmnist=ahead)
    for one in of_one_seed:
        if one["name"] == "log pooling" and one["seed"] != 101:
            one["accuracy"] = 19.9
        elif one["name"] == "log pooling":
            one["accuracy"] = 30.0
    assert rule.winners(of_one_seed) == [], "by the mean, but ahead in two pairs of six"


def test_studies_say_what_is_decided_when_every_run_is_there(capsys):
    rule = study("rule")
    figures = {"accuracy": 20.0, "own": 50.0, "processor_seconds": 1.0}
    lines = [{"dataset": dataset, "seed": seed, "name": name, **figures} for dataset, seed, name in rule.planned()]
    rule.show(lines[:-1])
    assert "1 runs are missing: nothing is decided" in capsys.readouterr().out
    rule.show(lines)
    assert "Decided: nobody wins, crad-plus stays what it is" in capsys.readouterr().out
