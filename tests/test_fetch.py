"""Fetching against a real server on this machine: whole, resumed, refused, and never silently wrong."""

from __future__ import annotations

import errno
import hashlib
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from crad.data.catalog import DATASETS, Archive
from crad.data.fetch import check, fetch
from crad.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 2000  # 512,000 bytes
HALF = len(CONTENT) // 2


@dataclass
class Behaviour:
    """What the server does, and the requests it saw."""

    content: bytes = CONTENT
    etag: str = '"v1"'
    has_ranges: bool = True
    has_length: bool = True
    drops: int = 0  # so many answers end half-way
    status: int = 200
    url: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self):
        does = self.behaviour
        does.requests.append(dict(self.headers.items()))
        if does.status != 200:
            self.send_error(does.status)
            return
        start = self.asked_start()
        if start >= len(does.content):
            self.send_error(416)
            return
        body = does.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", does.etag)
        if does.has_length:
            self.send_header("Content-Length", str(len(body)))
        if start:
            last, total = len(does.content) - 1, len(does.content)
            self.send_header("Content-Range", f"bytes {start}-{last}/{total}")
        self.end_headers()
        if does.drops:
            does.drops -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def asked_start(self):
        does = self.behaviour
        asked = self.headers.get("Range")
        if asked is None or not does.has_ranges or self.headers.get("If-Range", does.etag) != does.etag:
            return 0
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    behaviour = Behaviour()
    handler = type("BoundHandler", (Handler,), {"behaviour": behaviour})
    http_server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    behaviour.url = f"http://127.0.0.1:{http_server.server_address[1]}/toy.tar.gz"
    yield behaviour
    http_server.shutdown()
    thread.join()
    http_server.server_close()


