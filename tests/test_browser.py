"""The page in a real Chromium: opened from disk, silent, without a network, usable by keyboard, on any screen."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import crad
from crad.analysis.traces import ImageTrace, TeacherView, describe, percent
from crad.report.charts import make_charts
from crad.report.frame import framed_page
from crad.report.page import report_page
from crad.report.participant import participant_page
from crad.report.sections.page_table import PageTable
from crad.runs.run_records import load_run
from tests.chromium import PATIENCE_S, Tab
from tests.conftest import ROOT, change
from tests.layout import draw_all, layout_problems, open_part
from tests.pages import run_of, summary
from tests.records import made_run
from tests.test_participant import told

WIDTHS = [360, 420, 500, 700, 900, 1400]
PICTURED = {360, 700, 1400}  # of these a person gets pictures
MEMBER_TABS = ["outcome", "trust", "left"]
TABS = ["outcome", "tables", "figures", "cost", "inspector", "repeat"]
STATES = {"k": "kept", "u": "unsupported", "o": "outlier"}


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """CRAD and training alone, really run on four clients."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for method in ("crad", "local"):
        experiment = change(tiny, rounds=2, eval_every=1, models=("cnn6",), method=method, committee=True)
        crad.run(experiment, output=folder / method)
        found.append(load_run(folder / method))
    return found


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_page(runs))
    return path


@pytest.fixture
def tab(chromium, page):
    """The page, open on a wide light screen; whatever a test does, nothing may go wrong or go out."""
    opened = Tab(chromium)
    opened.open(page)
    yield opened
    assert opened.complaints() == []
    assert set(opened.requests()) <= {page.resolve().as_uri()}
    opened.close()


def artefact(name: str) -> Path:
    return Path(os.environ.get("CRAD_ARTIFACTS") or ROOT / "build" / "screenshots") / name


def selected(tab: Tab) -> str:
    """The open tab; its panel is the one that is shown."""
    name: str = tab.value("document.querySelector('nav [aria-selected=true]').hash.slice(1)")
    shown = tab.value("[...document.querySelectorAll('main > section')].filter(p => !p.hidden).map(p => p.id)")
    assert shown == [name]
    return name


def test_tabs_open_by_keyboard_and_by_address(tab, page):
    assert selected(tab) == "outcome"
    tab.value("document.querySelector('nav [aria-selected=true]').focus()")
    walked = []
    for key in ("ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home"):
        tab.press(key)
        walked.append(selected(tab))
        assert tab.value("document.activeElement.hash.slice(1)") == walked[-1]
    assert walked == ["tables", "repeat", "outcome", "repeat", "outcome"]
    tab.press("ArrowRight")
    assert tab.value("location.hash") == "#tables"
    assert tab.value("[...document.querySelectorAll('nav a')].filter(a => a.tabIndex === 0).length") == 1
    tab.open(page, "#inspector")
    assert selected(tab) == "inspector"
    assert tab.value("document.querySelector('nav').getAttribute('role')") == "tablist"
    assert tab.value("document.getElementById('inspector').getAttribute('role')") == "tabpanel"


def test_every_chart_is_drawn_when_its_tab_opens_and_not_before(tab, runs):
    drawn = "[...document.querySelectorAll('.plot')].filter(p => p.querySelector('svg')).map(p => p.dataset.chart)"
    draw_all(tab)
    assert tab.value(drawn) == ["gains", "accuracy", "committee"]
    for name in ("figures", "cost"):
        open_part(tab, name)
    assert set(tab.value(drawn)) == {chart.name for chart in make_charts(runs)}
    marks = tab.value("[...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('path').length)")
    assert min(marks) > 1


def test_charts_are_drawn_anew_for_another_width_and_keep_what_was_chosen(tab):
    open_part(tab, "figures")
    choose(tab, ".plot[data-chart=trust] select", 2)
    widths = "[...document.querySelectorAll('#figures .plot svg')].map(svg => svg.getBoundingClientRect().width)"
    wide = tab.value(widths)
    tab.resize(500, 900)
    tab.wait_for("document.querySelector('.plot[data-chart=trust]').dataset.room < 500")
    draw_all(tab)
    assert max(tab.value(widths)) < 500
    assert max(wide) > 500
    assert tab.value("document.querySelector('.plot[data-chart=trust] select').value") == "2"
    assert "student 2 after round 2" in tab.value("document.querySelector('.plot[data-chart=trust] svg').textContent")


