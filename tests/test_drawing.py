"""The pictures and the page: well-formed, complete, escaped, and without a single reference to the outside."""

from __future__ import annotations

import math
import re
import shlex
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.config import Experiment
from crad.results.comparison import compare
from crad.results.drawing import PALETTE, heat_map, line_chart
from crad.results.report import comparison_report, headline, partition_picture, run_report
from crad.results.runs import RunRecords

EXAMPLES = settings(max_examples=25, derandomize=True, database=None, deadline=None)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('&\"')</script>"


def heat(counts, *, rows=None, columns=None, title="Counts"):
    rows = [f"client {i}" for i in range(len(counts))] if rows is None else rows
    columns = [f"class {i}" for i in range(len(counts[0]))] if columns is None else columns
    return heat_map(counts, rows=rows, columns=columns, title=title, row_title="rows: clients")


def chart(series, *, title="Accuracy"):
    return line_chart(series, title=title, x_title="round", y_title="percent")


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def points(svg):
    """The corners of every line of a chart, as drawn."""
    lines = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    return [[tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()] for line in lines]


def view_box(svg):
    return tuple(map(float, ElementTree.fromstring(svg).attrib["viewBox"].split()))


# --- heat maps


def test_a_heat_map_is_xml_with_every_count_and_every_name():
    counts = [[0, 17, 123], [45, 6, 7890]]
    svg = heat(counts, columns=["cat", "dog", "owl"])
    shown = texts(svg)
    assert [text for text in shown if text.isdigit()] == ["0", "17", "123", "45", "6", "7890"]
    assert {"client 0", "client 1", "cat", "dog", "owl", "Counts"} <= set(shown)
    hints = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert hints == ["cat: 0", "dog: 17", "owl: 123", "cat: 45", "dog: 6", "owl: 7890"]


def test_more_samples_are_darker():
    svg = heat([[0, 10, 40, 160]])
    cells = [cell.attrib["fill"] for cell in ElementTree.fromstring(svg).iter(f"{SVG}rect")]
    brightness = [sum(map(int, re.findall(r"\d+", fill))) for fill in cells]
    assert brightness == sorted(brightness, reverse=True)
    assert len(set(brightness)) == 4
    assert cells[0] == "rgb(245,245,245)"


def test_a_cell_without_room_keeps_its_count_as_a_hint():
    svg = heat([list(range(100, 131))])  # thirty-one columns are too narrow for numbers
    assert "class 30: 130" in [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert "130" not in texts(svg)


def test_many_clients_get_low_rows_and_every_fifth_name():
    svg = heat([[i] for i in range(41)])
    names = [text for text in texts(svg) if text.startswith("client ")]
    assert names == [f"client {i}" for i in range(0, 41, 5)]
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}rect"))) == 41


@pytest.mark.parametrize("counts", [[[0]], [[5]], [[0, 0], [0, 0]]])
def test_a_heat_map_of_one_cell_or_of_nothing_is_drawn(counts):
    assert [text for text in texts(heat(counts)) if text.isdigit()] == [str(value) for row in counts for value in row]


def test_class_names_and_titles_are_escaped():
    svg = heat([[1]], columns=[HOSTILE], title=HOSTILE)
    assert "<script" not in svg
    assert HOSTILE in texts(svg)
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == HOSTILE
    assert [element.text for element in root.iter(f"{SVG}title")] == [f"{HOSTILE}: 1"]


# --- line charts


def test_a_line_chart_is_xml_with_its_titles_and_its_legend():
    svg = chart({"crad": [(1, 10), (2, 20)], "local": [(1, 15), (2, 12)]})
    assert {"Accuracy", "round", "percent", "crad", "local"} <= set(texts(svg))
    assert [len(line) for line in points(svg)] == [2, 2]


def test_higher_values_are_drawn_higher_and_later_ones_further_right():
    ((a, b, c),) = points(chart({"crad": [(1, 10), (2, 30), (3, 20)]}))
    assert a[0] < b[0] < c[0]
    assert b[1] < c[1] < a[1]  # in SVG y grows downwards
    assert b[0] - a[0] == pytest.approx(c[0] - b[0], abs=0.2)
    assert (a[1] - c[1]) == pytest.approx((c[1] - b[1]), abs=0.2)