@pytest.fixture(autouse=True)
def toy(monkeypatch, server):
    """A data set of the catalogue whose one archive lies on the test server; no wait between tries."""
    md5 = hashlib.md5(CONTENT).hexdigest()
    archive = Archive("toy.tar.gz", server.url, md5=md5, size_bytes=len(CONTENT))
    monkeypatch.setitem(DATASETS, "toy", replace(DATASETS["cifar10"], name="toy", archives=(archive,)))
    monkeypatch.setattr("crad.data.fetch.RETRY_WAIT_S", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return archive


def change_archive(monkeypatch, archive, **changes):
    source = replace(DATASETS["toy"], archives=(replace(archive, **changes),))
    monkeypatch.setitem(DATASETS, "toy", source)


def names_in(folder: Path):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_arrives_whole_with_progress_and_leaves_no_part(server, tmp_path):
    steps = []
    path = fetch("toy", data_dir=tmp_path / "new", on_progress=lambda done, total: steps.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert names_in(tmp_path / "new") == ["toy.tar.gz"]
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert server.requests[0]["Accept-Encoding"] == "identity"


def test_a_file_that_is_there_and_right_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "toy.tar.gz").write_bytes(CONTENT)
    assert fetch("toy", data_dir=tmp_path) == tmp_path / "toy.tar.gz"
    assert server.requests == []


def test_a_file_that_is_there_but_another_is_not_overwritten(server, tmp_path):
    (tmp_path / "toy.tar.gz").write_bytes(b"my own subset")
    with pytest.raises(DataError, match="not the official file"):
        fetch("toy", data_dir=tmp_path)
    assert (tmp_path / "toy.tar.gz").read_bytes() == b"my own subset"
    assert server.requests == []


@pytest.mark.parametrize("has_length", [True, False])
def test_a_dropped_connection_is_resumed_with_the_remaining_range_only(server, tmp_path, has_length):
    server.drops, server.has_length = 1, has_length
    assert fetch("toy", data_dir=tmp_path).read_bytes() == CONTENT
    first, second = server.requests
    assert "Range" not in first
    assert (second["Range"], second["If-Range"]) == (f"bytes={HALF}-", '"v1"')


def test_tries_are_bounded_and_what_arrived_is_kept_for_the_next_command(server, tmp_path):
    server.drops = 3
    with pytest.raises(DataError, match=r"after 3 tries.*448000 bytes are kept"):
        fetch("toy", data_dir=tmp_path)
    assert len(server.requests) == 3
    assert (tmp_path / "toy.tar.gz.part").read_bytes() == CONTENT[:448_000]
    fetch("toy", data_dir=tmp_path)
    assert server.requests[3]["Range"] == "bytes=448000-"
    assert names_in(tmp_path) == ["toy.tar.gz"]


def test_a_server_without_ranges_starts_from_zero(server, tmp_path):
    server.drops, server.has_ranges = 1, False
    assert fetch("toy", data_dir=tmp_path).read_bytes() == CONTENT
    assert server.requests[1]["Range"] == f"bytes={HALF}-"


def test_a_changed_etag_starts_from_zero(server, tmp_path):
    (tmp_path / "toy.tar.gz.part").write_bytes(b"x" * 1000)
    (tmp_path / "toy.tar.gz.part.json").write_text(f'{{"url": "{server.url}", "etag": "\\"v0\\""}}')
    assert fetch("toy", data_dir=tmp_path).read_bytes() == CONTENT
    assert [request["If-Range"] for request in server.requests] == ['"v0"']


def test_a_weak_etag_is_not_sent_with_a_range(server, tmp_path):
    server.drops, server.etag = 1, 'W/"v1"'
    assert fetch("toy", data_dir=tmp_path).read_bytes() == CONTENT
    assert "If-Range" not in server.requests[1]


def test_a_damaged_note_does_not_stop_a_resume(server, tmp_path):
    (tmp_path / "toy.tar.gz.part").write_bytes(CONTENT[:HALF])
    (tmp_path / "toy.tar.gz.part.json").write_text("{")
    assert fetch("toy", data_dir=tmp_path).read_bytes() == CONTENT
    assert server.requests[0]["Range"] == f"bytes={HALF}-"


def test_a_complete_part_needs_no_request(server, tmp_path):
    (tmp_path / "toy.tar.gz.part").write_bytes(CONTENT)
    assert fetch("toy", data_dir=tmp_path).read_bytes() == CONTENT
    assert server.requests == []


def test_a_part_longer_than_the_file_is_dropped_and_fetched_anew(server, tmp_path, toy, monkeypatch):
    change_archive(monkeypatch, toy, size_bytes=None)
    (tmp_path / "toy.tar.gz.part").write_bytes(CONTENT + b"more")
    assert fetch("toy", data_dir=tmp_path).read_bytes() == CONTENT
    assert ["Range" in request for request in server.requests] == [True, False]


def test_a_wrong_checksum_is_refused_with_both_and_nothing_stays(server, tmp_path):
    server.content = CONTENT[:-1] + b"?"
    found, expected = (hashlib.md5(content).hexdigest() for content in (server.content, CONTENT))
    with pytest.raises(DataError, match=f"md5 {found}.*expected {expected}"):
        fetch("toy", data_dir=tmp_path)
    assert names_in(tmp_path) == []


def test_a_server_that_sends_too_much_is_cut_off(server, tmp_path, toy, monkeypatch):
    change_archive(monkeypatch, toy, size_bytes=100)
    seen = []
    with pytest.raises(DataError, match=r"expected .*100 bytes"):
        fetch("toy", data_dir=tmp_path, on_progress=lambda done, total: seen.append(done))
    assert len(seen) == 1
    assert seen[0] < len(CONTENT)


@pytest.mark.parametrize("status", [404, 503])
def test_an_http_error_is_told_at_once_and_keeps_the_part(server, tmp_path, status):
    server.status = status
    (tmp_path / "toy.tar.gz.part").write_bytes(CONTENT[:10])
    with pytest.raises(DataError, match=f"answered {status} .*--url"):
        fetch("toy", data_dir=tmp_path)
    assert len(server.requests) == 1
    assert (tmp_path / "toy.tar.gz.part").exists()


def test_nobody_listening_is_a_network_fault(tmp_path):
    with pytest.raises(DataError, match="check the network"):
        fetch("toy", data_dir=tmp_path, url="http://127.0.0.1:1/toy.tar.gz")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/toy.tar.gz", "toy.tar.gz", "http://127.0.0.1:oops/toy.tar.gz"])
def test_an_address_that_is_none_is_refused(tmp_path, url):
    with pytest.raises(DataError, match="https address"):
        fetch("toy", data_dir=tmp_path, url=url)


def test_a_full_disk_keeps_the_part_and_says_so(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("crad.data.fetch._write_body", full)
    (tmp_path / "toy.tar.gz.part").write_bytes(CONTENT[:10])
    with pytest.raises(DataError, match=r"No space left on device.*CRAD_DATA.*kept"):
        fetch("toy", data_dir=tmp_path)
    assert (tmp_path / "toy.tar.gz.part").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot use .*file"):
        fetch("toy", data_dir=tmp_path / "file" / "below")


def test_a_mirror_is_matched_to_an_archive_by_its_file_name(server, tmp_path, monkeypatch):
    other = Archive("python.tar.gz", "http://127.0.0.1:1/", md5=hashlib.md5(b"other").hexdigest(), size_bytes=5)
    source = DATASETS["toy"]
    monkeypatch.setitem(DATASETS, "toy", replace(source, archives=(*source.archives, other)))
    server.content = b"other"
    path = fetch("toy", data_dir=tmp_path, url=server.url.replace("toy.tar.gz", "python.tar.gz?download=1"))
    assert path.name == "python.tar.gz"


def test_what_comes_inside_a_package_is_not_fetched(tmp_path):
    with pytest.raises(DataError, match=r"'digits' needs no download.*'\.\[demo\]'"):
        fetch("digits", data_dir=tmp_path)


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="Known: breast-cancer, cifar10"):
        fetch("cifar1000", data_dir=tmp_path)


def write_small_npz(path):
    images, labels = np.zeros((4, 28, 28, 3), np.uint8), np.arange(4)[:, None]
    np.savez(path, train_images=images, train_labels=labels, test_images=images[:2], test_labels=labels[:2])
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_check_knows_the_official_file_from_a_subset(tmp_path, monkeypatch):
    md5 = write_small_npz(tmp_path / "pathmnist.npz")
    report = check("pathmnist", data_dir=tmp_path)
    assert report.official is False
    assert "not the official file" in report.checksum
    assert (report.train_images, report.test_images, report.num_classes) == (4, 2, 9)
    assert (report.form, report.shape) == ("npz file", (28, 28, 3))
    source = DATASETS["pathmnist"]
    official = replace(source, archives=(replace(source.archives[0], md5=md5),))
    monkeypatch.setitem(DATASETS, "pathmnist", official)
    assert check("pathmnist", data_dir=tmp_path).official is True


def test_check_takes_a_path_or_a_file_that_has_no_official_twin(tmp_path):
    write_small_npz(tmp_path / "cifar10.npz")
    assert check("cifar10", data_dir=tmp_path).checksum.startswith("none: cifar10.npz is not an official file")
    own = check(str(tmp_path / "cifar10.npz"), data_dir=tmp_path)
    assert (own.official, own.num_classes, own.checksum) == (None, 4, "none: your own data")
