"""The live page in a real browser: it fetches what is new and leaves the reader where they were."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from crad.report.live.bar import with_live_bar
from crad.report.live.local_server import PageServer, Shown
from tests.chromium import Chromium, Tab

BODY = """<!doctype html><html><head><title>{title}</title></head><body><h1 id="outcome">{title}</h1>
<select id="who"><option>0<option>1<option>2</select><input type="checkbox" id="all">
<details id="more"><summary>more</summary>text</details><output id="said"></output>
<div id="long"></div><p id="end">words to select</p>
<script>
who.onchange = () => {{ said.textContent = "student " + who.value; }};
setTimeout(() => {{ long.style.height = "3000px"; }}, 150);  // as a chart does that is drawn late
</script></body></html>"""


@pytest.fixture
def server() -> Iterator[PageServer]:
    server = PageServer(0)
    yield server
    server.close()


def show(server: PageServer, version: str, text: str, *, is_finished: bool = False) -> None:
    status = {"version": version, "text": text, "farewell": "Gone.", "is_finished": is_finished}
    content = with_live_bar(BODY.format(title=version), {**status, "poll_seconds": 0.1})
    server.show(Shown(version, content, json.dumps({"version": version, "text": text}).encode()))


def opened(browser: Chromium, server: PageServer) -> Tab:
    tab = Tab(browser)
    tab.call("Page.navigate", url=f"{server.address}#outcome")
    tab.wait_for("document.readyState === 'complete' && document.getElementById('long')?.offsetHeight === 3000")
    return tab


def test_a_new_page_is_fetched_and_the_reader_stays_where_they_were(chromium, server):
    show(server, "v1", "round 1")
    tab = opened(chromium, server)
    assert tab.value("document.getElementById('crad-live').textContent") == "round 1"
    tab.value("more.open = true; all.checked = true; who.value = '2'; who.focus(); scrollTo(0, 1234)")
    show(server, "v2", "round 2")
    tab.wait_for("document.title === 'v2' && scrollY === 1234")
    tab.browser.listen(0.3)
    assert tab.value("[scrollY, location.hash, more.open, all.checked, who.value, said.textContent]") == [
        *(1234, "#outcome", True, True, "2", "student 2")
    ]
    assert tab.value("document.activeElement.id") == "who"
    assert tab.value("document.getElementById('crad-live').textContent") == "round 2"
    assert tab.complaints() == []


def test_news_of_the_run_need_no_new_page(chromium, server):
    show(server, "v1", "round 1")
    tab = opened(chromium, server)
    tab.value("window.mark = 1")
    show(server, "v1", "round 2")
    tab.wait_for("document.getElementById('crad-live').textContent === 'round 2'")
    assert tab.value("window.mark") == 1


def test_a_reader_who_marks_words_is_not_disturbed(chromium, server):
    show(server, "v1", "round 1")
    tab = opened(chromium, server)
    tab.value("getSelection().selectAllChildren(document.getElementById('end'))")
    show(server, "v2", "round 2")
    tab.wait_for("document.getElementById('crad-live').textContent === 'round 2'")
    tab.browser.listen(0.5)
    assert tab.value("document.title") == "v1"
    tab.value("getSelection().removeAllRanges()")
    tab.wait_for("document.title === 'v2'")


def test_a_finished_page_asks_no_more(chromium, server):
    show(server, "v1", "round 1")
    tab = opened(chromium, server)
    show(server, "v2", "Finished.", is_finished=True)
    tab.wait_for("document.title === 'v2' && document.getElementById('long')?.offsetHeight === 3000")
    asked = len(tab.requests())
    tab.browser.listen(0.5)
    assert len(tab.requests()) == asked
    assert tab.value("document.getElementById('crad-live').textContent") == "Finished."


def test_a_run_that_no_longer_answers_leaves_the_page_and_says_so(chromium):
    server = PageServer(0)
    show(server, "v1", "round 1")
    tab = opened(chromium, server)
    server.close()
    tab.wait_for("document.getElementById('crad-live').textContent === 'Gone.'")
    assert tab.value("document.title") == "v1"