def test_both_lines_share_their_axes():
    first, second = points(chart({"a": [(1, 10), (5, 30)], "b": [(1, 30), (5, 10)]}))
    assert first[0][1] == second[1][1]
    assert first[1][0] == second[1][0]


def test_ticks_are_round_numbers_around_the_values():
    shown = texts(chart({"a": [(1, 12.3), (10, 47.9)]}))
    assert [text for text in shown if text.isdigit()] == ["10", "20", "30", "40", "50", "2", "4", "6", "8", "10"]


@pytest.mark.parametrize("value", [0.0, 50.0, 100.0, 33.3])
def test_a_single_round_is_drawn(value):
    svg = chart({"global": [(1, value)], "local": [(1, value)]})
    assert [len(line) for line in points(svg)] == [1, 1]
    assert "1" in texts(svg)


def test_a_value_that_never_changes_is_drawn_as_a_level_line():
    ((a, b),) = points(chart({"a": [(1, 50.0), (300, 50.0)]}))
    assert a[1] == b[1]


def test_a_series_without_points_beside_one_that_has_some_is_no_obstacle():
    assert [len(line) for line in points(chart({"a": [], "b": [(1, 2), (2, 3)]}))] == [0, 2]


def test_names_in_a_chart_are_escaped():
    svg = chart({HOSTILE: [(1, 2)]}, title=HOSTILE)
    assert "<script" not in svg
    assert texts(svg).count(HOSTILE) == 2


def test_neighbouring_lines_differ_in_colour_and_a_ninth_is_dashed():
    svg = chart({str(i): [(1, i), (2, i)] for i in range(9)})
    lines = list(ElementTree.fromstring(svg).iter(f"{SVG}polyline"))
    assert [line.attrib["stroke"] for line in lines] == [*PALETTE, PALETTE[0]]
    assert ["stroke-dasharray" in line.attrib for line in lines] == [False] * 8 + [True]


values = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)


@EXAMPLES
@given(lines=st.lists(st.lists(values, min_size=1, max_size=5), min_size=1, max_size=3))
def test_any_accuracies_are_drawn_inside_the_picture(lines):
    svg = chart({f"m{i}": list(enumerate(line, start=1)) for i, line in enumerate(lines)})
    _, _, width, height = view_box(svg)
    drawn = points(svg)
    assert [len(line) for line in drawn] == [len(line) for line in lines]
    assert all(0 <= x <= width and 0 <= y <= height for line in drawn for x, y in line)


@EXAMPLES
@given(data=st.data(), columns=st.integers(1, 4))
def test_any_heat_map_is_xml_and_holds_every_count(data, columns):
    counts = data.draw(
        st.lists(st.lists(st.integers(0, 10**6), min_size=columns, max_size=columns), min_size=1, max_size=4)
    )
    names = data.draw(st.lists(st.text("a<>&\"'é ]", max_size=5), min_size=columns, max_size=columns))
    hints = [element.text for element in ElementTree.fromstring(heat(counts, columns=names)).iter(f"{SVG}title")]
    assert hints == [f"{name}: {value}" for row in counts for name, value in zip(names, row, strict=True)]


# --- the page

PARTITION = {"class_names": ["cat", "dog & <owl>"], "counts": [[11, 22], [33, 44]]}


def summary(method="crad", *, seed=1024, overall=60.0, local=80.0, **changes):
    return {
        "method": method,
        "dataset": "cifar10",
        "preset": "mini",
        "seed": seed,
        "clients": 2,
        "active": 2,
        "partition": "dirichlet",
        "alpha": 0.3,
        "rounds": 3,
        "best_round": 2,
        "global_accuracy": overall,
        "global_accuracy_spread": 1.0,
        "local_accuracy": local,
        "local_accuracy_spread": 1.0,
        "global_accuracy_per_client": [61.25, 58.75],
        "local_accuracy_per_client": [81.5, 78.5],
        "architecture_per_client": ["resnet18", "cnn6@0.125"],
        "payload_bytes_per_client_round": 3 * 2**20,
        "peak_memory_bytes": 5 * 2**20,
        "total_seconds": 12.0,
        "train_images": 4000,
        "test_images": 1000,
        "hardware": {"device": "cpu", "processor": "Some <fast> CPU"},
        "versions": {"python": "3.11", "torch": "2.13.0"},
        **changes,
    }


