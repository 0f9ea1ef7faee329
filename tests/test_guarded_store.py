"""A store that hangs holds nobody up: its work is waited for with a clock, and left behind."""

from __future__ import annotations

import threading
import time

import pytest

from crad.network.store.guarded_store import GuardedStore
from crad.network.store.objects import Store, StoreError

SILENCE_S = 0.3


class Hanging(Store):
    """A folder whose every call waits until it is let go."""

    def __init__(self, url: str, release: threading.Event) -> None:
        super().__init__(url)
        self._release = release

    def read(self, path: str, *, most: int) -> bytes | None:
        self._release.wait(20)
        return super().read(path, most=most)


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def test_what_is_put_there_comes_back(tmp_path):
    store = GuardedStore(lambda: Store(f"file://{tmp_path}/store"))
    store.write("a/b", [b"12", memoryview(b"345")])
    assert store.read("a/b", most=10) == b"12345"
    assert (store.size("a/b"), store.size("a/c"), store.read("a/c", most=1)) == (5, None, None)
    assert b"".join(store.chunks("a/b", start=1, stop=4)) == b"234"
    assert store.names("a") == ["b"]
    store.remove("a")
    assert store.names("a") == []
    store.close()


def test_a_store_that_does_not_answer_is_given_up_and_connected_again(tmp_path, release):
    made: list[Store] = []

    def make() -> Store:
        made.append(Hanging(f"file://{tmp_path}", release) if not made else Store(f"file://{tmp_path}"))
        return made[-1]

    store = GuardedStore(make, silence_s=SILENCE_S)
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"does not answer for 0\.3 s"):
        store.read("x", most=1)
    assert time.monotonic() - began < 3
    assert store.read("x", most=1) is None, "the next question goes to a new connection"
    assert len(made) == 2
    store.close()


def test_a_slow_upload_that_goes_on_is_not_given_up(tmp_path):
    """Longer in all than the longest silence, but never silent for so long."""
    store = GuardedStore(lambda: Store(f"file://{tmp_path}"), silence_s=SILENCE_S)

    def slowly():
        for _ in range(6):
            time.sleep(SILENCE_S / 3)
            yield b"x"

    store.write("a", slowly())
    assert store.read("a", most=10) == b"xxxxxx"
    store.close()


def test_an_interruption_in_the_middle_reaches_the_caller(tmp_path):
    store = GuardedStore(lambda: Store(f"file://{tmp_path}"))

    def interrupted():
        yield b"x"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write("a", interrupted())
    assert store.read("a", most=1) is None
    store.close()


def test_reading_on_after_the_connection_was_given_up_is_an_error(tmp_path, release):
    store = GuardedStore(lambda: Hanging(f"file://{tmp_path}", release), silence_s=SILENCE_S)
    store.write("a", [b"12345"])
    pieces = store.chunks("a", stop=5)
    store.close()
    assert next(pieces) == b"12345"
    store.close()
    with pytest.raises(StoreError, match="given up"):
        next(pieces)
