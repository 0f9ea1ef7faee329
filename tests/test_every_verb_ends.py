"""Whatever the others do, every `crad peer` verb ends: doctor by itself, and all of them when they are asked to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from crad.network.agreement import agreement_to_toml, make_agreement
from crad.network.https.dial_back import DialBack
from crad.site.doctor import Findings, others, shared_store
from crad.site.doctor.bounded_calls import BoundedCall, all_within, as_they_come
from crad.site.doctor.others import check_members
from crad.site.doctor.shared_store import check_store
from crad.site.settings import read_site
from tests.clinics import Clinics, found_clinics
from tests.conftest import hearing_ctrl_c
from tests.dripping import Dripping, Way
from tests.forked import fork_or_start

HOSTILE = (Way.SILENT, Way.HANDSHAKE, Way.HEADERS, Way.BODY)
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
BOTH = pytest.mark.parametrize(("number", "code"), SIGNALS, ids=["ctrl-c", "terminated"])
# The end of the interpreter itself is tried with one that was started, and again with one that was forked.
BOTH_WAYS = pytest.mark.parametrize(
    ("number", "code", "begin"),
    [(*SIGNALS[0], subprocess.Popen), (*SIGNALS[1], fork_or_start)],
    ids=["ctrl-c", "terminated"],
)
PROMISED_S = 5.0
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def clinics(tmp_path_factory) -> Iterator[Clinics]:
    """Clinic 0 is honest; the others are hostile, each in its own way."""
    founded = found_clinics(tmp_path_factory.mktemp("clinics"), clients=1 + len(HOSTILE), deadline_s=600.0)
    yield founded
    founded.end()


@contextmanager
def hostile(clinics: Clinics, ways=HOSTILE) -> Iterator[list[Dripping]]:
    with ExitStack() as opened:
        yield [
            opened.enter_context(
                Dripping(
                    way,
                    str(clinics.agreement.members[number].address),
                    identity=clinics.identity(number),
                    agreement=clinics.agreement,
                )
            )
            for number, way in enumerate(ways, start=1)
        ]


def meet(clinics: Clinics) -> tuple[Findings, float]:
    findings, began = Findings(), time.monotonic()
    check_members(clinics.agreement, read_site(clinics.site(0)), clinics.identity(0), findings)
    return findings, time.monotonic() - began


# --- doctor by itself


def test_doctor_does_not_wait_for_members_that_drip(clinics, monkeypatch):
    monkeypatch.setattr(others, "MEMBER_S", 1.5)
    with hostile(clinics):
        findings, seconds = meet(clinics)
    assert seconds < 1.5 + 4
    late = [one for one in findings.all if "has not answered in full after 1.5 s" in one.text]
    assert [one.check for one in late] == ["clinic-1", "clinic-2", "clinic-3", "clinic-4"]
    assert all(one.check in one.advice for one in late)
    assert findings.all[-1].text == "none of the 4 other members answers"


def test_doctor_does_not_wait_for_a_probe_that_drips(clinics, monkeypatch):
    monkeypatch.setattr(others, "MEMBER_S", 2.0)
    monkeypatch.setattr(others, "PROBE_S", 1.0)
    with hostile(clinics, [Way.PROBE]):
        findings, seconds = meet(clinics)
    assert seconds < 2 + 1 + 4
    (said,) = [one.text for one in findings.all if one.check == "clinic-1" and "measured" in one.text]
    assert said == "its line could not be measured: 1.0 MB have not come in 1 s"


def test_all_probes_together_have_an_end_too(clinics, monkeypatch):
    monkeypatch.setattr(others, "MEMBER_S", 3.0)
    monkeypatch.setattr(others, "PROBE_S", 30.0)
    monkeypatch.setattr(others, "PROBES_S", 1.0)
    with hostile(clinics, [Way.PROBE] * 4):
        findings, seconds = meet(clinics)
    assert seconds < 3 + 1 + 4
    assert len([one for one in findings.all if "could not be measured" in one.text]) == 4


@contextmanager
def mute() -> Iterator[int]:
    """A port where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield listener.getsockname()[1]


def stored(clinics: Clinics, kind: str, port: int):
    """An agreement over a store that hangs, and what peer.toml says of it."""
    url = "s3://clinics/federation" if kind == "s3" else f"sftp://127.0.0.1:{port}/federation"
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
    if kind == "sftp":
        options = {"username": "crad", "password": "x", "look_for_keys": False, "allow_agent": False}  # type: ignore[dict-item]
    pytest.importorskip("s3fs" if kind == "s3" else "paramiko", reason=f"needs the extra bucket-{kind}")
    table = clinics.agreement.model_dump(mode="json", exclude_none=True)
    return make_agreement({**table, "exchange": url}), options