def rounds(*accuracies):
    return [
        {"round": i, "global_accuracy": value, "local_accuracy": value, "validation_accuracy": 50.0}
        for i, value in enumerate(accuracies, start=1)
    ]


class Page(HTMLParser):
    """Collects what a browser would: visible text, and whether all tags that were opened are closed."""

    def __init__(self, html):
        super().__init__()
        self.words: list[str] = []
        self.opened: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)
        self.close()
        assert self.opened == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "meta":
            self.opened.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def experiment_of(outcome):
    """The experiment that a summary could come from."""
    keys = ("method", "dataset", "preset", "seed", "clients", "partition", "rounds")
    return Experiment(**{key: outcome[key] for key in keys})


def page_of(outcome, records):
    return run_report(RunRecords(experiment_of(outcome), PARTITION, records, outcome))


def compared(*summaries, curves=None):
    rows = compare(summaries)
    curves = {row.method: [(1, 10), (2, 20)] for row in rows} if curves is None else curves
    return comparison_report(experiment_of(summaries[0]), rows, summaries, curves, PARTITION, {})


PAGES = {
    "run": lambda: page_of(summary(), rounds(10.0, None, 60.0)),
    "comparison": lambda: compared(summary("crad"), summary("local", overall=50.0)),
}
every_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


@every_page
def test_a_page_refers_to_nothing_outside(page):
    html = page().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//\w|url\(|@import", html)
    assert not re.search(r"<(script|link|img|iframe|object|embed|base)\b", html)
    assert not re.search(r"\b(src|href|srcset|action|data)\s*=", html)


@every_page
def test_a_page_is_well_formed_with_its_pictures_as_xml(page):
    html = page()
    assert html.startswith("<!doctype html>")
    assert {"main", "h1", "table", "figure", "svg", "pre"} <= Page(html).tags
    pictures = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        ElementTree.fromstring(picture)


@every_page
def test_a_page_shows_every_count_of_the_partition_and_the_classes_escaped(page):
    text = Page(page()).text
    assert all(re.search(rf"\b{count}\b", text) for count in (11, 22, 33, 44))
    assert "dog & <owl>" in text
    assert "<owl>" not in page()


@every_page
def test_a_page_says_what_was_run_on_what(page):
    text = Page(page()).text
    for words in ("cifar10", "2 clients", "dirichlet alpha 0.3", "3 rounds", "preset mini", "Some <fast> CPU (cpu)"):
        assert words in text
    assert "python 3.11, torch 2.13.0" in text


def test_the_page_of_a_run_shows_its_outcome_and_every_client():
    text = Page(PAGES["run"]()).text
    assert "At round 2 (highest validation accuracy): global accuracy 60.00 %, local accuracy 80.00 %" in text
    assert "3.00 MiB sent per client and round" in text
    assert "0 resnet18 61.25 81.50 1 cnn6@0.125 58.75 78.50" in text


def test_rounds_that_were_not_tested_leave_no_point_in_the_curves():
    html = page_of(summary(), rounds(10.0, None, 60.0))
    curves = points(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)[0])
    assert [len(curve) for curve in curves] == [2, 2, 3]  # global, local, validation


def test_a_run_of_one_round_has_a_page():
    assert "At round 1" in Page(page_of(summary(best_round=1, rounds=1), rounds(10.0))).text


def test_partial_participation_is_said():
    text = Page(page_of(summary(active=1), rounds(10.0))).text
    assert "2 clients, 1 active" in text


def test_alpha_is_only_said_of_a_dirichlet_partition():
    text = Page(page_of(summary(partition="iid"), rounds(10.0))).text
    assert "2 clients, iid, 3 rounds" in text
    assert "alpha" not in text


@pytest.mark.parametrize("key", ["method", "dataset"])
def test_hostile_names_stay_text(key):
    html = page_of(summary(**{key: HOSTILE}), rounds(10.0))
    assert "<script" not in html
    assert HOSTILE in Page(html).text


def test_braces_in_a_name_do_not_break_the_page():
    html = page_of(summary(dataset="{title} {body} {0}"), rounds(10.0))
    assert "{title} {body} {0}" in Page(html).text


