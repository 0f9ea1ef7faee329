"""Fetches the official archives, resuming where an earlier try ended, and says what lies in the data directory.

A download grows in `<file>.part`; `<file>.part.json` remembers the address and the ETag it belongs to. Only a
file with the official checksum gets its final name.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crad.data.catalog import Archive, Source, known_source, load_dataset, locate
from crad.data.dataset import untaught_warning
from crad.data.readers.embedded import INSTALL
from crad.data.readers.table_file import TableOptions
from crad.errors import DataError

if TYPE_CHECKING:
    import httpx

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known

ATTEMPTS = 3
RETRY_WAIT_S = 2.0
CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Report:
    """What `check` found. `official` is None where no checksum exists, as for an extracted folder."""

    name: str
    form: str
    path: str | None
    official: bool | None
    checksum: str
    train_images: int
    test_images: int
    num_classes: int
    shape: tuple[int, ...]  # of a sample as stored: height, width, channels of an image
    warning: str | None = None  # what can be used, but is hardly meant
    kind: str = "image"
    dtype: str = "uint8"
    sites: str = "-"


def fetch(name: str, *, data_dir: Path, url: str | None = None, on_progress: Progress | None = None) -> Path:
    """Download a data set's official archive, or find it already there; `url` names a mirror instead."""
    archive = _choose_archive(known_source(name), url=url)
    target = data_dir / archive.file_name
    part = target.with_name(f"{target.name}.part")
    try:
        if target.exists():
            return _accept_existing(target, archive)
        data_dir.mkdir(parents=True, exist_ok=True)
        _download(url or archive.url, part, archive=archive, on_progress=on_progress)
        _check_download(part, archive)
        part.replace(target)
        _note_path(part).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot use {error.filename or part} ({error.strerror}): free space there or choose another folder"
            " with CRAD_DATA, then fetch again; what has arrived is kept"
        ) from error
    return target


def check(name: str, *, data_dir: Path, kind: str | None = None, site: str | None = None) -> Report:
    """Find, read and check a data set, a known one or a path, and describe it."""
    found = locate(name, data_dir=data_dir)
    dataset = load_dataset(name, table=TableOptions(site=site), kind=kind, seed=0, data_dir=data_dir)  # as a run does
    official, checksum = _compare_checksum(found.path, found.source)
    names, sites = dataset.site_names, dataset.train_sites
    return Report(
        name=name,
        form=found.form,
        path=None if found.path is None else str(found.path),
        official=official,
        checksum=checksum,
        train_images=len(dataset.train_labels),
        test_images=len(dataset.test_labels),
        num_classes=dataset.num_classes,
        shape=tuple(map(int, dataset.train_samples.shape[1:])),
        warning=untaught_warning(dataset),
        kind=dataset.kind,
        dtype=str(dataset.train_samples.dtype),
        sites="-" if sites is None else ", ".join(f"{one} {(sites == place).sum()}" for place, one in enumerate(names)),
    )


def _choose_archive(source: Source, *, url: str | None) -> Archive:
    """Return the archive a mirror's address names by its last part, else the first."""
    if not source.archives:
        raise DataError(f"data set {source.name!r} needs no download: {INSTALL[source.name]} brings it")
    last_part = (url or "").partition("?")[0].rpartition("/")[2]
    return next((archive for archive in source.archives if archive.file_name == last_part), source.archives[0])


def _accept_existing(target: Path, archive: Archive) -> Path:
    found = file_md5(target)
    if found == archive.md5:
        return target
    raise DataError(
        f"{target} is there but is not the official file (md5 {found}, expected {archive.md5}):"
        " use it as it is, or move it away and fetch again"
    )


def _check_download(part: Path, archive: Archive) -> None:
    found = file_md5(part)
    if found == archive.md5:
        return
    size = part.stat().st_size
    _forget(part)
    raise DataError(
        f"{archive.file_name}: the download has md5 {found} ({size} bytes), expected {archive.md5}"
        f" ({archive.size_bytes or 'unknown'} bytes): it was deleted, fetch again or name a mirror with --url"
    )