@pytest.mark.parametrize("kind", ["s3", "sftp"])
def test_doctor_does_not_wait_for_a_store_that_hangs(clinics, monkeypatch, kind):
    monkeypatch.setattr(shared_store, "STORE_S", 1.0)
    monkeypatch.setattr(shared_store, "MEMBER_S", 0.0)
    with mute() as port:
        agreement, options = stored(clinics, kind, port)
        site = read_site(clinics.site(0)).model_copy(update={"store_options": options})
        findings, began = Findings(), time.monotonic()
        assert check_store(agreement, site, clinics.identity(0), findings) is None
    assert time.monotonic() - began < 4
    (said,) = findings.of("problem")
    assert "has not done what it was asked in 1 s: it hangs, or is very slow" in said.text


def test_a_member_that_is_tried_back_cannot_hold_the_one_that_tries(clinics, monkeypatch):
    import asyncio

    from crad.network.https import dial_back

    monkeypatch.setattr(dial_back, "TOTAL_S", 1.0)
    try_back = DialBack(clinics.agreement, clinics.identity(0))
    with hostile(clinics):
        for name in ("clinic-2", "clinic-3", "clinic-4"):
            began = time.monotonic()
            assert try_back.begin(name)
            assert not asyncio.run(try_back.reached(name)).is_reached, "and no pool of the loop is waited for"
            assert time.monotonic() - began < 4


# --- the process ends, too


def start(
    *words: object, before: str = "", begin: Callable[..., subprocess.Popen[str]] = subprocess.Popen
) -> subprocess.Popen[str]:
    """`crad WORDS` as a process of its own, with some settings of the package changed before."""
    said = ["crad", *map(str, words)]
    code = f"import sys\n{before}\nfrom crad.cli import main\nsys.argv = {said!r}\nmain()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with hearing_ctrl_c():
        return begin([sys.executable, "-c", code], text=True, env=environment, **pipes)


def end(process: subprocess.Popen[str], number: int) -> tuple[int, float, str]:
    """Ask it to end: its code, how long that took, and what it said."""
    began = time.monotonic()
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, time.monotonic() - began, err


@pytest.mark.parametrize("verb", ["doctor", "join"])
@BOTH
def test_members_that_drip_cannot_keep_a_verb_from_ending(clinics, verb, number, code):
    with hostile(clinics) as servers:
        # Doctor is started below, and join in test_peer.py.
        process = start("peer", verb, "--site", clinics.site(0), begin=fork_or_start)
        try:
            until = time.monotonic() + PATIENCE_S
            for server in servers:
                assert server.is_met.wait(until - time.monotonic()), process.poll()
            time.sleep(0.5)
            assert process.poll() is None
            ended, seconds, said = end(process, number)
        finally:
            process.kill()
            process.communicate()
    assert (ended, seconds < PROMISED_S) == (code, True), f"{seconds:.1f} s: {said}"
    assert "Traceback" not in said
    if verb == "join":
        again = f"crad peer join --site {clinics.site(0)}"
        assert f"crad: stopped; the last complete round is kept, go on with {again}" in said


def test_doctor_ends_as_a_process_though_its_threads_still_hang(clinics):
    """Nothing of what is left behind is joined when the interpreter ends."""
    patched = "import crad.site.doctor.others as others\nothers.MEMBER_S = 2.0"
    with hostile(clinics) as servers:
        process = start("peer", "doctor", "--site", clinics.site(0), before=patched)
        try:
            for server in servers:
                assert server.is_met.wait(PATIENCE_S)
            began = time.monotonic()
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert time.monotonic() - began < 15, "two seconds, the server's end, an estimate"
    assert process.returncode == 2, err
    assert "none of the 4 other members answers" in out
    assert err.endswith("before joining: others\n")


def in_a_store(clinics: Clinics, folder: Path, port: int) -> Path:
    """The peer.toml of clinic 0 for a federation that meets in an S3 that hangs."""
    agreement, options = stored(clinics, "s3", port)
    (folder / "federation.toml").write_text(agreement_to_toml(agreement))
    home = clinics.site(0).parent
    text = clinics.site(0).read_text().replace('"../federation.toml"', '"federation.toml"')
    text = text.replace('"keys"', f'"{home / "keys"}"').replace('"own.npz"', f'"{home / "own.npz"}"')
    pairs = ", ".join(f'{key} = "{value}"' for key, value in options.items())
    (folder / "peer.toml").write_text(f"{text}\nstore_options = {{ {pairs} }}\n")
    return folder / "peer.toml"


@pytest.mark.parametrize("verb", ["doctor", "join"])
def test_a_store_that_hangs_cannot_keep_a_verb_from_ending(clinics, tmp_path, verb):
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        listener.settimeout(PATIENCE_S)
        site = in_a_store(clinics, tmp_path, listener.getsockname()[1])
        process = start("peer", verb, "--site", site, begin=fork_or_start)
        try:
            line, _ = listener.accept()
            with line:
                time.sleep(0.5)
                ended, seconds, said = end(process, signal.SIGTERM)
        finally:
            process.kill()
            process.communicate()
    assert (ended, seconds < PROMISED_S) == (143, True), f"{seconds:.1f} s: {said}"


