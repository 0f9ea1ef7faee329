"""The page of `--watch`: grows while a run goes on, is for this machine alone, and changes no bit of the outcome."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import crad
from crad.cli import main
from crad.config import to_toml
from crad.errors import ConfigError
from crad.federation.rounds import Step
from crad.report.live import watch as watch_module
from crad.report.live.bar import waiting_page, with_live_bar
from crad.report.live.local_server import PageServer, Shown
from crad.report.live.watch import Watch
from crad.results.result import Result
from crad.runs.callbacks import LambdaCallback
from crad.runs.run_records import RunRecords
from tests.conftest import change


def get(address: str, path: str = "/", **headers: str) -> tuple[int, http.client.HTTPMessage, str]:
    """Status, headers and text of one request; the path is sent as it is written."""
    connection = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=10)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read().decode()
    finally:
        connection.close()


def version(address: str) -> str:
    return str(json.loads(get(address, "/version")[2])["version"])


@pytest.fixture
def server() -> Iterator[PageServer]:
    server = PageServer(0)
    server.show(Shown("v1", b"<p>first</p>", b'{"version": "v1"}'))
    yield server
    server.close()


def test_the_page_and_its_version_are_handed_out_and_never_kept(server):
    status, headers, text = get(server.address)
    assert (status, text, headers["Content-Type"]) == (200, "<p>first</p>", "text/html; charset=utf-8")
    assert headers["Cache-Control"] == "no-store"
    assert get(server.address, "/version")[2] == '{"version": "v1"}'
    deadline = time.monotonic() + 10
    while not server.has_handed_out("v1") and time.monotonic() < deadline:
        time.sleep(0.01)  # noted once it is sent, and we may read faster than that
    assert server.has_handed_out("v1")
    assert not server.has_handed_out("v2")


def test_what_a_browser_has_already_is_not_sent_again(server):
    for path in ("/", "/version"):
        tag = get(server.address, path)[1]["ETag"]
        assert get(server.address, path, If_None_Match=tag)[::2] == (304, "")
    server.show(Shown("v2", b"<p>second</p>", b'{"version": "v2"}'))
    for path in ("/", "/version"):
        assert get(server.address, path, If_None_Match='"v1"')[0] == 200


@pytest.mark.parametrize("path", ["/report.html", "/version/", "/../", "//", "/experiment.toml", "/%2e%2e/", "*"])
def test_there_is_nothing_else(server, path):
    assert get(server.address, path)[0] == (200 if path == "//" else 404)  # Python's handler reads // as /


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1]", ""])
def test_a_foreign_name_for_this_address_is_refused(server, host):
    status, _, text = get(server.address, Host=host)
    assert status == 403
    assert "first" not in text
    assert not server.was_asked_within(60)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:5000"])
def test_own_names_are_let_in_through_any_forwarded_port(server, host):
    assert get(server.address, Host=host)[0] == 200
    assert server.was_asked_within(60)


def test_it_listens_on_the_loopback_address_alone(server):
    port = int(server.address.rstrip("/").rpartition(":")[2])
    assert server.address == f"http://127.0.0.1:{port}/"
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # free: the server has one address, not all


def test_a_taken_port_is_refused_in_one_line(server):
    port = int(server.address.rstrip("/").rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"--port {port} of 127.0.0.1 cannot be had \(Address already in use\)"):
        PageServer(port)


@pytest.fixture(scope="module")
def told(tiny, tmp_path_factory) -> tuple[Path, list[RunRecords], Result]:
    """A small run: its directory, what it told after each tested round, and its result."""
    heard: list[RunRecords] = []
    path = tmp_path_factory.mktemp("told") / "run"
    quick = change(tiny, rounds=4, eval_every=2, models=("cnn6",), committee=True)
    result = crad.run(quick, output=path, callbacks=[LambdaCallback(on_records=heard.append)])
    assert [len(records.rounds) for records in heard] == [2, 3, 4]
    return path, heard, result


@pytest.fixture
def made(monkeypatch) -> list[int]:
    """How many runs each page that is made has; making one takes 20 ms."""
    pages: list[int] = []

    def report_page(runs: list[RunRecords], *, is_live: bool) -> str:
        assert is_live
        time.sleep(0.02)
        pages.append(len(runs))
        return f"<body>page {len(pages)}</body>"

    monkeypatch.setattr(watch_module, "report_page", report_page)
    return pages


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch(announce=lambda address: None)
    yield watch
    watch.close()


def address_of(watch: Watch) -> str:
    return watch._server.address


STEP = Step("learning", 3, 4, 1, 4, 0)


def test_no_page_is_made_while_nobody_looks(told, made, watch):
    path, heard, _ = told
    watch.on_run_begin(heard[0].experiment, path)
    watch.on_partition(heard[0].partition)
    watch.on_records(heard[0])
    assert made == []
    assert "The first result comes at round 2." in get(address_of(watch))[2], "who comes late sees this"
    watch.on_step(STEP)
    assert made == [1], "and the result at the next step"
    assert "page 1" in get(address_of(watch))[2]


def test_a_page_is_not_made_again_before_the_last_one_is_five_percent_of_the_time(told, made, watch):
    path, heard, _ = told
    watch.on_run_begin(heard[0].experiment, path)
    get(address_of(watch))
    began = time.monotonic()
    watch.on_records(heard[0])
    watch.on_records(heard[1])
    assert made == [1]
    while len(made) < 2:
        watch.on_step(STEP)
        time.sleep(0.005)
    assert time.monotonic() - began > 20 * 0.02
    for _ in range(3):
        watch.on_step(STEP)
    assert made == [1, 1], "nothing new, nothing made"


def test_complete_runs_stay_on_the_page_beside_the_next(told, made, watch, monkeypatch):
    monkeypatch.setattr(watch_module, "PAUSE_PER_COST", 0.0)
    path, heard, result = told
    watch.on_run_begin(heard[0].experiment, path)
    get(address_of(watch))
    watch.on_run_end(result)
    watch.on_run_begin(heard[0].experiment, path)
    watch.on_partition(heard[0].partition)
    assert "page 1" in get(address_of(watch))[2], "the results are not taken away again"
    watch.on_records(heard[0])
    assert made == [1, 2]


def test_the_waiting_page_says_who_holds_what_and_is_no_way_in_for_markup(told):
    _, heard, _ = told
    named = change(heard[0].experiment, rounds=1, method="<script>")
    page = waiting_page(named, heard[0].partition, label="<b>")
    assert "The first result comes at round 1." in page, "the last round is always tested"
    assert "Private samples per client and class" in page
    assert "<script>" not in page
    assert "<b>" not in page


def test_the_bar_goes_into_the_body_and_its_data_cannot_end_the_script():
    page = with_live_bar("<body>x</body></html>", {"text": "</script><b>"}).decode()
    assert page.startswith("<body>x<style>")
    assert page.endswith("</script></body></html>")
    assert page.count("</script>") == 1
    assert with_live_bar("x", {"text": ""}).decode().endswith("</script>")


@pytest.fixture(scope="module")
def toml(told, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("toml") / "experiment.toml"
    path.write_text(to_toml(told[1][0].experiment))
    return path


def run_command(toml: Path, path: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "crad", "run", "-c", str(toml), "-o", str(path), "--quiet", *flags]


def test_a_watched_run_shows_itself_and_ends_with_the_same_bits(toml, told, tmp_path):
    command = run_command(toml, tmp_path / "run", "--watch")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.fullmatch(r"Watch it at (http://127\.0\.0\.1:\d+/)\n", process.stderr.readline())
        assert found is not None
        pages, texts = look(found[1])
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out.strip(), err) == (0, str(tmp_path / "run"), "")
    assert "The first result comes at round 2." in pages[0]
    assert any("Accuracy over rounds" in page and "Finished. This page" not in page for page in pages[1:-1])
    assert f"Finished. This page is {tmp_path / 'run' / 'report.html'}" in pages[-1]
    assert pages[-1].replace(bar_of(pages[-1]), "") == (tmp_path / "run" / "report.html").read_text()
    assert any(re.search(r"round \d of 4 is running", text) for text in texts)
    assert outcome(tmp_path / "run") == outcome(told[0])


def look(address: str) -> tuple[list[str], list[str]]:
    """Every page and every status text until nobody answers any more, as a tab would ask for them."""
    pages: list[str] = []
    texts: list[str] = []
    known, until = "", time.monotonic() + 300
    while time.monotonic() < until:
        try:
            status = json.loads(get(address, "/version")[2])
            texts.append(status["text"])
            if status["version"] != known:
                known = status["version"]
                pages.append(get(address)[2])
        except (ConnectionError, http.client.BadStatusLine):
            return pages, texts
        time.sleep(0.05)
    raise AssertionError("the run does not come to its end")


def bar_of(page: str) -> str:
    return page[page.index("<style>\n#crad-live") : page.rindex("</body>")]


def outcome(path: Path) -> list[str]:
    """Every figure but those of the clock, and every weight."""
    rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    figures = [json.dumps({key: value for key, value in one.items() if key != "timing"}) for one in rounds]
    states = sorted((path / "checkpoint" / "states").rglob("*"))
    assert states
    return figures + [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in states]


def test_a_port_that_cannot_be_had_is_one_line_before_anything_is_written(toml, tmp_path, server, monkeypatch, capsys):
    port = server.address.rstrip("/").rpartition(":")[2]
    line = refused(run_command(toml, tmp_path / "run", "--watch", "--port", port), monkeypatch, capsys)
    assert line.startswith(f"crad: --port {port} of 127.0.0.1 cannot be had")
    assert not (tmp_path / "run").exists()


def test_a_port_without_a_page_is_refused(toml, tmp_path, monkeypatch, capsys):
    line = refused(run_command(toml, tmp_path / "run", "--port", "8000"), monkeypatch, capsys)
    assert line == "crad: --port is the port of the page that --watch shows: add --watch\n"


def test_settings_that_cannot_work_are_one_line_without_an_address(toml, tmp_path, monkeypatch, capsys):
    line = refused(run_command(toml, tmp_path / "run", "--watch", "--clients", "999"), monkeypatch, capsys)
    assert "Watch it" not in line


def refused(command: list[str], monkeypatch: Any, capsys: Any) -> str:
    """The one line that a command in this process ends with."""
    monkeypatch.setattr(sys, "argv", command[2:])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
    return str(err)
