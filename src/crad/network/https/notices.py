"""Lines about what happens at a member's server, one per cause and minute: nobody outside can fill a log."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from crad.errors import printable

WINDOW_S = 60.0
MOST_CAUSES = 256  # remembered at once; whatever comes beyond shares one line
OTHER = "other"


@dataclass
class _Told:
    since: float
    text: str
    untold: int = 0


class Throttle:
    """Passes the first line of a cause on at once, counts the rest, and tells their number a minute later."""

    def __init__(
        self,
        notice: Callable[[str], None],
        *,
        window_s: float = WINDOW_S,
        most: int = MOST_CAUSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notice, self._window_s, self._most, self._clock = notice, window_s, most, clock
        self._told: dict[str, _Told] = {}
        self._lock = threading.Lock()

    def say(self, cause: str, text: str) -> None:
        """Tell this line, or count it if one of the same cause was told within the last minute."""
        with self._lock:
            lines = self._due()
            if cause not in self._told and len(self._told) >= self._most:
                cause = OTHER
            told = self._told.get(cause)
            if told is None:
                self._told[cause] = _Told(self._clock(), text)
                lines.append(text)
            else:
                told.text, told.untold = text, told.untold + 1
        self._tell(lines)

    def flush(self, *, is_last: bool = False) -> None:
        """Tell what was counted for a minute; call it now and then, and with `is_last` in the end."""
        with self._lock:
            lines = self._due(is_last=is_last)
        self._tell(lines)

    def _due(self, *, is_last: bool = False) -> list[str]:
        now, lines = self._clock(), []
        for cause, told in list(self._told.items()):
            if now - told.since < self._window_s and not is_last:
                continue
            del self._told[cause]
            if told.untold:
                lines.append(_with_count(told))
                self._told[cause] = _Told(now, told.text)
        return lines

    def _tell(self, lines: list[str]) -> None:
        for line in lines:
            self._notice(line)


def _with_count(told: _Told) -> str:
    return told.text if told.untold == 1 else f"{told.text} ... and {told.untold - 1} more in the last minute"


@contextmanager
def asyncio_told_by(throttle: Throttle) -> Iterator[None]:
    """Turn what asyncio logs in this thread into throttled lines, not tracebacks, while the block lasts."""
    own = threading.get_ident()

    def take(record: logging.LogRecord) -> bool:
        if record.thread != own or record.levelno < logging.WARNING:
            return True
        throttle.say("asyncio", f"the server was told by asyncio: {printable(record.getMessage())}")
        return False

    logger = logging.getLogger("asyncio")
    logger.addFilter(take)
    try:
        yield
    finally:
        logger.removeFilter(take)


def tell_loop_faults(loop: asyncio.AbstractEventLoop, throttle: Throttle) -> None:
    """Have what nobody caught on this loop told as a throttled line."""

    def tell(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        reason = f" ({printable(repr(error))})" if error is not None else ""
        throttle.say("loop", f"a connection failed inside the server: {printable(context['message'])}{reason}")

    loop.set_exception_handler(tell)