@pytest.mark.parametrize(
    "words",
    [
        ("trust", "{home}/federation.toml", "{pipe}"),
        ("renew", "--site", "{pipe}"),
        ("status", "--site", "{pipe}"),
        ("invite", "--federation", "x", "--site", "{pipe}", "--output", "{new}"),
    ],
    ids=lambda words: words[0],
)
@BOTH
def test_the_small_verbs_end_wherever_they_are(clinics, tmp_path, words, number, code):
    """A file that never comes stands for whatever a verb may hang in."""
    os.mkfifo(tmp_path / "pipe")
    names = {"home": clinics.folder, "pipe": tmp_path / "pipe", "new": tmp_path / "new.toml"}
    process = start("peer", *(word.format(**names) for word in words), begin=fork_or_start)
    try:
        until = time.monotonic() + PATIENCE_S
        while (writer := _open_for_writing(tmp_path / "pipe")) is None:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(0.2)
        ended, seconds, _ = end(process, number)
        os.close(writer)
    finally:
        process.kill()
        process.communicate()
    assert (ended, seconds < PROMISED_S) == (code, True)


def _open_for_writing(pipe: Path) -> int | None:
    """The other end of a pipe, once somebody is there to read it; the reader then waits for a word."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


STUCK = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
import crad.cli.peer
def stuck(*words, **more):
    pool = ThreadPoolExecutor(1)
    pool.submit(time.sleep, 60)
    print("stuck", flush=True)
    time.sleep(60)  # and when this is cut short, the end of the interpreter waits for the pool
crad.cli.peer._read = stuck
"""
HELD = """
import time
import crad.cli.peer
def held(*words, **more):
    print("stuck", flush=True)
    try:
        time.sleep(60)
    finally:
        time.sleep(60)
crad.cli.peer._read = held
"""
DEAF = """
import ctypes
import crad.cli.peer
def deaf(*words, **more):
    print("stuck", flush=True)
    lock = (ctypes.c_char * 64)()
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)  # for ever, as in a name server's answer: no handler runs
crad.cli.peer._read = deaf
"""


SLOW_END = """
import atexit, time
import crad.cli.peer
atexit.register(time.sleep, 60)  # as taking down a large interpreter on a busy machine
def waits(*words, **more):
    print("stuck", flush=True)
    time.sleep(60)
crad.cli.peer._read = waits
"""


@pytest.mark.parametrize("before", [STUCK, SLOW_END], ids=["a pool that is joined", "an interpreter that ends slowly"])
@BOTH_WAYS
def test_an_end_in_order_does_not_wait_for_the_interpreter(before, number, code, begin):
    process = start("peer", "status", before=before, begin=begin)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "stuck\n"
        time.sleep(0.2)
        ended, seconds, said = end(process, number)
    finally:
        process.kill()
    assert (ended, seconds < 2.5, said) == (code, True, ""), f"{seconds:.1f} s: {said}"


@pytest.mark.parametrize("before", [DEAF, HELD], ids=["a call that hears no signal", "an end that does not come"])
@BOTH_WAYS
def test_what_python_would_wait_for_is_left_behind(before, number, code, begin):
    process = start("peer", "status", before=before, begin=begin)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "stuck\n"
        time.sleep(0.2)
        ended, seconds, said = end(process, number)
    finally:
        process.kill()
    assert (ended, seconds < PROMISED_S) == (code, True), f"{seconds:.1f} s: {said}"
    assert "crad: ended 3 s after it was asked to" in said


# --- errands


def test_an_errand_tells_what_its_call_told_and_raised():
    until = time.monotonic() + 5
    assert BoundedCall(lambda: 7).outcome(until=until) == 7
    with pytest.raises(KeyError):
        BoundedCall(lambda: dict[str, int]()["x"]).outcome(until=until)
    with pytest.raises(TimeoutError):
        BoundedCall(threading.Event().wait).outcome(until=time.monotonic() + 0.05)


def test_who_is_slow_is_late_alone():
    never = threading.Event()
    calls = [lambda: 1, lambda: never.wait() or 0, lambda: 3]
    assert all_within(0.3, calls, late=lambda place: -place) == [1, -1, 3]
    assert all_within(0.3, calls, late=lambda place: -place, at_once=1) == [1, -1, 3]


def test_news_comes_before_the_end_and_a_late_one_keeps_what_it_told():
    never = threading.Event()

    def call(tell):
        tell("first")
        never.wait()

    news = as_they_come(call, seconds=0.3)
    assert next(news) == "first"
    with pytest.raises(TimeoutError):
        next(news)

    def short(tell):
        tell("only")

    assert list(as_they_come(short, seconds=5)) == ["only"]