def test_charts_follow_the_colour_scheme(tab):
    tab.value("document.getElementById('to-figures').click()")
    draw_all(tab)
    ink = "getComputedStyle(document.querySelector('.plot svg text')).fill"
    light = tab.value(ink)
    tab.prefer("dark")
    dark = tab.value(ink)
    assert light != dark
    tab.value("document.getElementById('theme').click()")
    assert tab.value(ink) == light
    assert tab.value("document.getElementById('theme').textContent") == "Dark colours"


def test_the_inspector_opens_on_the_first_success(tab, runs):
    inspection = runs[0].inspection
    tab.value("document.getElementById('to-inspector').click()")
    case = inspection["cases"][0]
    assert case["kind"] == "success"
    own = next(one for one in inspection["students"] if one["client"] == case["student"])
    image = [one["index"] for one in inspection["images"]].index(case["image"])
    before, after = (round(100 * own[key][image][case["class"]]) for key in ("uniform", "target"))
    assert tab.value("document.querySelector('.cases [aria-pressed=true]').textContent") == (
        f"{inspection['classes'][case['class']]}, client {case['student']}: {before} → {after} %"
    )
    assert tab.value("document.querySelector('.cases [aria-pressed=true] img').naturalWidth") > 0
    assert tab.value("document.querySelector('.explain-command').textContent") == (
        f"crad explain {runs[0].path} --student {case['student']} --image {case['image']} --class {case['class']}"
    )
    assert shown_sentence(tab) == describe(trace_of(inspection, case["student"], case["image"], case["class"]))


def test_every_case_student_image_and_class_shows_what_explain_says(tab, runs):
    inspection = runs[0].inspection
    tab.value("document.getElementById('to-inspector').click()")
    for i, case in enumerate(sorted(inspection["cases"], key=lambda one: one["kind"] == "failure")):
        tab.value(f"document.querySelectorAll('.cases button')[{i}].click()")
        assert shown_sentence(tab) == describe(trace_of(inspection, case["student"], case["image"], case["class"]))
    for student, image, label in ((1, 0, 3), (3, 2, 0), (0, len(inspection["images"]) - 1, 1)):
        choose(tab, "#choose-student", student)
        tab.value(f"document.querySelectorAll('.thumbs input')[{image}].click()")
        choose(tab, "#choose-class", label)
        client, index = inspection["students"][student]["client"], inspection["images"][image]["index"]
        trace = trace_of(inspection, client, index, label)
        assert shown_sentence(tab) == describe(trace)
        words = f"--student {client} --image {index} --class {label}"
        assert tab.value("document.querySelector('.explain-command').textContent").endswith(words)
        assert shown_teachers(tab) == [
            [f"client {one.client}", percent(one.probability), one.state] for one in trace.teachers
        ]
        assert f"true class {trace.true_class}" in tab.value("document.querySelector('figure img[alt]').alt")


def test_the_inspector_is_usable_by_keyboard(tab):
    tab.value("document.getElementById('to-inspector').click()")
    before = tab.value("document.querySelector('.thumbs input:checked').value")
    tab.value("document.querySelector('.thumbs input:checked').focus()")
    tab.press("ArrowRight")
    after = tab.value("document.querySelector('.thumbs input:checked').value")
    assert after != before
    assert tab.value("document.querySelector('.all-classes tr[aria-current] button').textContent") == tab.value(
        "document.querySelector('.thumbs input:checked').parentElement.title.split(', ')[1]"
    )
    tab.value("[...document.querySelectorAll('.cases button')].at(-1).focus()")
    tab.press("Enter")
    assert tab.value("document.querySelector('.case-group:last-child [aria-pressed=true]') !== null")
    tab.value("document.querySelector('.all-classes tr:not([aria-current]) button').focus()")
    wanted = tab.value("document.activeElement.textContent")
    tab.press(" ")
    assert tab.value("document.querySelector('.all-classes tr[aria-current] button').textContent") == wanted


def test_marks_stand_where_their_numbers_say(tab):
    tab.value("document.getElementById('to-inspector').click()")
    places = tab.value(
        """[...document.querySelectorAll('.teachers tbody tr, .teachers tfoot tr')].map(row => {
          const mark = row.querySelector('.mark'), track = row.querySelector('.track').getBoundingClientRect();
          const said = Number(row.querySelectorAll('td.axis + td')[0].textContent);
          if (!mark) return [said, said];
          const box = mark.getBoundingClientRect();
          return [said, 100 * (box.left + box.width / 2 - track.left) / track.width];
        })"""
    )
    assert len(places) == 3 + 3  # teachers, and consensus, uniform average, target
    for said, drawn in places:
        assert drawn == pytest.approx(said, abs=0.6)


