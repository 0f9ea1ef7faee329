"""Starting a Ray of one's own or joining a cluster, and leaving it as it was."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from crad.errors import ConfigError, install_hint

# Read when Ray is imported. No word to anybody else, and nothing on standard output, which may be read by a program.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_SCHEDULER_EVENTS", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

try:
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise ConfigError(f"engine ray needs the package ray: {install_hint('ray')}") from error

ANSWER_SECONDS = 5.0  # for whoever listens at an address to show that it may be Ray
LONGEST_FOLDER = 40  # characters: Ray's sockets lie deep in it, and a socket's path may have 107
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_SETTINGS = 4  # the kind of frame that answers it


class Membership:
    """This process's part in a Ray cluster, from now until `leave`."""

    def __init__(self, *, address: str | None, cpus: int) -> None:
        """Join a cluster.

        Without an address one of this machine alone with so many CPUs, unless it is joined already.
        """
        self._folder: Path | None = None
        self._is_ours = not ray.is_initialized()
        if not self._is_ours:
            return
        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            if address in (None, "local"):
                self._start(cpus)
            else:
                self._join(str(address))
        except BaseException:
            self.leave()
            raise
        # Ray has put its own handlers in place. Where nobody had one, a SIGTERM must still end what we have started.
        _handle_sigterm(_exit if self._on_sigterm is signal.SIG_DFL else self._on_sigterm)

    def leave(self) -> None:
        """End what was started here; a cluster that was joined goes on without us."""
        if not self._is_ours:
            return
        self._is_ours = False
        ray.shutdown()
        _handle_sigterm(self._on_sigterm)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, cpus: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix="crad-ray-"))
        if len(str(folder)) <= LONGEST_FOLDER:
            self._folder = folder
        else:
            folder.rmdir()
        _init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            _temp_dir=None if self._folder is None else str(self._folder),
        )

    def _join(self, address: str) -> None:
        if "://" in address:
            raise ConfigError(
                f"ray_address {address!r}: run on a machine of the cluster and name its HOST:PORT, or auto"
            )
        named = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
        if named != "auto":
            check_answer(named)  # Ray itself would go on knocking for minutes
        try:
            _init(address=address)
        except (RayError, RuntimeError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"cannot join the Ray cluster at {address!r}: {reason}; this machine must be one of its nodes, "
                "with the same Ray and Python, and the token if it has one"
            ) from error


def check_answer(address: str) -> None:
    """Refuse an address where nobody speaks as Ray does (gRPC, hence HTTP/2), without waiting long."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"ray_address {address!r}: expected HOST:PORT, such as 10.0.0.5:6379, or auto")
    answer = b""
    reason = "whoever listens there is not Ray"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS) as line:
            line.sendall(HTTP2_HELLO)
            with suppress(TimeoutError):
                answer = line.recv(4)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    if len(answer) < 4 or answer[3] != HTTP2_SETTINGS:
        raise ConfigError(f"no Ray cluster answers at {address!r} ({reason}): ray start --head starts one")


def _init(**settings: Any) -> None:  # noqa: ANN401  # Ray's own
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)


def _handle_sigterm(handler: Any) -> None:  # noqa: ANN401  # whatever `getsignal` gave
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
