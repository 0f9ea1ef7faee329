"""The templates by themselves: whatever text reaches one of their places stays text, and no place stays empty."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from jinja2 import UndefinedError

from crad.report.charts import ReportChart
from crad.report.live.bar import starting_page, waiting_page, with_live_bar
from crad.report.markup import render
from crad.report.sections.class_tracks import TrackMark, TrackRow
from crad.report.sections.headline import Headline
from crad.report.sections.inspector_tab import InspectorSection
from crad.report.sections.method_tiles import MethodTiles, Tile
from crad.report.sections.page_table import PageTable
from crad.report.sections.svg import partition_heat_map
from tests.pages import script_data
from tests.records import made_run


def hostile(place: str) -> str:
    """A text that would be a script wherever it is not escaped, an attribute of its own where quotes are not."""
    return f"""<script>alert("{place}")</script>' onload='{place}' & {{{{ 7 * 7 }}}}"""


class Shown(HTMLParser):
    """Everything that a reader may be shown: texts and attributes; and the elements that scripts could hide in."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.read = ""  # one after the other: the words of a command are elements of their own
        self.scripts: list[str] = []
        self.attributes: set[str] = set()
        self._is_script = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append("")
        self.attributes |= {name for name, _ in attrs}
        self.texts += [value for _, value in attrs if value]

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts[-1] += data
        else:
            self.texts.append(data)
            self.read += data


def table(place: str) -> PageTable:
    rows = [[hostile(f"{place} head"), hostile(f"{place} cell")]]
    return PageTable(
        [hostile(f"{place} column"), "number"], rows, hostile(f"{place} caption"), title=hostile(f"{place} title")
    )


CHART = ReportChart(hostile("chart name"), hostile("chart title"), hostile("chart caption"), hostile("alt"), {}, [])
TILE = Tile(hostile("tile name"), hostile("tile value"), hostile("tile note"), is_best=True)
PICTURE = partition_heat_map({"class_names": [hostile("class")], "counts": [[3]]})
FRAME: dict[str, Any] = {
    "title": hostile("title"),
    "sentence": hostile("sentence"),
    "versions": hostile("versions"),
    "status": hostile("status"),
    "data": {"name": hostile("data")},
    "library": "window.vegaEmbed = null;",
}
REPORT: dict[str, Any] = {
    **FRAME,
    "headline": Headline(
        verdict=hostile("verdict"),
        kind=hostile("kind"),
        detail=[hostile("detail")],
        left_out=hostile("left out"),
    ),
    "outcome": {
        "clients_charts": [CHART],
        "methods": [MethodTiles(hostile("method"), hostile("about"), hostile("colour"), [TILE])],
        "round_charts": [CHART],
        "gains": table("gains"),
        "attack": "",
        "honest": None,
        "alone_commands": [hostile("alone command")],
        "clients": table("clients"),
        "confusions": [hostile("confusion")],
    },
    "tables": [table("comparison"), table("classes")],
    "figures": {"charts": [], "partition": PICTURE},
    "cost": {"tables": [table("cost"), table("privacy")], "charts": [CHART]},
    "inspector": InspectorSection(has_traces=True, note=hostile("inspector note")),
    "repeat": {"commands": [hostile("command")], "facts": {"Machine": hostile("machine")}},
}
ATTACKED = {"attack": hostile("attack"), "honest": table("honest"), "alone_commands": []}
PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "report": ("report.html", REPORT),
    "report under attack": (
        "report.html",
        {**REPORT, "outcome": REPORT["outcome"] | ATTACKED, "figures": {"charts": [CHART], "partition": None}},
    ),
    "study": (
        "study.html",
        {
            **FRAME,
            "headline": {"verdict": hostile("verdict"), "lines": [hostile("line")]},
            "tables": [table("study")],
            "charts": [CHART],
            "details": [hostile("detail page")],
            "command": hostile("command"),
        },
    ),
    "participant": (
        "participant.html",
        {
            **FRAME,
            "headline": {
                "verdict": hostile("verdict"),
                "kind": hostile("kind"),
                "warning": hostile("warning"),
                "detail": hostile("detail"),
            },
            "outcome": {
                "tracks": [TrackRow(hostile("class"), 4, [TrackMark("alone", 50.0, 20.0, 80.0)])],
                "tiles": [TILE],
                "tables": [table("outcome")],
            },
            "together": [hostile("together")],
            "trust": {
                "shares": table("shares"),
                "unused": [hostile("unused")],
                "proven": [hostile("proven")],
                "refused": [hostile("refused")],
            },
            "left": {"table": table("left"), "what": hostile("what"), "counts": hostile("counts")},
        },
    ),
    "plain": ("plain.html", {"title": hostile("title"), "sentence": hostile("sentence"), "picture": PICTURE}),
    "heat map": ("heat_map.svg", {"picture": replace(PICTURE, title=hostile("title"), note=hostile("note"))}),
}
OWN_SCRIPTS = {"report.html": 3, "study.html": 3, "participant.html": 3, "plain.html": 0, "heat_map.svg": 0}
every_page = pytest.mark.parametrize(("template", "view"), PAGES.values(), ids=PAGES)


def texts_in(value: object) -> list[str]:
    """Every hostile text that is anywhere in a view."""
    if isinstance(value, str):
        return [value] if "alert" in value else []
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts_in(one)]
    if isinstance(value, list | tuple):
        return [text for one in value for text in texts_in(one)]
    return texts_in(vars(value)) if hasattr(value, "__dict__") else []


@every_page
def test_every_text_of_a_page_stays_text_and_is_shown(template, view):
    shown = Shown(render(template, **view))
    expected = texts_in({name: value for name, value in view.items() if name != "data"})
    assert len(expected) >= 3
    assert [text for text in expected if not any(text in one for one in [*shown.texts, shown.read])] == []
    assert len(shown.scripts) == OWN_SCRIPTS[template]
    assert not any("alert(" in script for script in shown.scripts[1:]), "only the data may hold a text, as JSON"
    assert "onload" not in shown.attributes


@pytest.mark.parametrize("template", ["report.html", "study.html", "participant.html"])
def test_the_data_of_a_page_is_json_that_cannot_end_its_element(template):
    view = next(view for name, view in PAGES.values() if name == template)
    data = script_data(render(template, **view))
    assert "<" not in data
    assert json.loads(data) == FRAME["data"]


@every_page
def test_a_value_that_is_not_there_is_an_error_and_no_empty_place(template, view):
    for name in view.keys() - {"data", "library"}:  # which `framed_page` never leaves out
        with pytest.raises(UndefinedError, match=name):
            render(template, **{key: value for key, value in view.items() if key != name})


@every_page
def test_what_no_font_can_show_is_replaced(template, view):
    strange = "a\x07b\u202ec\nd"
    name = "picture" if "title" not in view else "title"
    changed = strange if name == "title" else replace(view[name], title=strange)
    html = render(template, **{**view, name: changed})
    assert "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\N{REPLACEMENT CHARACTER}d" in html
    assert "\x07" not in html


def test_the_live_pages_keep_their_texts_as_text():
    run = made_run()
    experiment = run.experiment.model_copy(update={"dataset": hostile("dataset")})
    partition = {**run.partition, "class_names": [hostile("class"), "b"]}
    waiting = Shown(waiting_page(experiment, partition, label=hostile("label")))
    starting = Shown(starting_page(hostile("label")))
    assert (waiting.scripts, starting.scripts) == ([], [])
    assert sum(hostile("class") in text for text in waiting.texts) == 3, "the column's name and a hint at every client"
    assert any(hostile("dataset") in text for text in waiting.texts)
    for shown in (waiting, starting):
        assert [text for text in shown.texts if "label" in text] == [f"CRAD: {hostile('label')}"] * 2


def test_the_live_bar_is_one_script_that_gets_its_status_as_data():
    status = {"version": "a.1", "text": hostile("text"), "farewell": hostile("farewell"), "is_finished": False}
    bar = Shown(with_live_bar("<body></body>", status).decode())
    (script,) = bar.scripts
    _, _, given = script.strip().rpartition("followRun(")
    assert json.loads(given.removesuffix(");")) == status


def test_a_command_is_copied_as_it_is():
    html = render("study.html", **{**PAGES["study"][1], "command": "crad reproduce --rows a,b"})
    words = "".join(f"<span>{word}</span> " for word in ("crad", "reproduce", "--rows", "a,b"))
    assert f'<pre tabindex="0">{words.strip()}</pre>' in html


def test_every_row_of_a_table_fills_its_columns():
    with pytest.raises(AssertionError, match="a cell for every column"):
        PageTable(["a", "b"], [["1"]], "caption")