def command_on(html):
    """The one command of a page, as a shell would split it."""
    (command,) = re.findall(r"<pre>(.*?)</pre>", html, flags=re.DOTALL)
    return shlex.split(unescape(command))


def test_the_command_of_a_run_names_whatever_differs_from_its_preset():
    words = command_on(page_of(summary("uniform"), rounds(10.0)))
    assert words[:4] == ["crad", "run", "--preset", "mini"]
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    assert flags == {"--method": "uniform", "--clients": "2", "--rounds": "3"}


@pytest.mark.parametrize("name", ["my data; rm -rf x", "it's <b>", HOSTILE])
def test_the_command_quotes_names_for_the_shell_and_the_page(name):
    html = page_of(summary(dataset=name), rounds(10.0))
    words = command_on(html)
    assert words[words.index("--dataset") + 1] == name
    assert "<b>" not in html


def test_the_partition_picture_names_the_clients_and_counts():
    shown = texts(partition_picture(PARTITION))
    assert {"client 0", "client 1", "cat", "dog & <owl>", "11", "22", "33", "44"} <= set(shown)
    assert "rows: clients, columns: classes; darkest = 44 samples" in shown


# --- the headline


def headline_of(**accuracies):
    """Of methods given by name, with one accuracy per seed."""
    return headline(
        compare(
            [
                summary(method, seed=seed, overall=value)
                for method, by_seed in accuracies.items()
                for seed, value in enumerate(by_seed)
            ]
        )
    )


def test_the_headline_says_that_joining_helped():
    assert headline_of(crad=[60, 63], local=[50, 55]) == (
        "Joining helped. Global accuracy over training alone (52.50 %): crad +9.00 points (better with 2 of 2 seeds)."
    )


def test_the_headline_says_that_joining_did_not_help():
    assert headline_of(crad=[50, 40], local=[45, 55]) == (
        "Joining did not help. Global accuracy over training alone (50.00 %): "
        "crad -5.00 points (better with 1 of 2 seeds)."
    )


def test_a_draw_is_no_help():
    assert headline_of(local=[50], crad=[50]).startswith("Joining did not help. ")


def test_every_joined_method_is_named_and_centralized_is_none_of_them():
    sentence = headline_of(uniform=[45], crad=[60], local=[50], centralized=[90])
    assert sentence.startswith("Joining helped with some methods only. ")
    assert "uniform -5.00 points" in sentence
    assert "crad +10.00 points" in sentence
    assert "centralized" not in sentence


@pytest.mark.parametrize("methods", [{"crad": [60]}, {"local": [60]}, {"local": [60], "centralized": [90]}])
def test_without_somebody_joined_and_somebody_alone_there_is_no_headline(methods):
    assert headline_of(**methods) == ""


def test_the_page_of_a_comparison_opens_with_the_headline():
    text = Page(compared(summary("crad", overall=60.0), summary("local", overall=50.0))).text
    assert "Joining helped. Global accuracy over training alone (50.00 %): crad +10.00 points" in text
    assert "crad, local on cifar10" in text
    assert "Seeds: 1024." in text


def test_the_command_of_a_comparison_names_all_methods_and_seeds_and_whatever_differs_from_the_preset():
    summaries = [summary(method, seed=seed) for method in ("uniform", "local") for seed in (1, 2)]
    words = command_on(compared(*summaries))
    assert words[:4] == ["crad", "compare", "--preset", "mini"]
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    assert flags == {"--methods": "uniform,local", "--seeds": "1,2", "--clients": "2", "--rounds": "3"}


# --- found by reading the code against the specification


def test_row_names_are_escaped():
    assert HOSTILE in texts(heat([[1]], rows=[HOSTILE]))


@pytest.mark.parametrize("value", [50.0, 99.9])
def test_values_that_differ_by_a_rounding_error_are_drawn(value):
    assert len(points(chart({"a": [(1, value), (2, math.nextafter(value, 100))]}))) == 1


def test_a_long_name_leaves_room_for_the_lines():
    ((first, last),) = points(
        chart({"organisation.department.federated.experiments.methods:WEIGHTED_BY_AGE": [(1, 1), (2, 2)]})
    )
    assert last[0] - first[0] > 100
