"""When a round without a coordinator goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, Self

from crad.network.agreement import Agreement

LOOK_S = 300.0  # between two words about who is missing

# How asking a member ended. `gone`: it is past this round; `fault`: our own, the round cannot go on.
Verdict = Literal["came", "gone", "refused", "unreachable", "late", "fault"]


class Patience:
    """When a round goes on: everybody came, or the deadline has passed and enough did."""

    @classmethod
    def agreed(cls, agreement: Agreement, *, num_wanted: int, deadline_s: float | None, quorum: int | None) -> Self:
        """As the agreement has it, unless the caller says otherwise; nobody can need more than are asked."""
        return cls(
            deadline_s=agreement.deadline_s if deadline_s is None else deadline_s,
            quorum=min(agreement.quorum if quorum is None else quorum, num_wanted),
            give_up_s=agreement.give_up_s,
        )

    def __init__(self, *, deadline_s: float, quorum: int, give_up_s: float) -> None:
        self.quorum, self.give_up_s = quorum, max(deadline_s, give_up_s)
        self._began = time.monotonic()
        self._deadline_s = deadline_s

    @property
    def is_past_deadline(self) -> bool:
        """From now on the quorum is enough."""
        return time.monotonic() - self._began >= self._deadline_s

    @property
    def is_past_hope(self) -> bool:
        """From now on waiting for the quorum has no sense."""
        return time.monotonic() - self._began >= self.give_up_s

    def is_over(self, verdicts: Sequence[Verdict], *, num_wanted: int) -> bool:
        """Whether the round goes on with what has ended so far."""
        is_enough = verdicts.count("came") >= self.quorum
        if len(verdicts) == num_wanted:
            return is_enough or "gone" in verdicts  # the others are past this round: it is for us to catch up
        return is_enough and self.is_past_deadline

    def next_look_s(self) -> float:
        """How long to wait for the next ending before looking at the clock."""
        passed = time.monotonic() - self._began
        if passed < self._deadline_s:
            return self._deadline_s - passed
        return max(0.01, min(LOOK_S, self.give_up_s - passed))
