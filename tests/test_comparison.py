"""Methods over seeds: means, deviations, paired differences, the selected round, and the tables they stand in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.analysis.comparison import METRICS, compare, to_json
from crad.report.tables import (
    COMPARISON_HEADER,
    COST_HEADER,
    comparison_caption,
    comparison_cells,
    cost_cells,
    markdown,
    mib,
)
from crad.runs.selection import selected_round

EXAMPLES = settings(max_examples=25, derandomize=True, database=None, deadline=None)


def summary(method, seed, *, overall, local=50.0, spread=1.0, local_spread=2.0, payload=0.0, memory=2**30, seconds=1.0):
    return {
        "method": method,
        "seed": seed,
        "global_accuracy": overall,
        "local_accuracy": local,
        "global_accuracy_spread": spread,
        "local_accuracy_spread": local_spread,
        "payload_bytes_per_client_round": payload,
        "peak_memory_bytes": memory,
        "total_seconds": seconds,
    }


# Two methods, three seeds. crad: 60, 62, 64: mean 62, deviation 2. uniform: 59, 63, 61: mean 61, deviation 2.
# uniform - crad by seed: -1, +1, -3: mean -1, deviation 2.
SUMMARIES = [
    summary("crad", 1, overall=60.0, local=80.0, spread=1.0, payload=2**20, seconds=10.0),
    summary("uniform", 1, overall=59.0, local=81.0, payload=2**21),
    summary("crad", 2, overall=62.0, local=80.0, spread=3.0, payload=2**20, seconds=20.0),
    summary("uniform", 2, overall=63.0, local=81.0, payload=2**21),
    summary("crad", 3, overall=64.0, local=80.0, spread=5.0, payload=2**20, seconds=60.0),
    summary("uniform", 3, overall=61.0, local=81.0, payload=2**21),
]


# --- the comparison


def test_mean_and_deviation_over_seeds_by_hand():
    crad, uniform = compare(SUMMARIES)
    assert (crad.figures["global_accuracy"].mean, crad.figures["global_accuracy"].deviation) == (62.0, 2.0)
    assert (uniform.figures["global_accuracy"].mean, uniform.figures["global_accuracy"].deviation) == (61.0, 2.0)
    assert crad.figures["global_accuracy"].values == (60.0, 62.0, 64.0)
    assert (crad.figures["local_accuracy"].mean, crad.figures["local_accuracy"].deviation) == (80.0, 0.0)


def test_the_deviation_is_that_of_a_sample():
    (row,) = compare([summary("crad", 1, overall=1.0), summary("crad", 2, overall=3.0)])
    assert row.figures["global_accuracy"].deviation == pytest.approx(2**0.5)  # sqrt(2 / 1), not sqrt(2 / 2)


def test_differences_are_paired_by_seed_against_the_first_method():
    crad, uniform = compare(SUMMARIES)
    difference = uniform.difference["global_accuracy"]
    assert difference.values == (-1.0, 1.0, -3.0)
    assert (difference.mean, difference.deviation) == (-1.0, 2.0)
    assert uniform.difference["local_accuracy"].values == (1.0, 1.0, 1.0)
    assert crad.difference["global_accuracy"].values == (0.0, 0.0, 0.0)


def test_pairs_are_made_by_seed_not_by_position():
    shuffled = [SUMMARIES[i] for i in (0, 2, 4, 5, 3, 1)]  # uniform in the order 3, 2, 1
    assert compare(shuffled) == compare(SUMMARIES)


def test_methods_and_seeds_stand_in_the_order_of_first_appearance():
    rows = compare([summary("uniform", 9, overall=1.0), summary("crad", 9, overall=2.0)])
    assert [row.method for row in rows] == ["uniform", "crad"]
    assert compare(SUMMARIES)[0].seeds == (1, 2, 3)


def test_one_seed_has_no_deviation():
    (row,) = compare([summary("crad", 1, overall=60.0)])
    assert row.figures["global_accuracy"].deviation == 0.0


def test_spread_payload_and_seconds_are_means_over_the_seeds():
    crad, uniform = compare(SUMMARIES)
    assert crad.spread == {"global_accuracy": 3.0, "local_accuracy": 2.0}
    assert (crad.payload_bytes, uniform.payload_bytes) == (2**20, 2**21)
    assert crad.seconds == 30.0


def test_the_rows_are_plain_json():
    rows = json.loads(json.dumps(to_json(compare(SUMMARIES))))
    assert rows[1]["method"] == "uniform"
    assert rows[1]["difference"]["global_accuracy"] == {"mean": -1.0, "deviation": 2.0, "values": [-1.0, 1.0, -3.0]}


@EXAMPLES
@given(pairs=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=5))
def test_the_mean_difference_is_the_difference_of_the_means(pairs):
    summaries = [summary("a", seed, overall=one) for seed, (one, _) in enumerate(pairs)]
    summaries += [summary("b", seed, overall=other) for seed, (_, other) in enumerate(pairs)]
    a, b = compare(summaries)
    means = [row.figures["global_accuracy"].mean for row in (a, b)]
    assert b.difference["global_accuracy"].mean == pytest.approx(means[1] - means[0], abs=1e-9)
    for row in (a, b):
        figure = row.figures["global_accuracy"]
        assert min(figure.values) - 1e-9 <= figure.mean <= max(figure.values) + 1e-9
        assert figure.deviation >= 0


# --- the selected round


def record(number, validation, *, is_tested=True):
    result = 1.0 if is_tested else None
    return {
        "round": number,
        "validation_accuracy": validation,
        "global_accuracy": result,
        "local_accuracy": result,
    }


def test_a_member_without_common_test_images_selects_by_its_own():
    own = [{**record(1, 10.0), "global_accuracy": None}, {**record(2, 30.0), "global_accuracy": None}]
    assert selected_round(own) == own[1]


def test_the_highest_validation_accuracy_is_selected():
    assert selected_round([record(1, 10.0), record(2, 30.0), record(3, 20.0)]) == record(2, 30.0)


def test_the_earliest_round_wins_a_tie_wherever_it_stands():
    records = [record(1, 10.0), record(2, 30.0), record(3, 30.0)]
    assert selected_round(records) == selected_round(records[::-1]) == record(2, 30.0)


def test_rounds_that_were_not_tested_are_never_selected():
    records = [record(1, 10.0), record(2, 99.0, is_tested=False), record(3, 5.0)]
    assert selected_round(records) == record(1, 10.0)


def test_an_accuracy_of_zero_is_a_test_result():
    records = [{"round": 1, "validation_accuracy": 0.0, "global_accuracy": 0.0, "local_accuracy": 0.0}]
    assert selected_round(records) == records[0]


def test_before_the_first_test_nothing_is_selected():
    assert selected_round([]) is None
    assert selected_round([record(1, 10.0, is_tested=False)]) is None


def test_the_test_sets_have_no_say_in_the_selection():
    low = {"round": 1, "validation_accuracy": 20.0, "global_accuracy": 1.0, "local_accuracy": 1.0}
    high = {"round": 2, "validation_accuracy": 10.0, "global_accuracy": 99.0, "local_accuracy": 99.0}
    assert selected_round([low, high]) == low


@EXAMPLES
@given(values=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8))
def test_the_selected_round_is_tested_highest_and_earliest(values):
    records = [record(i + 1, float(value), is_tested=tested) for i, (value, tested) in enumerate(values)]
    tested = [one for one in records if one["global_accuracy"] is not None]
    chosen = selected_round(records)
    assert (chosen is None) == (not tested)
    if chosen is None:
        return
    assert chosen in tested
    for other in tested:
        assert (other["validation_accuracy"], -other["round"]) <= (
            chosen["validation_accuracy"],
            -chosen["round"],
        )


# --- tables


def test_the_caption_names_the_method_compared_against_and_every_short_title():
    caption = comparison_caption(compare(SUMMARIES))
    assert "Δ: against 'crad', paired by seed" in caption
    assert "mean ± deviation over seeds" in caption
    assert all(
        word in caption
        for word in ("MiB per client and round", "MiB at the peak", "spread over clients", "seconds per run")
    )
    assert len(COMPARISON_HEADER) == len(comparison_cells(compare(SUMMARIES))[0])


def test_the_costs_by_hand():
    """Means over the seeds; what a run without helpers or with an old summary does not say counts as nothing."""
    own = {"payload_counts": "sent and received", "common_images": "proxy", "is_reconstruction": True}
    costs = {"published_bytes_per_client_round": 2**19, "round_seconds": 1.5, "helper_bytes_per_round": 2**22}
    rows = compare(
        [
            {**summary("msfkd", 1, overall=1.0, payload=2**20), **own, **costs},
            summary("local", 1, overall=2.0, memory=2**31),
            {**summary("msfkd", 2, overall=1.0, payload=2**20), **own, **costs, "round_seconds": 2.5},
            summary("local", 2, overall=2.0),
        ]
    )
    assert cost_cells(rows) == [
        ["msfkd †", "1.00", "sent and received", "0.50", "4.00", "2.00", "1024", "proxy", "-"],
        ["local", "0.00", "sent", "0.00", "0.00", "0.00", "2048", "none", "-"],
    ]
    assert {len(cells) for cells in cost_cells(rows)} == {len(COST_HEADER)}
    assert "†: our reconstruction" in comparison_caption(rows)
    assert "†" not in comparison_caption(rows[1:])


def test_other_weights_stand_in_a_row_of_their_own():
    peak = {
        "global_accuracy": 55.0,
        "local_accuracy": 70.0,
        "global_accuracy_spread": 3.0,
        "local_accuracy_spread": 4.0,
    }
    rows = compare(
        [
            summary("local", 1, overall=50.0),
            {**summary("dfml", 1, overall=51.0), "variants": {"peak": peak}},
        ]
    )
    assert [row.method for row in rows] == ["local", "dfml", "dfml (peak)"]
    assert rows[2].figures["global_accuracy"].mean == 55.0
    assert rows[2].difference["global_accuracy"].mean == 5.0
    assert rows[2].spread["local_accuracy"] == 4.0
    assert [cells[0] for cells in cost_cells(rows)] == ["local", "dfml"]


def test_the_cells_by_hand():
    assert comparison_cells(compare(SUMMARIES)) == [
        ["crad", "62.00 ± 2.00", "3.00", "80.00 ± 0.00", "2.00", "-", "-", "-", "1.00", "1024", "30.0"],
        [
            "uniform",
            "61.00 ± 2.00",
            "1.00",
            "81.00 ± 0.00",
            "2.00",
            "-1.00 ± 2.00",
            "+1.00 ± 0.00",
            "-",
            "2.00",
            "1024",
            "1.0",
        ],
    ]


def test_what_all_models_reach_together_stands_beside_them_where_it_was_measured():
    asked = {"global_accuracy": 80.0, "local_accuracy": 90.5}
    one, other = summary("crad", 1, overall=60.0), summary("local", 1, overall=50.0)
    rows = compare([{**one, "committee": asked}, other])
    place = COMPARISON_HEADER.index("committee %")
    assert [cells[place] for cells in comparison_cells(rows)] == ["80.00 / 90.50", "-"]
    peak = {**asked, "global_accuracy_spread": 0.0, "local_accuracy_spread": 0.0}
    with_peak = compare([{**one, "committee": asked, "variants": {"peak": peak}}])
    assert [cells[place] for cells in comparison_cells(with_peak)] == ["80.00 / 90.50", "-"]


def test_one_seed_shows_no_deviation():
    rows = compare([summary("crad", 1, overall=60.0), summary("local", 1, overall=50.0)])
    cells = comparison_cells(rows)
    assert (cells[0][1], cells[1][5]) == ("60.00", "-10.00")


def test_there_is_a_title_for_every_cell():
    rows = compare(SUMMARIES)
    assert {len(cells) for cells in comparison_cells(rows)} == {len(COMPARISON_HEADER)}
    assert METRICS == ("global_accuracy", "local_accuracy")


def test_markdown_by_hand():
    assert markdown(["method", "acc"], [["crad", "62.00 ± 2.00"], ["uniform", "6.10"]]) == (
        "| method  |          acc |\n"
        "|---------|-------------:|\n"
        "| crad    | 62.00 ± 2.00 |\n"
        "| uniform |         6.10 |\n"
    )


@EXAMPLES
@given(data=st.data(), columns=st.integers(1, 4))
def test_any_markdown_lines_up(data, columns):
    row = st.lists(st.text("ab±. -", max_size=6), min_size=columns, max_size=columns)
    header, *rows = data.draw(st.lists(row, min_size=1, max_size=4))
    lines = markdown(header, rows).splitlines()
    bars = [[place for place, letter in enumerate(line) if letter == "|"] for line in lines]
    assert len(lines) == 2 + len(rows)
    assert all(places == bars[0] and len(places) == columns + 1 for places in bars)
    for line, cells in zip([lines[0], *lines[2:]], [header, *rows], strict=True):
        assert [cell.strip() for cell in line.split("|")[1:-1]] == [cell.strip() for cell in cells]


@pytest.mark.parametrize(
    ("payload_bytes", "expected"),
    [
        (0, "0.00"),
        (2**20, "1.00"),
        (1.5 * 2**20, "1.50"),
        (0.1 * 2**20, "0.10"),
        (0.05 * 2**20, "0.050"),
        (10 * 2**20, "10.0"),
        (194.3 * 2**20, "194.3"),
        (2**30, "1024.0"),
    ],
)
def test_bytes_as_mib(payload_bytes, expected):
    assert mib(payload_bytes) == expected


@EXAMPLES
@given(payload_bytes=st.integers(0, 2**40))
def test_any_mib_is_right_to_half_its_last_digit(payload_bytes):
    text = mib(payload_bytes)
    digits = len(text.partition(".")[2])
    assert abs(float(text) - payload_bytes / 2**20) <= 0.5 * 10**-digits * (1 + 1e-9)


# --- found by reading the code against the specification


def test_a_few_bytes_do_not_read_as_nothing():
    assert float(mib(400)) > 0


# --- under an attack


def test_under_an_attack_the_honest_clients_count_also_of_who_trained_alone():
    """Client 1 of three attacks: alone 60 and 80 (mean 70, spread 10), joined 70 and 90 at the round of the honest."""
    local = {"local_accuracy_per_client": [50.0, 0.0, 50.0]}
    alone = {**summary("local", 1, overall=50.0), "global_accuracy_per_client": [60.0, 10.0, 80.0], **local}
    joined = {
        **summary("crad", 1, overall=40.0),
        "global_accuracy_per_client": [70.0, 0.0, 80.0],
        **local,
        "attackers": [1],
        "honest": {"best_round": 3, "global_accuracy": 80.0, "local_accuracy": 55.0},
    }
    rows = compare([alone, joined])
    assert [row.figures["global_accuracy"].mean for row in rows] == [70.0, 80.0]
    assert [row.spread["global_accuracy"] for row in rows] == [10.0, 5.0]
    assert rows[1].difference["global_accuracy"].mean == 10.0
    assert [row.figures["local_accuracy"].mean for row in rows] == [50.0, 55.0]
    assert comparison_caption(rows).startswith("Accuracy in percent of the honest clients; ")
    assert [row.is_of_honest for row in compare([alone])] == [False], "nobody attacked"
    assert compare([alone])[0].figures["global_accuracy"].mean == 50.0


def test_runs_of_before_without_figures_by_client_stay_as_they_are():
    joined = {**summary("crad", 1, overall=40.0), "attackers": [1], "honest": {"global_accuracy": 80.0}}
    assert compare([joined])[0].figures["global_accuracy"].mean == 40.0
