"""Who is there: what each of the others has delivered, who is away, and which round the majority has reached.

Only delivered messages count, checked and signed. What a member says about itself, or about others, changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

AWAY_AFTER = 2  # missed rounds
MAX_STRIKES = 8  # 127 rounds without a second look


@dataclass
class AttendanceRecord:
    """What is known of one of the others."""

    delivered: int = 0  # the newest round of which a message of it came; 0: none
    seen: int = 0  # the newest round of which one was announced, and lay ready to be fetched
    missed: int = 0  # rounds in a row
    missed_in: int = 0  # the newest of them
    strikes: int = 0  # how often it went away lately
    in_time: int = 0  # rounds in a row
    came_in: int = 0  # a round in which nothing of it is missing so far; 0: none
    away_since: int | None = None  # the round in which it was given up


class Attendance:
    """What the others have delivered, and who is therefore waited for. Safe to use from several threads."""

    def __init__(self, others: Iterable[int], *, away_after: int = AWAY_AFTER) -> None:
        self._others = {number: AttendanceRecord() for number in others}
        self._away_after = away_after
        self._lock = threading.Lock()

    def note_delivered(self, number: int, round_index: int) -> None:
        """Take down a message of this round, whenever it came."""
        with self._lock:
            one = self._others[number]
            one.delivered = max(one.delivered, round_index)
            one.seen = max(one.seen, round_index)

    def note_seen(self, number: int, round_index: int) -> None:
        """Take down a signed message of this round that lies ready: whoever was away is back by that."""
        with self._lock:
            one = self._others[number]
            one.seen = max(one.seen, round_index)

    def note_in_time(self, number: int, round_index: int) -> None:
        """Take down that its message was there when the round went on: it is waited for from now on."""
        with self._lock:
            one = self._others[number]
            self._settle(one, round_index)
            if one.missed_in != round_index:
                one.came_in = round_index

    def note_missed(self, number: int, round_index: int) -> None:
        """Take down that a round went on without it, however many kinds of message it has."""
        with self._lock:
            one = self._others[number]
            self._settle(one, round_index)
            one.in_time, one.came_in = 0, 0
            if one.missed_in != round_index:
                one.missed, one.missed_in = one.missed + 1, round_index
            if _is_away(one, round_index):
                return
            # Who comes and goes is given less time with each return, and soon costs next to nothing.
            is_on_probation = one.away_since is not None
            if is_on_probation or one.missed >= max(1, self._away_after - one.strikes):
                one.strikes = min(one.strikes + 1, MAX_STRIKES)
                one.away_since = round_index

    def away(self, round_index: int) -> frozenset[int]:
        """Return who is not waited for in this round.

        Whoever has a message ready again, late or not, is waited for in the next round; after the second time of being
        given up only a round later, then three, then seven.
        """
        with self._lock:
            for one in self._others.values():
                self._settle(one, round_index)
            return frozenset(number for number, one in self._others.items() if _is_away(one, round_index))

    def majority_round(self) -> int | None:
        """Return the newest round that a majority of all others has delivered or gone beyond, None before the first.

        Of all others in the agreement: who is silent counts as not there. So no minority, whatever it delivers, moves
        anybody beyond where an honest member is.
        """
        with self._lock:
            rounds = sorted((one.delivered for one in self._others.values()), reverse=True)
        needed = len(rounds) // 2 + 1
        return (rounds[needed - 1] or None) if len(rounds) >= needed else None

    def _settle(self, one: AttendanceRecord, round_index: int) -> None:
        """Count an earlier round as kept, now that it is complete: no kind of message was missing in it."""
        if not 0 < one.came_in < round_index:
            return
        one.came_in, one.missed, one.away_since = 0, 0, None
        one.in_time += 1
        if one.in_time >= self._away_after:  # it keeps time again
            one.in_time, one.strikes = 0, max(0, one.strikes - 1)


def _is_away(one: AttendanceRecord, round_index: int) -> bool:
    if one.away_since is None:
        return False
    is_back = one.seen >= one.away_since
    return not is_back or round_index < one.away_since + 2 ** (one.strikes - 1)
