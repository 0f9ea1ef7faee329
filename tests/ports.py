"""Ports that stay free between asking for them and listening: below those that outgoing connections are given.

A port that the system chooses for a probe can be the next outgoing connection's, of whatever runs beside the test.
"""

from __future__ import annotations

import itertools
import os
import socket

FIRST, STRETCHES, PORTS = 10_000, 200, 100  # every process has a stretch of its own; all below 32,768
_turns = itertools.count()


def free_port() -> int:
    """Return a port of this process's stretch at which nobody listens on loopback; each once before any comes again."""
    first = FIRST + os.getpid() % STRETCHES * PORTS
    for turn in itertools.islice(_turns, PORTS):
        port = first + turn % PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was closed just now is free
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port from {first} to {first + PORTS - 1} is free")
