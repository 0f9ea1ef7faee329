"""The rows behind the charts: exact for records small enough to check by hand, and nothing that is not in them."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.analysis.chart_rows import (
    TRUST_NUMBERS,
    accuracy_rows,
    class_rows,
    client_rows,
    context_rows,
    context_run,
    cost_rows,
    gain_rows,
    mean_rows,
    partition_rows,
    support_rows,
    traffic_rows,
    trust_rows,
)
from crad.analysis.groups import by_method, worlds
from crad.analysis.honest import of_honest_clients
from crad.report.sections.detail_tables import class_table
from crad.runs.kept_run import slim_rounds
from tests.records import TEST_IMAGES, made_run

EXAMPLES = settings(max_examples=15, derandomize=True, database=None, deadline=None)
GLOBAL, LOCAL = "global test set", "clients' own test halves"


# --- which runs stand together


def test_runs_on_other_data_or_divided_otherwise_are_kept_apart():
    here, there, skewed = made_run(), made_run(dataset="cifar10"), made_run(alpha=0.1)
    assert worlds([here, made_run("local")]) == {"": [here, made_run("local")]}
    assert worlds([here, there, skewed]) == {
        "digits, alpha 0.3": [here],
        "cifar10, alpha 0.3": [there],
        "digits, alpha 0.1": [skewed],
    }


def test_training_alone_belongs_to_every_attack_on_the_same_data():
    alone, other = made_run("local", clients=4), made_run("local", clients=4, alpha=0.1)
    noise, flip = (made_run(clients=4, attack=attack, attackers=2) for attack in ("noise", "label-flip"))
    assert worlds([alone, noise]) == {"": [alone, noise]}
    assert worlds([alone, noise, flip, made_run("uniform", clients=4)]) == {
        "attack noise, attackers 2": [alone, noise],
        "attack label-flip, attackers 2": [alone, flip],
        "no attack": [alone, made_run("uniform", clients=4)],
    }
    assert worlds([other, noise]) == {"alpha 0.1, no attack": [other], "alpha 0.3, attack noise, attackers 2": [noise]}


def test_under_an_attack_curves_and_classes_are_of_the_honest_clients_of_every_method():
    """Four clients, two of them attack: means are of the other two, for training alone too."""
    runs = [made_run("local", clients=4), made_run("crad", clients=4, better=1, attack="noise", attackers=2)]
    lying = runs[1].summary["attackers"]
    methods = of_honest_clients(by_method(runs))
    rows = {(row["method"], row["round"]): row["accuracy"] for row in accuracy_rows(methods) if row["metric"] == GLOBAL}
    for run in runs:
        for record in run.rounds:
            honest = [one["global_accuracy"] for one in record["clients"] if one["client"] not in lying]
            assert len(honest) == 2
            assert rows[run.experiment.method, record["round"]] == pytest.approx(sum(honest) / 2)
    assert [row["client"] for row in gain_rows(methods)][:2] == sorted(set(range(4)) - set(lying))
    selected = {name: own[0].summary["best_round"] for name, own in methods.items()}
    for row in class_rows(methods):
        of_method = next(run for run in runs if run.experiment.method == row["method"])
        label = int(row["class"].removeprefix("class "))
        clients = of_method.rounds[selected[row["method"]] - 1]["clients"]
        hits = [one["global"]["hits"][label] for one in clients if one["client"] not in lying]
        assert row["accuracy"] == pytest.approx(100 * sum(hits) / 2 / TEST_IMAGES)


def test_a_kept_run_has_no_classes_of_a_round_whose_hits_were_not_kept():
    """Hits are kept of the run's own selected round; the honest clients' may be another one."""
    runs = [made_run("local", clients=4), made_run("crad", clients=4, attack="honest", attackers=2)]
    methods = of_honest_clients(by_method(runs))
    elsewhere = 3 - methods["local"][0].summary["best_round"]
    kept = [replace(run, rounds=slim_rounds(run.rounds, selected=elsewhere)) for run in runs]
    found = of_honest_clients(by_method(kept))
    assert class_rows(found) == support_rows(found) == []
    assert [row["global_accuracy"] for row in found["local"][0].summary["per_class"]] == [None, None]
    assert [row["accuracy"] for row in accuracy_rows(found)] == [row["accuracy"] for row in accuracy_rows(methods)]
    assert "-" in class_table(found["local"]).rows[0]


def test_where_nobody_attacks_runs_are_what_they_are():
    methods = by_method([made_run("local"), made_run("crad")])
    assert of_honest_clients(methods) == methods


def test_seeds_of_a_method_stand_together_in_the_order_of_the_runs():
    runs = [made_run("uniform", seed=2), made_run("crad", seed=1), made_run("uniform", seed=1)]
    found = by_method(runs)
    assert list(found) == ["uniform", "crad"]
    assert [run.experiment.seed for run in found["uniform"]] == [2, 1]


def test_the_same_run_twice_counts_once():
    assert [len(runs) for runs in by_method([made_run(), made_run()]).values()] == [1]


def test_a_method_with_several_settings_is_named_with_those_that_differ():
    first = made_run("dfml", method_settings={"mutual_epochs": 0, "peak_models": True}, temperature=2.0)
    other = made_run("dfml", method_settings={"mutual_epochs": 5, "peak_models": True})
    assert list(by_method([first, other])) == [
        "dfml (temperature=2.0, mutual_epochs=0)",
        "dfml (temperature=3.0, mutual_epochs=5)",
    ]


def test_a_run_without_a_tested_round_is_left_out():
    run = made_run()
    untested = [{**record, "global_accuracy": None, "local_accuracy": None} for record in run.rounds]
    assert by_method([replace(run, rounds=untested)]) == {}


# --- golden rows; the numbers of made_run(seed=1): hits [[2, 4], [3, 0]] in round 1, [[3, 0], [4, 1]] in round 2


def test_accuracy_over_rounds_with_one_seed():
    rows = accuracy_rows({"crad": [made_run()]})
    assert rows == [
        {"method": "crad", "metric": GLOBAL, "round": 1, "accuracy": 22.5, "low": 22.5, "high": 22.5, "seeds": 1},
        {"method": "crad", "metric": GLOBAL, "round": 2, "accuracy": 20.0, "low": 20.0, "high": 20.0, "seeds": 1},
        {
            "method": "crad",
            "metric": LOCAL,
            "round": 1,
            "accuracy": 40.1875,
            "low": 40.1875,
            "high": 40.1875,
            "seeds": 1,
        },
        {
            "method": "crad",
            "metric": LOCAL,
            "round": 2,
            "accuracy": 40.3125,
            "low": 40.3125,
            "high": 40.3125,
            "seeds": 1,
        },
    ]


def test_accuracy_over_seeds_is_the_mean_with_the_lowest_and_the_highest():
    first, second = made_run(seed=1), made_run(seed=2)
    row = accuracy_rows({"crad": [first, second]})[0]
    values = [22.5, 20.0]  # seed 2 in round 1 is as seed 1 in round 2
    assert [run.rounds[0]["global_accuracy"] for run in (first, second)] == values
    assert row == {
        "method": "crad",
        "metric": GLOBAL,
        "round": 1,
        "accuracy": 21.25,
        "low": 20.0,
        "high": 22.5,
        "seeds": 2,
    }


def test_only_rounds_that_every_seed_has_are_averaged():
    rows = accuracy_rows({"crad": [made_run(rounds=6, eval_every=2), made_run(seed=2, rounds=6, eval_every=3)]})
    assert [row["round"] for row in rows if row["metric"] == GLOBAL] == [6]


def test_gains_are_paired_by_seed_and_client():
    methods = {
        "crad": [made_run(seed=1, better=2), made_run(seed=2, better=2), made_run(seed=3, better=2)],
        "local": [made_run("local", seed=2), made_run("local", seed=1)],
    }
    rows = gain_rows(methods)
    about = {"method": "crad", "metric": GLOBAL, "seed": 1, "client": 0}
    assert rows[0] == {**about, "accuracy": 35.0, "alone": 15.0, "gain": 20.0}
    assert [(row["metric"], row["seed"], row["client"], row["gain"]) for row in rows] == [
        (metric, seed, client, gain)
        for metric, gain in ((GLOBAL, 20.0), (LOCAL, 0.0))
        for seed in (1, 2)
        for client in (0, 1)
    ]


def test_without_training_alone_there_are_no_gains():
    methods = {"crad": [made_run()]}
    assert gain_rows(methods) == []
    assert [(row["metric"], row["client"], row["accuracy"]) for row in client_rows(methods)] == [
        (GLOBAL, 0, 15.0),
        (GLOBAL, 1, 25.0),
        (LOCAL, 0, 40.25),
        (LOCAL, 1, 40.375),
    ]


def test_a_ceiling_is_no_method_that_somebody_joins():
    methods = {name: [made_run(name)] for name in ("local", "centralized", "crad")}
    assert {row["method"] for row in gain_rows(methods)} == {"crad"}
    assert {row["method"] for row in client_rows({"local": [made_run("local")]})} == {"local"}


def test_under_attack_the_gains_are_of_the_honest_clients_by_their_own_number():
    attack = {"clients": 3, "attack": "noise", "attackers": 1}
    methods = {name: [_with_attacker(made_run(name, **attack), 1)] for name in ("crad", "local")}
    assert [row["client"] for row in gain_rows(methods)] == [0, 2, 0, 2]
    assert [row["client"] for row in client_rows(methods)] == [0, 1, 2, 0, 1, 2]


def _with_attacker(run, client):
    return replace(run, summary={**run.summary, "attackers": [client]})


def test_the_interval_of_a_mean_gain_is_over_seeds_and_of_one_seed_over_its_clients():
    def rows(*gains_by_seed):
        about = {"method": "crad", "metric": GLOBAL}
        return [
            {**about, "seed": seed, "client": client, "gain": gain}
            for seed, gains in enumerate(gains_by_seed)
            for client, gain in enumerate(gains)
        ]

    (both,) = mean_rows(rows([1.0, 3.0], [4.0, 4.0]), "gain")  # seeds' means 2 and 4: 3 +- 12.706 * 1
    assert (both["gain"], both["seeds"]) == (3.0, 2)
    assert (both["low"], both["high"]) == (pytest.approx(-9.706, abs=1e-3), pytest.approx(15.706, abs=1e-3))
    (wide,) = mean_rows(
        rows([0.0, 10.0], [1.0, 9.0]), "gain"
    )  # the seeds agree by luck: 5 +- 3.182 * sd / 2 of the pairs
    spread = 3.182 * statistics.stdev([0.0, 10.0, 1.0, 9.0]) / 2
    assert (wide["low"], wide["high"]) == (pytest.approx(5 - spread, abs=1e-2), pytest.approx(5 + spread, abs=1e-2))
    (single,) = mean_rows(rows([1.0, 3.0, 5.0]), "gain")  # clients 1, 3, 5: 3 +- 4.303 * 2 / sqrt(3)
    assert (single["low"], single["high"]) == (pytest.approx(-1.968, abs=1e-3), pytest.approx(7.968, abs=1e-3))
    (lonely,) = mean_rows(rows([1.0]), "gain")
    assert (lonely["gain"], lonely["low"], lonely["high"]) == (1.0, None, None)


def test_classes_go_from_most_to_fewest_private_samples():
    run = made_run(clients=1, classes=3)  # client 0 holds 14, 7 and 0 of classes 0, 1 and 2
    assert [(row["class"], row["private_samples"]) for row in class_rows({"crad": [run]})] == [
        ("class 0", 14),
        ("class 1", 7),
        ("class 2", 0),
    ]
    turned = replace(run, summary={**run.summary, "per_class": _with_samples(run, [1, 2, 3])})
    assert [(row["class"], row["place"]) for row in class_rows({"crad": [turned]})] == [
        ("class 2", 1),
        ("class 1", 2),
        ("class 0", 3),
    ]


def _with_samples(run, samples):
    return [{**one, "private_samples": n} for one, n in zip(run.summary["per_class"], samples, strict=True)]


def test_accuracy_per_class_at_the_selected_round():
    assert class_rows({"crad": [made_run()]}) == [
        {
            "method": "crad",
            "place": place,
            "class": name,
            "private_samples": 7,
            "accuracy": value,
            "low": value,
            "high": value,
            "seeds": 1,
        }
        for place, name, value in [(1, "class 0", 35.0), (2, "class 1", 5.0)]
    ]


def test_accuracy_by_own_support_follows_every_client_not_the_sum():
    # Both classes have 7 samples in all; client 0 holds only class 0 (3 of 10 right), client 1 only class 1 (1 of 10).
    assert support_rows({"crad": [made_run()]}) == [
        {
            "method": "crad",
            "place": place,
            "private_samples": samples,
            "accuracy": value,
            "low": value,
            "high": value,
            "seeds": 1,
        }
        for place, samples, value in [(1, 7.0, 20.0), (2, 0.0, 20.0)]
    ]
    first, last = support_rows({"crad": [made_run(clients=1)]})
    assert (first["accuracy"], last["accuracy"]) == (30.0, 0.0)


def test_context_is_support_and_share_of_hits_at_the_selected_round():
    assert context_rows(made_run()) == [
        {"client": 0, "class": "class 0", "support": 1, "hits": 3, "test_samples": 10, "accuracy": 30.0},
        {"client": 0, "class": "class 1", "support": 0, "hits": 0, "test_samples": 10, "accuracy": 0.0},
        {"client": 1, "class": "class 0", "support": 0, "hits": 4, "test_samples": 10, "accuracy": 40.0},
        {"client": 1, "class": "class 1", "support": 1, "hits": 1, "test_samples": 10, "accuracy": 10.0},
    ]


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        (["uniform", "crad", "fedmd", "local"], "crad"),
        (["uniform", "stage1", "fedmd", "local"], "stage1"),
        (["local", "fedmd"], "fedmd"),
    ],
)
def test_the_run_looked_into_is_crad_or_the_last_with_a_rule(methods, expected):
    runs = [made_run(method, trusts=method not in ("fedmd", "local")) for method in methods]
    assert context_run(by_method(runs)).experiment.method == expected


def test_the_partition_has_every_cell():
    assert partition_rows(made_run()) == [
        {"client": 0, "class": "class 0", "samples": 7},
        {"client": 0, "class": "class 1", "samples": 0},
        {"client": 1, "class": "class 0", "samples": 0},
        {"client": 1, "class": "class 1", "samples": 7},
    ]


def test_trust_is_what_the_students_recorded():
    assert trust_rows(made_run(rounds=1)) == [
        {"round": 1, "student": 0, "teacher": 1, "weights": [1.0, 1.0]},
        {"round": 1, "student": 1, "teacher": 0, "weights": [1.0, 1.0]},
    ]
    assert trust_rows(made_run(trusts=False)) == []


def test_trust_of_many_rounds_is_shown_at_even_distances_up_to_the_last_tested():
    shown = sorted({row["round"] for row in trust_rows(made_run(rounds=95, eval_every=10))})
    assert shown == [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]


def test_a_student_that_sat_out_stands_as_it_learned_last():
    run = made_run(rounds=2)
    late = {**run.rounds[1], "clients": [{**run.rounds[1]["clients"][0], "trust": {"1": [0.25, 0.75]}}]}
    rows = trust_rows(replace(run, rounds=[run.rounds[0], late]))
    assert [(row["student"], row["weights"]) for row in rows if row["round"] == 2] == [
        (0, [0.25, 0.75]),
        (1, [1.0, 1.0]),
    ]


def test_trust_of_many_clients_and_classes_fits_in_a_page_and_keeps_the_last_round():
    rows = trust_rows(made_run(clients=60, classes=60, rounds=20))
    assert 0 < sum(len(row["weights"]) for row in rows) <= TRUST_NUMBERS
    assert max(row["round"] for row in rows) == 20
    assert {row["student"] for row in rows} >= {0}


def test_one_student_too_many_for_a_page_gives_up_rounds_at_even_distances():
    rows = trust_rows(made_run(clients=100, classes=100, rounds=10))
    rounds = sorted({row["round"] for row in rows})
    assert rounds[-1] == 10
    assert len({later - sooner for sooner, later in pairwise(rounds)}) == 1


def test_cost_is_the_mean_over_seeds():
    methods = {"crad": [made_run(seed=1, sent_bytes=100), made_run(seed=2, sent_bytes=300)]}
    assert cost_rows(methods) == [
        {"method": "crad", "payload_bytes": 200.0, "payload_counts": "sent", "round_seconds": 3.0, "seeds": 2}
    ]


def test_bytes_add_up_over_all_rounds_tested_or_not():
    rows = traffic_rows({"crad": [made_run(rounds=4, eval_every=2, sent_bytes=100)]})
    assert [(row["round"], row["payload_bytes"]) for row in rows] == [(2, 200.0), (4, 400.0)]


def test_bytes_of_those_who_sat_out_are_spread_over_all_clients():
    run = made_run(rounds=1, sent_bytes=100)
    halved = replace(run, rounds=[{**run.rounds[0], "payload_bytes": 100, "active": [0]}])  # one of the two sent
    assert [row["payload_bytes"] for row in traffic_rows({"crad": [halved]})] == [50.0]


# --- properties

sizes = st.fixed_dictionaries(
    {
        "clients": st.integers(1, 4),
        "classes": st.integers(1, 4),
        "rounds": st.integers(1, 4),
        "eval_every": st.integers(1, 3),
    }
)


@EXAMPLES
@given(size=sizes, seeds=st.lists(st.integers(0, 20), min_size=1, max_size=3, unique=True))
def test_every_accuracy_is_the_mean_of_recorded_ones_between_their_ends(size, seeds):
    runs = [made_run(seed=seed, **size) for seed in seeds]
    for row in accuracy_rows({"crad": runs}):
        metric = "global_accuracy" if row["metric"] == GLOBAL else "local_accuracy"
        recorded = [run.rounds[row["round"] - 1][metric] for run in runs]
        assert row["accuracy"] == statistics.fmean(recorded)
        assert (row["low"], row["high"]) == (min(recorded), max(recorded))
        assert row["seeds"] == len(seeds)


@EXAMPLES
@given(size=sizes)
def test_every_cell_comes_from_the_records_of_the_selected_round(size):
    run = made_run(**size)
    selected = run.rounds[run.summary["best_round"] - 1]["clients"]
    rows = context_rows(run)
    assert len(rows) == size["clients"] * size["classes"]
    for row in rows:
        label, client = run.partition["class_names"].index(row["class"]), selected[row["client"]]
        assert row["support"] == client["validation"]["counts"][label]
        assert row["accuracy"] == 100.0 * client["global"]["hits"][label] / TEST_IMAGES


@EXAMPLES
@given(size=sizes)
def test_by_own_support_the_samples_never_rise_and_the_mean_is_the_global_accuracy(size):
    run = made_run(**size)
    rows = support_rows({"crad": [run]})
    samples = [row["private_samples"] for row in rows]
    assert samples == sorted(samples, reverse=True)
    assert statistics.fmean(row["accuracy"] for row in rows) == pytest.approx(run.summary["global_accuracy"])
