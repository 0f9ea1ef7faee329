"""The partition as a picture: well-formed, complete and escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.report.sections.svg import heat_map, partition_picture

PARTITION = {"class_names": ["cat", "dog & <owl>"], "counts": [[11, 22], [33, 44]]}
EXAMPLES = settings(max_examples=25, derandomize=True, database=None, deadline=None)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('&\"')</script>"


def heat(counts, *, rows=None, columns=None, title="Counts"):
    rows = [f"client {i}" for i in range(len(counts))] if rows is None else rows
    columns = [f"class {i}" for i in range(len(counts[0]))] if columns is None else columns
    return heat_map(counts, rows=rows, columns=columns, title=title, row_title="rows: clients")


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


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


@EXAMPLES
@given(data=st.data(), columns=st.integers(1, 4))
def test_any_heat_map_is_xml_and_holds_every_count(data, columns):
    counts = data.draw(
        st.lists(st.lists(st.integers(0, 10**6), min_size=columns, max_size=columns), min_size=1, max_size=4)
    )
    names = data.draw(st.lists(st.text("a<>&\"'é ]", max_size=5), min_size=columns, max_size=columns))
    hints = [element.text for element in ElementTree.fromstring(heat(counts, columns=names)).iter(f"{SVG}title")]
    assert hints == [f"{name}: {value}" for row in counts for name, value in zip(names, row, strict=True)]


def test_row_names_are_escaped():
    assert HOSTILE in texts(heat([[1]], rows=[HOSTILE]))


def test_the_partition_picture_names_the_clients_and_counts():
    shown = texts(partition_picture(PARTITION))
    assert {"client 0", "client 1", "cat", "dog & <owl>", "11", "22", "33", "44"} <= set(shown)
    assert "rows: clients, columns: classes; darkest = 44 samples" in shown
