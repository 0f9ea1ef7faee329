"""Python processes forked from this one, for tests that need a process but not its start.

Most of what a process of `crad` computes in a small test is the import of torch: two seconds. One that is forked has it
already. It behaves like one that was started in everything that the tests look at: its own signals, exit code, streams,
folder, environment, open files, and what it does at its end. Not where imports, memory or the start are what is tested.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch

FIRST_FREE_FD = 3  # after the streams
LAST_FD = 65536


class ForkedPopen(subprocess.Popen[str]):
    """`subprocess.Popen` of `[sys.executable, "-c", CODE, ...]` or `[sys.executable, "-m", MODULE, ...]`."""

    def _execute_child(self, args: Any, *more: Any) -> None:
        """Fork where the base class executes a program; its arguments are those of Python 3.11 to 3.13."""
        _executable, _before, _close, pass_fds, cwd, env, *_windows = more[:9]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = more[9:15]
        process_group = more[-1]
        work = _work_of(args)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of pytest wait; none holds a lock of ours
            self.pid = os.fork()
        if self.pid == 0:
            try:
                _enter(cwd=cwd, env=env, process_group=process_group)
                _take_streams(p2cread, c2pwrite, errwrite, keep=pass_fds)
                sys.argv = ["-c" if args[1] == "-c" else args[2], *args[3:]]
            except BaseException:
                traceback.print_exc()
                os._exit(255)
            _run(work)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def fork_or_start(args: list[str], **options: Any) -> subprocess.Popen[str]:
    """Return a forked process; where torch has a GPU, which no fork may use, one that was started."""
    if torch.cuda.is_available():
        return subprocess.Popen(args, **options)
    return ForkedPopen(args, **options)


def _work_of(args: list[str]) -> Callable[[], object]:
    assert args[0] == sys.executable, args
    if args[1] == "-m":
        return lambda: runpy.run_module(args[2], run_name="__main__", alter_sys=True)
    assert args[1] == "-c", args
    program = compile(args[2], "<string>", "exec")

    def work() -> None:
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(program, vars(main))  # a test's own program

    return work


def _enter(*, cwd: Any, env: Mapping[str, str] | None, process_group: int | None) -> None:
    """Forget what is pytest's: handlers, filters, what to do at the end, objects whose end would close our files."""
    gc.freeze()
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if process_group is not None and process_group >= 0:
        os.setpgid(0, process_group)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    if cwd is not None:
        os.chdir(cwd)
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()


def _take_streams(stdin: int, stdout: int, stderr: int, *, keep: Iterable[int]) -> None:
    for number, given in enumerate((stdin, stdout, stderr)):
        if given != -1:
            os.dup2(given, number)
    begin = FIRST_FREE_FD
    for kept in [*sorted(keep), LAST_FD]:
        os.closerange(begin, kept)
        begin = kept + 1
    for kept in keep:
        os.set_inheritable(kept, True)
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
