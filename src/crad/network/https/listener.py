"""Accepting connections by hand, so that a newcomer is judged before TLS costs anything; see decision 0012."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from crad.errors import printable
from crad.network.https.addresses import REFRESH_S, KnownAddresses, group_address
from crad.network.https.connection_limiter import Admission, ConnectionLimiter
from crad.network.https.limits import Limits
from crad.network.https.notices import Throttle

AT_ONCE = 256  # accepted in one turn of the loop
AGAIN_S = 0.05  # until an address that begins too many handshakes is looked at again
PAUSE_S = 0.05  # without accepting, where descriptors are short
SHED = 64  # places given free then
TICK_S = 1.0
END_S = 1.0  # for handshakes to notice that the server ends
FIRST_BYTE = b"\x16"  # of every TLS handshake
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: forget it at once, nothing is left waiting in the kernel

MakeProtocol = Callable[[int], asyncio.Protocol]


@dataclass
class Caller:
    """A connection that is nobody's yet."""

    key: int
    sock: socket.socket
    address: str
    began: float
    timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    handshake: asyncio.Task[None] | None = None
    is_wrapped: bool = False  # a transport owns the socket


class Listener:
    """Takes connections in as the limiter says, up to the end of their handshake. Lives on the server's loop."""

    def __init__(
        self,
        limiter: ConnectionLimiter,
        known: KnownAddresses,
        *,
        limits: Limits,
        context: Callable[[], ssl.SSLContext],
        throttle: Throttle,
        make_protocol: MakeProtocol,
        drop_member: Callable[[int], None],
    ) -> None:
        self._limiter, self._known, self._limits, self._throttle = limiter, known, limits, throttle
        self._context, self._make_protocol, self._drop_member = context, make_protocol, drop_member
        self._keys = itertools.count(1)
        self._callers: dict[int, Caller] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._housekeeping: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None

    def open(self, listening: socket.socket) -> None:
        """Begin to accept from this socket."""
        listening.setblocking(False)
        self._loop, self._listening = asyncio.get_running_loop(), listening
        self._housekeeping = self._loop.create_task(self._keep_house())
        self._loop.add_reader(listening, self._accept)

    async def close(self) -> None:
        """Accept nobody any more, and send away those who are nobody yet."""
        self._loop.remove_reader(self._listening)
        for timer in (self._pause, self._housekeeping):
            if timer is not None:
                timer.cancel()
        for key in list(self._callers):
            self._limiter.leave(key)
            self._drop(key)
        if self._handshakes:
            await asyncio.wait(self._handshakes, timeout=END_S)
        self._throttle.flush(is_last=True)

    # --- from accept to the first byte

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in SHORTAGE:
                    self._make_room(error)
                    return
                continue  # it has gone again
            self._judge(Caller(next(self._keys), sock, group_address(str(peer[0])), time.monotonic()))

    def _judge(self, caller: Caller) -> None:
        verdict = self._limiter.arrive(caller.key, caller.address, now=caller.began)
        self._carry_out(verdict)
        if not verdict.is_in:
            _reset(caller.sock)
            return
        caller.sock.setblocking(False)
        self._callers[caller.key] = caller
        caller.timers["end"] = self._loop.call_later(self._limits.handshake_s, self._give_up, caller.key)
        if not self._hear(caller):  # often a handshake has begun by now: then it is not one of the silent any more
            self._loop.add_reader(caller.sock, self._hear, caller)

    def _hear(self, caller: Caller) -> bool:
        """Go on if something has come: the first byte of a handshake, or the end."""
        try:
            first = caller.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            first = b""
        if first != FIRST_BYTE:
            self._limiter.leave(caller.key)
            self._drop(caller.key)
            return True
        self._loop.remove_reader(caller.sock)
        self._greet(caller)
        return True

    # --- the handshake

    def _greet(self, caller: Caller) -> None:
        if caller.key not in self._callers:
            return
        verdict = self._limiter.greet(caller.key, now=time.monotonic())
        if verdict is None:
            line = f"{caller.address} begins many handshakes: they have to wait for each other"
            self._throttle.say("handshakes wait", line)
            caller.timers["again"] = self._loop.call_later(AGAIN_S, self._greet, caller)
            return
        self._carry_out(verdict)
        caller.handshake = self._loop.create_task(self._shake_hands(caller))
        self._handshakes.add(caller.handshake)
        caller.handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, caller: Caller) -> None:
        """Shake hands until the protocol's `connection_made`; whoever has no place then is turned away there."""
        caller.is_wrapped = True
        try:
            await self._loop.connect_accepted_socket(
                partial(self._make_protocol, caller.key),
                caller.sock,
                ssl=self._context(),
                ssl_handshake_timeout=2 * self._limits.handshake_s,  # ours, which counts from accept, comes first
                ssl_shutdown_timeout=self._limits.handshake_s,
            )
        except OSError:
            pass  # no TLS, no certificate of ours, or gone: nobody we know
        except Exception as error:  # whatever it is, the others are served on
            self._throttle.say("handshake", f"a handshake with {caller.address} failed: {printable(repr(error))}")
        finally:
            self._forget(caller.key)

    # --- ends

    def _give_up(self, key: int) -> None:
        address = self._callers[key].address
        line = f"{address} did not finish a handshake within {self._limits.handshake_s:g} s: closed"
        self._throttle.say("handshake time", line)
        self._limiter.leave(key)
        self._drop(key)

    def _carry_out(self, verdict: Admission) -> None:
        for key in verdict.dropped:
            self._drop(key)
        if verdict.said is not None:
            self._throttle.say(*verdict.said)

    def _drop(self, key: int) -> None:
        """End a connection that has lost its place."""
        caller = self._callers.get(key)
        if caller is None:
            self._drop_member(key)
        elif caller.is_wrapped:
            _shut(caller.sock)  # its transport reads an end now, whatever state the handshake is in
        else:
            if caller.handshake is not None:
                caller.handshake.cancel()
            self._loop.remove_reader(caller.sock)
            self._forget(key)
            _reset(caller.sock)

    def _forget(self, key: int) -> None:
        caller = self._callers.pop(key)
        for timer in caller.timers.values():
            timer.cancel()
        if key in self._limiter:
            self._limiter.leave(key)

    def _make_room(self, error: OSError) -> None:
        """Drop who is silent longest, since no descriptor is left, and look again in a moment."""
        self._throttle.say("shortage", f"no connection can be accepted ({error.strerror}): silent ones are dropped")
        for key in self._limiter.shed(SHED):
            self._drop(key)
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(PAUSE_S, self._loop.add_reader, self._listening, self._accept)

    async def _keep_house(self) -> None:
        for tick in itertools.count():
            if tick % int(REFRESH_S / TICK_S) == 0:
                self._known.refresh(self._loop)
            self._throttle.flush()
            await asyncio.sleep(TICK_S)


def _reset(sock: socket.socket) -> None:
    with suppress(OSError):  # the other end has gone first
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        sock.shutdown(socket.SHUT_RDWR)