# --- every screen, both colour schemes


@pytest.fixture(scope="module")
def crowded(runs, tmp_path_factory) -> Path:
    """Four methods with two seeds, one of a long name, ten classes with names of several letters, an inspector."""
    methods = ("local", "organisation.federated:WEIGHTED_BY_AGE", "uniform", "crad")
    found = [
        made_run(method, seed=seed, clients=6, classes=10, rounds=6, better=number, trusts=method == "crad")
        for number, method in enumerate(methods)
        for seed in (1, 2)
    ]
    found[-1] = replace(found[-1], inspection=runs[0].inspection)
    path: Path = tmp_path_factory.mktemp("crowded") / "report.html"
    path.write_text(report_page(found))
    return path


@pytest.fixture(scope="module")
def member_page(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("member") / "report.html"
    path.write_text(participant_page(told(), versions={"crad": "0"}))
    return path


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_squeezed_tiny_pale_or_one_over_the_other(chromium, crowded, member_page, width):
    for path, parts in ((crowded, TABS), (member_page, MEMBER_TABS)):
        tab = Tab(chromium, width=width, height=800)
        tab.open(path)
        for name in parts:
            open_part(tab, name)
            for scheme in ("light", "dark"):
                tab.prefer(scheme)
                assert layout_problems(tab) == [], (path.parent.name, name, scheme)
                if name in ("outcome", "inspector") and width in PICTURED:
                    tab.screenshot(artefact(f"{path.parent.name}-{name}-{width}-{scheme}.png"))
            assert tab.value("document.documentElement.scrollWidth") <= width
            assert (
                tab.value("document.querySelector('nav [aria-selected=true]').getBoundingClientRect().right") <= width
            )
        assert tab.complaints() == []
        tab.close()


BREAKAGES = {
    ".caption { max-width: 3rem }": "narrower than 12 letters",
    ".tiles { width: 120% }": "wider than its container",
    ".lead { white-space: nowrap }": "pixels in",
    ".scroll { overflow: visible }": "pixels in",
    ".scroll th { max-width: 1rem !important; overflow-wrap: anywhere !important }": "is broken",
    ".plot svg { width: 180px }": "letters too small in a chart",
    ".plot svg text { font-size: 26px }": "cut at the edge of its chart",
    ".csv { font-size: 8px }": "letters of 8px",
    ":root { --muted: #aaa }": "contrast",
}


def test_a_layout_that_is_broken_is_found_out(chromium, crowded):
    """The net above has no hole: each of these would be seen by a reader, and is told."""
    tab = Tab(chromium, width=420, height=800)
    tab.open(crowded)
    open_part(tab, "outcome")
    for style, words in BREAKAGES.items():
        tab.value(
            "(() => { const one = document.createElement('style'); one.id = 'broken'; "
            f"one.textContent = {json.dumps(style)}; document.head.append(one); }})()"
        )
        assert any(words in problem for problem in layout_problems(tab)), style
        tab.value("document.getElementById('broken').remove()")
    assert layout_problems(tab) == []
    tab.close()


def test_a_table_that_is_wider_than_the_screen_says_so_until_it_fits(chromium, page):
    tab = Tab(chromium, width=360, height=800)
    tab.open(page, "#tables")
    state = """[...document.querySelectorAll('#tables .wide')].map(box => [
        box.classList.contains('cut-left'), box.classList.contains('cut-right'),
        !box.parentElement.querySelector('.cue').hidden])[0]"""
    tab.wait_for(f"String({state}) === 'false,true,true'")
    tab.value("(() => { const one = document.querySelector('#tables .scroll'); one.scrollLeft = one.scrollWidth; })()")
    tab.wait_for(f"String({state}) === 'true,false,true'")
    tab.resize(1400, 800)
    tab.wait_for(f"String({state}) === 'false,false,false'")
    tab.close()


# --- tables as files


def saved_csv(tab: Tab, folder: Path, selector: str) -> list[list[str]]:
    """Press a table's button, and read the file that the browser saves."""
    tab.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    before = set(folder.glob("*.csv"))
    tab.value(f"document.querySelector({json.dumps(selector)}).click()")
    until = time.monotonic() + PATIENCE_S
    while not (new := set(folder.glob("*.csv")) - before):
        assert time.monotonic() < until, "nothing was saved"
        tab.browser.listen(0.05)
    text = new.pop().read_bytes().decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline="")))