def _download(url: str, part: Path, *, archive: Archive, on_progress: Progress | None) -> None:
    """Try a few times, each try going on where the last one ended."""
    import httpx

    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    with httpx.Client(timeout=timeout, follow_redirects=True) as client:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if _receive(client, url, part, archive=archive, on_progress=on_progress):
                    return
            except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects) as error:
                raise DataError(f"cannot fetch {url!r} ({error}): give an https address") from error
            except httpx.TransportError as error:
                if attempt == ATTEMPTS:
                    raise DataError(_network_fault(url, part, error)) from error
                time.sleep(RETRY_WAIT_S)
    raise DataError(f"{url}: the server refuses to send the rest of the file: fetch again or name a mirror with --url")


def _receive(client: httpx.Client, url: str, part: Path, *, archive: Archive, on_progress: Progress | None) -> bool:
    """Make one request. False if the server will not go on from where the part ends, which is then dropped."""
    start = part.stat().st_size if part.exists() else 0
    if start and start == archive.size_bytes:
        return True  # complete, but the last try ended before the check
    with client.stream("GET", url, headers=_headers(part, url=url, start=start)) as response:
        if response.status_code == 416 or (response.status_code == 206 and _first_byte(response) != start):
            _forget(part)
            return False
        if response.status_code not in (200, 206):
            raise DataError(
                f"{url}: the server answered {response.status_code} {response.reason_phrase}:"
                " try later, or name a mirror with --url"
            )
        if response.status_code == 200:
            start = 0  # no Range support, or the file has changed since
        _remember(part, url=url, etag=response.headers.get("ETag"))
        _write_body(response, part, start=start, archive=archive, on_progress=on_progress)
    return True


def _headers(part: Path, *, url: str, start: int) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity"}
    if not start:
        return headers
    headers["Range"] = f"bytes={start}-"
    note = _recall(part)
    etag = note.get("etag")
    # A weak ETag does not promise equal bytes and must not be sent here (RFC 9110, 13.1.5).
    if etag and note.get("url") == url and not etag.startswith("W/"):
        headers["If-Range"] = etag
    return headers


def _first_byte(response: httpx.Response) -> int:
    """Return where a partial answer begins, from "bytes 100-199/200"; -1 if it does not say."""
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else -1


def _write_body(
    response: httpx.Response, part: Path, *, start: int, archive: Archive, on_progress: Progress | None
) -> None:
    import httpx

    length = response.headers.get("Content-Length", "")
    total = start + int(length) if length.isdecimal() else archive.size_bytes
    done = start
    with part.open("ab" if start else "wb") as file:
        # Raw: some servers call a .tar.gz gzip-encoded, and decoding it would change the checksum.
        # As it arrives: asking for larger chunks would lose the last one when the connection drops.
        for chunk in response.iter_raw():
            file.write(chunk)
            done += len(chunk)
            if on_progress is not None:
                on_progress(done, total)
            if archive.size_bytes is not None and done > archive.size_bytes:
                return  # more than the official file has: the checksum will say so
    if not length and archive.size_bytes is not None and done < archive.size_bytes:
        # Without a Content-Length httpx cannot tell a dropped connection from the end.
        raise httpx.RemoteProtocolError(f"the connection ended after {done} of {archive.size_bytes} bytes")


def _network_fault(url: str, part: Path, error: Exception) -> str:
    kept = part.stat().st_size if part.exists() else 0
    return (
        f"cannot fetch {url} ({error or type(error).__name__}) after {ATTEMPTS} tries: check the network"
        f" or proxy and run the same command again; {kept} bytes are kept in {part}"
    )


def _note_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remember(part: Path, *, url: str, etag: str | None) -> None:
    _note_path(part).write_text(json.dumps({"url": url, "etag": etag}), encoding="utf-8")


def _recall(part: Path) -> dict[str, str]:
    try:
        note = json.loads(_note_path(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # without a note we resume all the same: the checksum decides in the end
    return note if isinstance(note, dict) else {}


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note_path(part).unlink(missing_ok=True)


def _compare_checksum(path: Path | None, source: Source | None) -> tuple[bool | None, str]:
    if path is None or source is None:
        return None, "none: comes inside a package" if path is None else "none: your own data"
    archive = next((archive for archive in source.archives if archive.file_name == path.name), None)
    if archive is None:
        return None, f"none: {path.name} is not an official file, but fine to use"
    found = file_md5(path)
    if found == archive.md5:
        return True, f"ok: the official file (md5 {found})"
    return False, f"not the official file (md5 {found}, official {archive.md5}), but readable: a subset, perhaps"


def file_md5(path: Path) -> str:
    """Return the md5 of a file, as the publishers give it; a guard against damage, not against malice."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
