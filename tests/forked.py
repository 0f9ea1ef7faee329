"""Python processes that need not start, for tests that need a process but not its start.

Most of what a process of `crad` computes in a small test is the import of torch: two seconds. One that is forked has it
already. It behaves like one that was started in everything that the tests look at: its own signals, exit code, streams,
folder, environment, open files, and what it does at its end. Not where imports, memory or the start are what is tested.

It is forked from a template, a process that has imported torch, crad and what members of a federation need, and done
nothing else: a fork of pytest itself would have the locks, the threads' remains and the libraries of whatever was
tested before. By a double fork it becomes a child of the process that asks.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

ROOT = Path(__file__).resolve().parents[1]
PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 60.0
LONGEST = 2**20  # bytes of an order
MAX_FDS = 64
BORN = b"born"
WITHOUT = "CRAD_TESTS_WITHOUT"  # in the environment: packages that a forked process shall not find
LEAST_FREE = 100
LAST_FD = 65536


class ForkedPopen(subprocess.Popen[str]):
    """`subprocess.Popen` of `[sys.executable, "-c", CODE, ...]` or `[sys.executable, "-m", MODULE, ...]`."""

    def _execute_child(self, args: Any, *more: Any) -> None:
        """Have a process forked where the base class executes a program; arguments are those of Python 3.11 to 3.13."""
        _executable, _before, _close, pass_fds, cwd, env, *_windows = more[:9]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = more[9:15]
        assert args[0] == sys.executable, args
        streams = [number if given == -1 else given for number, given in enumerate((p2cread, c2pwrite, errwrite))]
        order = {
            "args": list(args),
            "cwd": os.getcwd() if cwd is None else os.fspath(cwd),
            "env": dict(os.environ if env is None else env),
            "process_group": more[-1],
            "keep": list(pass_fds),
            "hears_ctrl_c": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
        }
        self.pid = _template().fork(order, [*streams, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


class Template:
    """A process that has everything imported, and forks others from itself."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-c", f"from tests.forked import serve; serve({theirs.fileno()})"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, cwd=ROOT)
        self._owner, self._lock = os.getpid(), threading.Lock()

    @property
    def pid(self) -> int:
        """Its number among the processes."""
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """Whether this process has made it, and it is still there."""
        return self._owner == os.getpid() and self._process.poll() is None

    def fork(self, order: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Have a process forked that becomes a child of ours, and return its number."""
        with self._lock:
            _adopt_orphans(is_on=True)
            try:
                socket.send_fds(self._line, [json.dumps(order).encode()], list(fds))
                self._line.settimeout(PATIENCE_S)
                child = int(self._line.recv(LONGEST))
                assert self._line.recv(LONGEST) == BORN, "the template has gone"
                return child
            finally:
                _adopt_orphans(is_on=False)

    def import_too(self, modules: Sequence[str]) -> None:
        """Have it import more, for all that are forked from now on."""
        with self._lock:
            self._line.send(json.dumps({"import": list(modules)}).encode())
            self._line.settimeout(PATIENCE_S)
            assert self._line.recv(LONGEST) == BORN, "the template has gone"

    def close(self) -> None:
        """End it; those forked from it go on."""
        if self._owner == os.getpid():
            self._line.close()
            self._process.wait(PATIENCE_S)


_made: list[Template] = []


def _template() -> Template:
    if not _made or not _made[-1].is_ours:
        _made.append(Template())
        atexit.register(_made[-1].close)
    return _made[-1]


def templates() -> set[int]:
    """The processes of ours that are templates."""
    return {one.pid for one in _made if one.is_ours}


def _adopt_orphans(*, is_on: bool) -> None:
    """Let what loses its parent below us become our child, or not."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0)


def serve(number: int) -> None:
    """Be a template at this end of a line: fork for each order, until nobody is at the other end."""
    line = socket.socket(fileno=number)
    for module in ("crad.cli.run", "crad.api", "crad.engines.worker", "tests.preloaded"):
        importlib.import_module(module)
    gc.freeze()  # nobody forked from here looks for garbage in what all of them have
    while True:
        content, fds, _, _ = socket.recv_fds(line, LONGEST, MAX_FDS)
        if not content:
            return
        order = json.loads(content)
        if "import" in order:
            for module in order["import"]:
                importlib.import_module(module)
            gc.freeze()
            line.send(BORN)
            continue
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                line.close()
                while os.getppid() == parent:  # until the one who asks is its parent
                    time.sleep(0.0005)
                _become(order, fds)
            line.send(str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        line.send(BORN)  # and an orphan, which the one who asks has adopted by now
        for fd in fds:
            os.close(fd)


def _become(order: Mapping[str, Any], fds: list[int]) -> NoReturn:
    """Be the process that was asked for: the kept files have the numbers that they have in the process that asks."""
    try:
        args = order["args"]
        _enter(
            cwd=order["cwd"],
            env=order["env"],
            process_group=order["process_group"],
            hears_ctrl_c=order["hears_ctrl_c"],
        )
        _take_files(fds, [0, 1, 2, *order["keep"]])
        sys.argv = ["-c" if args[1] == "-c" else args[2], *args[3:]]
        work = _work_of(args)
    except BaseException:
        traceback.print_exc()
        os._exit(255)
    _run(work)


def fork_or_start(args: list[str], **options: Any) -> subprocess.Popen[str]:
    """Return a forked process; where torch has a GPU, which no fork may use, one that was started."""
    return ForkedPopen(args, **options) if _may_fork() else subprocess.Popen(args, **options)


def import_before_forking(*modules: str) -> None:
    """Have what is forked from now on find these imported, where several processes of a test would each import them."""
    if _may_fork():
        _template().import_too(modules)


def _may_fork() -> bool:
    return sys.platform == "linux" and not torch.cuda.is_available()


def _work_of(args: list[str]) -> Callable[[], object]:
    if args[1] == "-m":
        return lambda: runpy.run_module(args[2], run_name="__main__", alter_sys=True)
    assert args[1] == "-c", args
    program = compile(args[2], "<string>", "exec")

    def work() -> None:
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(program, vars(main))  # a test's own program

    return work


def _enter(*, cwd: str, env: Mapping[str, str], process_group: int | None, hears_ctrl_c: bool) -> None:
    """Take on what belongs to the one who asks: its group, its environment, its folder."""
    signal.signal(signal.SIGINT, signal.default_int_handler if hears_ctrl_c else signal.SIG_IGN)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if process_group is not None and process_group >= 0:
        os.setpgid(0, process_group)
    os.environ.clear()
    os.environ.update(env)
    for name in env.get(WITHOUT, "").split():
        sys.modules[name] = None  # type: ignore[assignment]  # as where it is not installed
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    importlib.invalidate_caches()


def _take_files(given: list[int], wanted: list[int]) -> None:
    """Give the files that came the numbers that they shall have, and close all others."""
    above = max([*given, *wanted, LEAST_FREE]) + 1
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in given]
    for fd, number in zip(aside, wanted, strict=True):
        os.dup2(fd, number, inheritable=True)
    begin = 0
    for kept in [*sorted(wanted), LAST_FD]:
        if begin < kept:  # an empty range would close everything
            os.closerange(begin, kept)
        begin = kept + 1
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # for as long as the process lives
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115


def _run(work: Callable[[], object]) -> NoReturn:
    """Work and end as an interpreter does: threads are joined, then come the functions of `atexit`."""
    code = 0
    try:
        work()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