def test_every_table_can_be_saved_with_all_its_cells(tab, tmp_path):
    assert tab.value(
        "[...document.querySelectorAll('table')].every(one => one.closest('.table').querySelector('.csv'))"
    )
    assert tab.value("[...document.querySelectorAll('.csv')].every(one => !one.hidden)")
    shown = tab.value(
        "[...document.querySelector('#outcome table').rows].map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert saved_csv(tab, tmp_path, "#outcome .csv") == shown
    (path,) = tmp_path.glob("*.csv")
    assert path.name == "2-methods-compared-on-tiny-npz-what-joining-brought.csv"
    open_part(tab, "inspector")
    rows = saved_csv(tab, tmp_path, "#inspector .csv")
    assert rows[0] == ["teacher", "samples", "says %", "state", "weight %", "accuracy %"]
    assert [row[0] for row in rows[-3:]] == ["┆ consensus", "◇ uniform average", "◆ target"]
    assert {len(row) for row in rows} == {6}


def test_a_cell_that_a_spreadsheet_would_compute_is_saved_as_text(chromium, tmp_path):
    cells = ["=1+1", "@cmd", "+1 and more", "-x", "-5.00", "+5.00 ± 1.20", "-", 'a "b", c', "12,345"]
    page = framed_page(
        "study.html",
        title="t",
        sentence="s",
        versions="",
        data={"charts": {}},
        headline={"verdict": "v", "lines": []},
        tables=[PageTable(["name"], [[cell] for cell in cells], "words", title="Names")],
        charts=[],
        details=[],
        command="",
    )
    path = tmp_path / "report.html"
    path.write_text(page)
    tab = Tab(chromium)
    tab.open(path)
    saved = [row[0] if row else "" for row in saved_csv(tab, tmp_path, ".csv")]
    assert saved == ["name", "'=1+1", "'@cmd", "'+1 and more", "'-x", "-5.00", "+5.00 ± 1.20", "", 'a "b", c', "12,345"]
    tab.close()


def test_a_printed_page_has_all_parts_and_all_charts(tab, runs):
    first = tab.pdf()
    assert first[:5] == b"%PDF-"
    assert tab.value("document.querySelectorAll('.plot svg').length") == len(make_charts(runs))
    # What was drawn only for printing came in time: another print is no longer.
    assert abs(len(tab.pdf()) - len(first)) < 0.02 * len(first)
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.value("[...document.querySelectorAll('main > section')].every(part => part.offsetHeight > 0)")
    # Nobody moves a slider on paper.
    assert tab.value("document.querySelectorAll('.plot .vega-bindings *').length") > 0
    controls = "select, input, nav a, #theme, .csv, .cue, .cases button"
    assert tab.value(f"[...document.querySelectorAll('{controls}')].filter(one => one.offsetParent).length") == 0


def test_a_table_of_nine_methods_is_not_cut_on_paper(chromium, tmp_path, monkeypatch):
    monkeypatch.setattr("crad.report.charts.charts_available", lambda: False)
    nine = ["local", "fedmd", "fedgd", "msfkd", "dfml", "fedmkd", "uniform", "uncertainty", "crad"]
    path = tmp_path / "report.html"
    wordy = {"architecture_per_client": ["resnet18-half@0.125"] * 2}
    path.write_text(report_page([run_of(summary(method, overall=-22.5, **wordy)) for method in nine]))
    tab = Tab(chromium, width=717)  # A4 between Chromium's own margins
    tab.open(path)
    tab.call("Emulation.setEmulatedMedia", media="print")
    widths = tab.value("[...document.querySelectorAll('table')].map(one => one.getBoundingClientRect().right)")
    assert len(widths) == 6
    assert max(widths) <= 717
    tab.close()


def test_without_scripts_all_parts_stand_one_below_the_other(chromium, page):
    tab = Tab(chromium)
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(page)
    assert tab.value("[...document.querySelectorAll('main > section')].every(part => part.offsetHeight > 0)")
    assert "crad explain RUN says the same" in tab.value("document.getElementById('inspector').innerText")
    tab.close()


def test_the_inspector_shows_what_is_heard_once_the_priors_are_out(chromium, tiny, tmp_path):
    experiment = change(tiny, rounds=1, models=("cnn6",), method="support-all", teacher_prior="remove")
    crad.run(experiment, output=tmp_path / "run")
    run = load_run(tmp_path / "run")
    path = tmp_path / "report.html"
    path.write_text(report_page([run]))
    tab = Tab(chromium)
    tab.open(path, "#inspector")
    inspection = run.inspection
    assert inspection is not None
    for label in range(4):
        choose(tab, "#choose-class", label)
        student, image = (int(tab.value(f"document.querySelector('{one}').value")) for one in STUDENT_AND_IMAGE)
        client, index = inspection["students"][student]["client"], inspection["images"][image]["index"]
        trace = trace_of(inspection, client, index, label)
        assert shown_sentence(tab) == describe(trace)
        cells = "[...document.querySelectorAll('.teachers tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
        said = [[percent(one.probability), percent(one.corrected or 0)] for one in trace.teachers]
        assert [row[3:5] for row in tab.value(cells)] == said
        at = "[...document.querySelectorAll('.teachers tbody .mark')].map(m => parseFloat(m.style.left))"
        assert tab.value(at) == pytest.approx([100 * (one.corrected or 0) for one in trace.teachers], abs=1e-3)
    heads = tab.value("[...document.querySelectorAll('.teachers thead th')].map(c => c.textContent)")
    assert heads[3:5] == ["says %", "prior out %"]
    widths = "[...document.querySelectorAll('.teachers tr')].map(r => [...r.cells].reduce((n, c) => n + c.colSpan, 0))"
    assert len({*tab.value(widths)}) == 1, "every row has all columns"
    assert tab.complaints() == []
    tab.close()


STUDENT_AND_IMAGE = ("#choose-student", ".thumbs input:checked")


def test_names_that_look_like_markup_stay_names(chromium, runs, tmp_path):
    hostile = "</script><script>document.title='taken'</script><b>"
    text = json.dumps(runs[0].inspection).replace('"classes": ["0"', f'"classes": [{json.dumps(hostile)}')
    run = type(runs[0])(**{**vars(runs[0]), "inspection": json.loads(text)})
    path = tmp_path / "report.html"
    path.write_text(report_page([run]))
    tab = Tab(chromium)
    tab.open(path, "#inspector")
    choose(tab, "#choose-class", 0)
    assert hostile in shown_sentence(tab)
    assert tab.value("document.title") == f"crad on {Path(run.summary['dataset']).name}"
    assert tab.complaints() == []
    tab.close()


def choose(tab: Tab, selector: str, value: int) -> None:
    tab.value(
        f"(() => {{ const one = document.querySelector('{selector}'); one.value = '{value}';"
        "one.dispatchEvent(new Event('change', { bubbles: true })); })()"
    )


def shown_sentence(tab: Tab) -> str:
    sentence: str = tab.value("document.querySelector('.said').textContent")
    return sentence


def shown_teachers(tab: Tab) -> list[list[str]]:
    words = {"kept": "kept", "dropped for support": "unsupported", "dropped as outlier": "outlier"}
    rows = tab.value(
        "[...document.querySelectorAll('.teachers tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    return [[row[0], row[3], words[row[4].split(" ", 1)[1]]] for row in rows]


def trace_of(inspection: dict[str, Any], student: int, image: int, label: int) -> ImageTrace:
    """What inspection.json holds of one choice, as crad explain has it."""
    i = next(i for i, one in enumerate(inspection["images"]) if one["index"] == image)
    own = next(one for one in inspection["students"] if one["client"] == student)
    place = {teacher["client"]: n for n, teacher in enumerate(inspection["teachers"])}
    teachers = [
        TeacherView(
            client=client,
            architecture=inspection["teachers"][place[client]]["architecture"],
            count=inspection["teachers"][place[client]]["counts"][label],
            accuracy=inspection["teachers"][place[client]]["accuracies"][label],
            probability=inspection["probabilities"][i][place[client]][label],
            state=STATES[own["states"][i][k][label]],
            weight=own["weights"][i][k][label],
            corrected=inspection["corrected"][i][place[client]][label] if "corrected" in inspection else None,
        )
        for k, client in enumerate(own["teachers"])
    ]
    figures = {key: own[key][i][label] for key in ("consensus", "band", "target", "uniform")}
    names = inspection["classes"]
    truth = names[inspection["images"][i]["label"]]
    return ImageTrace(
        round_index=inspection["round"],
        student=student,
        image=image,
        class_index=label,
        class_name=names[label],
        true_class=truth,
        teachers=tuple(teachers),
        **figures,
    )
