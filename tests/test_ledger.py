"""The ledger of what left: exact to the byte, and bounded however often somebody asks."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from crad.network import ledger as ledger_module
from crad.network.ledger import LINES_AT_ONCE, OutgoingLedger, read_ledger, totals

DAY_S = 86_400.0


class Time:
    """What the ledger believes to be the time."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        return 1.7e9 + self.now_s

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Time()
    monkeypatch.setattr(ledger_module, "time", clock)
    return clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def test_twenty_questions_a_second_for_a_day_stay_small_and_exact(path, clock):
    """A fortieth of a day: what is asked for, and the answers that a member can make differ without an end."""
    hours, sent = 0.6, Counter[str]()
    with closing(OutgoingLedger(path)) as ledger:
        for question in range(int(hours * 3600 * 20)):
            clock.now_s += 0.05
            what = ("hello", "receipts", "refusal", "snapshot")[question % 4]
            size = 100 + question % 7
            is_snapshot = what == "snapshot"
            ledger.record(
                to="clinic-b",
                what=what,
                size=size,
                round_index={"hello": None, "snapshot": 3}.get(what, question),
                sha256="a" * 64 if is_snapshot else None,
                first=question if is_snapshot else 0,
            )
            sent[what] += size
    assert totals(path) == {"clinic-b": dict(sent)}
    assert path.stat().st_size * DAY_S / (hours * 3600) < 8 << 20


def test_the_first_of_every_kind_has_a_line_of_its_own_and_the_rest_of_its_minute_another(path, clock):
    with closing(OutgoingLedger(path)) as ledger:
        for _ in range(5):
            ledger.record(to="clinic-b", what="hello", size=7)
            ledger.record(to="clinic-c", what="hello", size=9)
        ledger.record(to="clinic-b", what="snapshot", size=20, round_index=2, kind="snapshot", sha256="b" * 64)
        clock.now_s += 61
        ledger.record(to="clinic-b", what="hello", size=7)
    told = [(one.to, one.what, one.count, one.bytes) for one in read_ledger(path)]
    assert told == [
        ("clinic-b", "hello", 1, 7),
        ("clinic-c", "hello", 1, 9),
        ("clinic-b", "hello", 4, 28),
        ("clinic-c", "hello", 4, 36),
        ("clinic-b", "snapshot", 1, 20),
        ("clinic-b", "hello", 1, 7),
    ]
    first = json.loads(path.read_text().splitlines()[0])
    assert first.keys() == {"time", "to", "what", "bytes", "first"}


def test_what_one_member_asks_for_takes_no_line_from_another(path, clock):
    with closing(OutgoingLedger(path)) as ledger:
        for number in range(3 * LINES_AT_ONCE):
            ledger.record(to="clinic-b", what="refusal", size=1, round_index=number)
        for number in range(5):
            ledger.record(to="clinic-c", what="refusal", size=1, round_index=number)
    told = list(read_ledger(path))
    assert [one.round for one in told if one.to == "clinic-c"] == [0, 1, 2, 3, 4]
    (folded,) = [one for one in told if one.count > 1]
    assert (folded.to, folded.round, folded.count) == ("clinic-b", None, 2 * LINES_AT_ONCE)


def test_a_snapshot_of_many_pieces_keeps_its_round_and_hash(path, clock):
    with closing(OutgoingLedger(path)) as ledger:
        for first in range(LINES_AT_ONCE + 100):
            ledger.record(to="clinic-b", what="snapshot", size=1, round_index=2, sha256="b" * 64, first=first)
    *_, last = read_ledger(path)
    assert (last.round, last.sha256, last.count, last.bytes) == (2, "b" * 64, 100, 100)


def test_every_piece_is_on_disk_before_it_leaves_also_where_a_line_grows(path, clock):
    with closing(OutgoingLedger(path)) as ledger:
        for count in range(1, 2000):
            ledger.record(to="clinic-b", what="hello", size=count)
            if count % 97 == 0:
                assert totals(path) == {"clinic-b": {"hello": count * (count + 1) // 2}}


def test_a_line_that_grows_lies_in_one_page(path, clock):
    """A kill between two pages of a write would leave half of the old figures and half of the new."""
    with closing(OutgoingLedger(path)) as ledger:
        for number in range(200):
            for _ in range(3):
                ledger.record(to=f"clinic-{number}", what="hello", size=1)
    offset = 0
    for line in path.read_bytes().splitlines(keepends=True):
        begin = offset + len(line) - len(line.lstrip())
        if b'"count"' in line:
            assert begin // 4096 == (offset + len(line) - 1) // 4096
        offset += len(line)
    assert totals(path) == {f"clinic-{number}": {"hello": 3} for number in range(200)}


def test_after_a_full_disk_nothing_of_the_line_stays_and_the_next_one_is_whole(path, clock, monkeypatch):
    with closing(OutgoingLedger(path)) as ledger:
        ledger.record(to="clinic-b", what="hello", size=5)
        genuine = os.pwrite

        def cut(descriptor, content, offset):
            if len(content) < 20:
                raise OSError(28, "No space left on device")
            return genuine(descriptor, content[:-10], offset)

        monkeypatch.setattr(os, "pwrite", cut)
        with pytest.raises(OSError, match="No space left"):
            ledger.record(to="clinic-c", what="hello", size=5)
        monkeypatch.undo()
        assert totals(path) == {"clinic-b": {"hello": 5}}
        ledger.record(to="clinic-c", what="hello", size=6)
    assert totals(path) == {"clinic-b": {"hello": 5}, "clinic-c": {"hello": 6}}


def test_a_long_unfinished_line_is_cut_off(path):
    path.write_text('{"time": 1.0, "to": "clinic-b", "what": "hello", "bytes": 5}\n' + " " * 10_000)
    OutgoingLedger(path).close()
    assert path.read_text().count("\n") == 1
    assert path.read_text().endswith("}\n")
    assert totals(path) == {"clinic-b": {"hello": 5}}
