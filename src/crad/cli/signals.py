"""SIGTERM is treated like Ctrl-C: the last complete round is on disk, and the user is told how to go on."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


class Terminated(BaseException):
    """The process was asked to end. No KeyboardInterrupt, or the command-line library would swallow it."""


def raise_on_sigterm() -> None:
    """Turn SIGTERM into `Terminated` from now on."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated
