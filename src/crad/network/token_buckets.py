"""How often somebody may do something: so many at once, then so many a second."""

from __future__ import annotations

from collections import OrderedDict

MOST_BUCKETS = 4096


class TokenBuckets:
    """A token bucket for each name; the name that was asked for longest ago is forgotten when there are too many."""

    def __init__(self, most: int = MOST_BUCKETS) -> None:
        self._most = most
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how many, and when that was

    def __len__(self) -> int:
        return len(self._left)

    def spend(self, name: str, *, rate: float, burst: float, now: float, amount: float = 1.0) -> bool:
        """Take so many tokens, if there are as many; return whether there were."""
        left, then = self._left.get(name, (burst, now))
        left = min(burst, left + (now - then) * rate)
        is_there = left >= amount
        self._left[name] = (left - amount if is_there else left, now)
        self._left.move_to_end(name)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return is_there
