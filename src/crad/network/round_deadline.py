"""When a round without a coordinator goes on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Self

from crad.network.agreement import Agreement
from crad.network.clock import SYSTEM_CLOCK, Clock

LOOK_S = 300.0  # between two words about who is missing
SHORTEST_LOOK_S = 0.01

# How asking a member ended. `ahead`: it has delivered a message of a later round; `gone`: it says so and shows none;
# `fault`: our own, the round cannot go on.
FetchStatus = Literal["came", "ahead", "gone", "refused", "unreachable", "late", "fault"]
PRESENT: tuple[FetchStatus, ...] = ("came", "ahead")  # what only a delivered, checked message brings about


class RoundDeadline:
    """When a round goes on: everybody came, or the deadline has passed and enough did.

    Enough is counted in delivered messages, of this round or of a later one: a member that is past this round will
    never send what we wait for. What anybody merely says moves nobody. Who is away is asked and not waited for.
    """

    @classmethod
    def agreed(
        cls,
        agreement: Agreement,
        *,
        num_wanted: int,
        deadline_s: float | None,
        quorum: int | None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Make it as the agreement has it, unless the caller says otherwise; nobody can need more than are asked."""
        return cls(
            deadline_s=agreement.deadline_s if deadline_s is None else deadline_s,
            quorum=min(agreement.quorum if quorum is None else quorum, num_wanted),
            give_up_s=agreement.give_up_s,
            clock=clock,
        )

    def __init__(self, *, deadline_s: float, quorum: int, give_up_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.quorum, self.give_up_s = quorum, max(deadline_s, give_up_s)
        self._clock = clock
        self._began = clock.now()
        self._deadline_s = deadline_s
        self._next_word_s = deadline_s

    @property
    def is_past_deadline(self) -> bool:
        """Return whether the quorum is enough from now on."""
        return self._passed_s() >= self._deadline_s

    @property
    def expired(self) -> bool:
        """Return whether waiting for the quorum has no sense any more."""
        return self._passed_s() >= self.give_up_s

    def is_over(
        self, statuses: Mapping[int, FetchStatus], *, wanted: Collection[int], away: Collection[int] = ()
    ) -> bool:
        """Return whether the round goes on with what has ended so far."""
        if count_present(statuses) < self.quorum:
            return False
        return self.is_past_deadline or all(number in statuses for number in wanted if number not in away)

    def is_time_for_a_word(self) -> bool:
        """Return whether to say now that too few are there: at the deadline, and again every few minutes."""
        if self._passed_s() < self._next_word_s:
            return False
        self._next_word_s = self._passed_s() + LOOK_S
        return True

    def next_look_s(self) -> float:
        """Return how long to wait for the next ending before looking at the clock."""
        passed = self._passed_s()
        left = self._deadline_s - passed if passed < self._deadline_s else min(LOOK_S, self.give_up_s - passed)
        return max(SHORTEST_LOOK_S, left)

    def _passed_s(self) -> float:
        return self._clock.now() - self._began


def count_present(statuses: Mapping[int, FetchStatus]) -> int:
    """Return how many have delivered something that proves that they are there."""
    return sum(status in PRESENT for status in statuses.values())
