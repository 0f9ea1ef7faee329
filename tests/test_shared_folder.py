"""A folder as a store that somebody hostile can write into too: no link is followed, nothing makes us wait."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crad.files import write_atomically, write_once
from crad.network.ledger import OutgoingLedger
from crad.network.store import shared_folder
from crad.network.store.bucket_exchange import BucketExchange
from crad.network.store.objects import Store, StoreError
from crad.network.store.shared_folder import MOST_NAMES, SharedFolder, is_temporary, temporary_name
from tests.organisations import NAMES, agreed, make_identities

PRECIOUS = b"what the victim would miss"
BOTH = {"written", "refused"}
PAUSES = (0.0, 0.0, 0.0001)  # seconds


@pytest.fixture
def root(tmp_path) -> Path:
    folder = Path(tmp_path) / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def store(root) -> Store:
    return Store(root.as_uri())


@pytest.fixture
def victim(tmp_path) -> Path:
    path = Path(tmp_path) / "victim"
    path.write_bytes(PRECIOUS)
    return path


def put(store: Store, path: str, content: bytes = b"ours") -> None:
    store.write(path, [content])


# --- writing


def test_a_planted_temporary_link_is_not_written_through(store, root, victim):
    (root / "hash" / "clinic-a").mkdir(parents=True)
    (root / "hash" / "clinic-a" / ".state.writing").symlink_to(victim)
    put(store, "hash/clinic-a/state")
    assert victim.read_bytes() == PRECIOUS
    assert store.read("hash/clinic-a/state", most=100) == b"ours"


def test_a_name_that_was_guessed_is_refused_and_not_followed(store, root, victim, monkeypatch):
    monkeypatch.setattr(shared_folder, "temporary_name", lambda name: ".guessed")
    (root / ".guessed").symlink_to(victim)
    with pytest.raises(StoreError, match="FileExistsError"):
        put(store, "state")
    assert victim.read_bytes() == PRECIOUS


def test_names_of_temporary_files_are_never_the_same():
    names = {temporary_name("state") for _ in range(100)}
    assert len(names) == 100
    assert all(is_temporary(name, of="state") for name in names)
    assert not is_temporary(temporary_name("b.json"), of="a.json")
    assert is_temporary(".state.writing", of="state"), "as an earlier version called it"


@pytest.mark.parametrize("path", ["hash", "hash/clinic-a", "hash/clinic-a/round-00001"])
def test_a_link_in_place_of_a_folder_is_named_and_nothing_is_written_behind_it(store, root, tmp_path, path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(elsewhere)
    with pytest.raises(StoreError, match=f"store: {path} is a link, and none is followed here: remove it"):
        put(store, "hash/clinic-a/round-00001/snapshot.manifest")
    assert list(elsewhere.iterdir()) == []


def test_a_link_to_a_folder_that_is_not_there_does_not_make_it(store, root, tmp_path):
    (root / "hash").symlink_to(tmp_path / "new")
    with pytest.raises(StoreError, match="hash is a link"):
        put(store, "hash/state")
    assert not (tmp_path / "new").exists()


def test_a_link_with_the_name_of_our_file_is_replaced(store, root, victim):
    (root / "state").symlink_to(victim)
    put(store, "state")
    assert victim.read_bytes() == PRECIOUS
    assert not (root / "state").is_symlink()
    assert (root / "state").read_bytes() == b"ours"


def test_a_second_name_of_the_victims_file_is_replaced(store, root, victim):
    os.link(victim, root / "state")
    put(store, "state")
    assert victim.read_bytes() == PRECIOUS


def test_a_folder_or_a_file_in_the_way_is_named(store, root):
    (root / "state").mkdir()
    with pytest.raises(StoreError, match="state is a folder where a file of ours should be: remove it"):
        put(store, "state")
    assert [entry.name for entry in root.iterdir()] == ["state"], "no temporary file stays"
    put(store, "file")
    with pytest.raises(StoreError, match="file is no folder"):
        put(store, "file/state")


def test_a_link_that_comes_and_goes_is_never_followed(store, root, tmp_path):
    """Somebody swaps a folder for a link as fast as he can while we write."""
    elsewhere, real = tmp_path / "elsewhere", root / "real"
    elsewhere.mkdir()
    real.mkdir()
    stop = threading.Event()

    def swap() -> None:
        drawn = random.Random(1)
        while not stop.is_set():
            os.rename(root / "real", root / "clinic-a")
            time.sleep(drawn.choice(PAUSES))  # drawn, or two threads that run in step meet one of the two alone
            os.rename(root / "clinic-a", root / "real")
            os.symlink(elsewhere, root / "clinic-a")
            time.sleep(drawn.choice(PAUSES))
            os.unlink(root / "clinic-a")

    real_mkdir = os.mkdir

    def no_mkdir(name: str, *rest: int, **more: int) -> None:  # so that the swap is not disturbed
        if name != "clinic-a":
            real_mkdir(name, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", no_mkdir)
        swapping = threading.Thread(target=swap)
        swapping.start()
        outcomes: set[str] = set()
        try:
            started = time.monotonic()
            while (passed := time.monotonic() - started) < 1.0 or (passed < 30.0 and not outcomes >= BOTH):
                try:
                    put(store, "clinic-a/state")
                    outcomes.add("written")
                except (StoreError, FileNotFoundError) as error:
                    outcomes.add("refused" if "is a link" in str(error) else "gone")
        finally:
            stop.set()
            swapping.join()
    assert outcomes >= BOTH, "both were met"
    assert list(elsewhere.iterdir()) == []


def test_the_root_may_be_a_link_as_its_owner_likes(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    store = Store((tmp_path / "link").as_uri())
    put(store, "clinic-a/state")
    assert (root / "clinic-a" / "state").read_bytes() == b"ours"
    assert store.names("clinic-a") == ["state"]


@pytest.mark.parametrize("path", ["../state", "a/../../state", "/state", "a//b", "."])
def test_no_path_leads_out_of_the_root(store, tmp_path, path):
    with pytest.raises(StoreError, match="no path in a store"):
        put(store, path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"store"}


def noted(events: list[str], name: str, function: Callable[..., None]) -> Callable[..., None]:
    def note_and_call(*args: object, **more: object) -> None:
        events.append(name)
        function(*args, **more)

    return note_and_call


def test_a_file_is_on_the_disk_before_its_name_is(store, root, monkeypatch):
    put(store, "first")
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", noted(events, "flush", fsync))
    monkeypatch.setattr(os, "replace", noted(events, "rename", replace))
    put(store, "state")
    assert events == ["flush", "rename", "flush"]


def test_what_a_killed_process_left_is_removed_after_an_hour_and_nothing_else(root, victim):
    old, others = time.time() - 2 * 3600, ".other.json.0123456789abcdef.writing"
    for name in (".state.0123456789abcdef.writing", ".state.writing", others, "state.writing", ".state.x.writing"):
        (root / name).write_bytes(b"half")
        os.utime(root / name, (old, old))
    (root / ".state.00000000ffffffff.writing").write_bytes(b"by a process that is at it now")
    (root / ".state.aaaaaaaaaaaaaaaa.writing").symlink_to(victim)
    os.utime(root / ".state.aaaaaaaaaaaaaaaa.writing", (old, old), follow_symlinks=False)
    put(Store(root.as_uri()), "state")
    assert {entry.name for entry in root.iterdir()} == {
        *("state", "state.writing", ".state.x.writing", others),
        *(".state.00000000ffffffff.writing", ".state.aaaaaaaaaaaaaaaa.writing"),
    }


# --- reading


def special(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.chdir(path.parent)  # the name of a socket must be short
        with socket.socket(socket.AF_UNIX) as line:
            line.bind(path.name)
    elif kind == "device":
        try:
            os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))  # /dev/zero: no end
        except PermissionError:
            pytest.skip("devices can be made by root alone")
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "link to a file":
        path.symlink_to(__file__)
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link to a device", "folder"])
def test_what_is_no_file_is_not_opened(store, root, kind, monkeypatch):
    monkeypatch.chdir(root)
    special(root / "state", kind)
    opened: list[str] = []
    real = os.open

    def spy(path: str, *rest: int, **more: int) -> int:
        opened.append(path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", spy)
    said = "is a link" if kind.startswith("link") else "is no file"
    with pytest.raises(StoreError, match=f"state {said}"):
        store.read("state", most=100)
    with pytest.raises(StoreError, match=f"state {said}"):
        store.size("state")
    assert "state" not in opened


@pytest.mark.parametrize("kind", ["pipe", "link to a device", "link to a file"])
def test_a_file_that_becomes_something_else_under_our_hands_is_refused_at_once(store, root, kind, monkeypatch):
    """Between the look and the opening."""
    put(store, "state")
    regular = os.stat(root / "state")
    (root / "state").unlink()
    special(root / "state", kind)
    monkeypatch.setattr(os, "stat", lambda *a, **k: regular)
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"state is (no file|a link)"):
        store.read("state", most=100)
    assert time.monotonic() - began < 1


def test_a_huge_file_is_read_no_further_than_asked(store, root):
    with (root / "state").open("wb") as file:
        file.truncate(1 << 40)
    assert store.size("state") == 1 << 40
    assert store.read("state", most=1000) == bytes(1000)


def test_a_link_among_the_folders_is_not_read_through(store, root, victim):
    (root / "clinic-b").symlink_to(victim.parent)
    for ask in (lambda: store.read("clinic-b/victim", most=9), lambda: store.names("clinic-b")):
        with pytest.raises(StoreError, match="clinic-b is a link"):
            ask()


def test_no_descriptor_stays_open(store, root):
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    os.mkfifo(root / "pipe")
    put(store, "a/b/state")
    before = count()
    for _ in range(20):
        put(store, "a/b/state")
        store.read("a/b/state", most=2)
        assert store.read("a/b/none", most=2) is None
        assert store.read("x/y/z", most=2) is None
        with pytest.raises(StoreError):
            store.read("pipe", most=1)
    assert count() == before


# --- removing


def test_removing_takes_the_link_and_not_what_it_points_to(store, root, victim):
    (root / "round-00001" / "deep").mkdir(parents=True)
    (root / "round-00001" / "file").symlink_to(victim)
    (root / "round-00001" / "deep" / "folder").symlink_to(victim.parent)
    os.mkfifo(root / "round-00001" / "pipe")
    store.remove("round-00001")
    assert victim.read_bytes() == PRECIOUS
    assert list(root.iterdir()) == []
    (root / "round-00002").symlink_to(victim.parent)
    store.remove("round-00002")
    assert victim.read_bytes() == PRECIOUS
    assert list(root.iterdir()) == []
    store.remove("round-00003")  # is not there


def test_removing_does_not_go_through_a_link_on_the_way(store, root, victim):
    (root / "clinic-a").symlink_to(victim.parent)
    with pytest.raises(StoreError, match="clinic-a is a link"):
        store.remove("clinic-a/victim")
    assert victim.read_bytes() == PRECIOUS


def test_removing_gives_up_on_folders_that_have_no_end(store, root):
    root.joinpath("round-00001", *["deeper"] * 200).mkdir(parents=True)
    with pytest.raises(StoreError, match="lies deeper than anything of ours"):
        store.remove("round-00001")


def test_a_folder_with_more_names_than_anybody_reads_is_cut(root, monkeypatch):
    (root / "many").mkdir()
    for number in range(20):
        (root / "many" / str(number)).touch()
    monkeypatch.setattr(shared_folder, "MOST_NAMES", 5)
    assert len(SharedFolder(str(root)).names("many")) == 5
    assert MOST_NAMES > 10_000


# --- a whole exchange, and files of our own


def test_an_exchange_in_a_folder_full_of_traps_goes_on_and_harms_nobody(tmp_path, victim):
    """Links at every temporary name that could be guessed, in the folders of all three."""
    identities = make_identities(tmp_path / "identities")
    agreement = agreed(identities, exchange=(tmp_path / "store").as_uri(), deadline_s=1.0, quorum=0)
    home = tmp_path / "store" / agreement.hash[:16] / NAMES[0]
    home.mkdir(parents=True)
    agreements = tmp_path / "store" / "agreements"
    agreements.mkdir()
    for place in (home / ".state.writing", home / "state", home / ".probe.writing", home / "probe"):
        place.symlink_to(victim)
    ledger = OutgoingLedger(tmp_path / "ledger.jsonl")
    exchange = BucketExchange(agreement, identities[0], tmp_path / "own", own=0, outgoing=ledger)
    exchange.begin(1)
    exchange.check_store()
    exchange.close()
    ledger.close()
    assert victim.read_bytes() == PRECIOUS
    assert (home / "state").is_file()
    assert not (home / "state").is_symlink()


@pytest.mark.parametrize("write", [write_atomically, write_once])
def test_files_of_our_own_are_not_written_through_a_link_either(tmp_path, victim, write):
    for name in (".federation.toml.writing", f".federation.toml.{os.getpid()}.writing"):
        (tmp_path / name).symlink_to(victim)
    write(tmp_path / "federation.toml", b"new")
    assert victim.read_bytes() == PRECIOUS
    assert (tmp_path / "federation.toml").read_bytes() == b"new"


@pytest.mark.parametrize("write", [write_atomically, write_once])
def test_a_link_that_is_planted_in_the_last_moment_is_refused(tmp_path, victim, write, monkeypatch):
    for name in (".federation.toml.writing", f".federation.toml.{os.getpid()}.writing"):
        (tmp_path / name).symlink_to(victim)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    with pytest.raises(FileExistsError):
        write(tmp_path / "federation.toml", b"new")
    assert victim.read_bytes() == PRECIOUS
