"""A member's server as a process with few descriptors: `python -m tests.small_member FOLDER DESCRIPTORS LIMITS`.

It says its address, and in the end its notices, the most descriptors and memory it had and the CPU it took.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crad.network.https.request_gate import Limits
from crad.network.identity import load_identity
from tests.organisations import NAMES, agreed
from tests.town import Organisation


class Watcher(threading.Thread):
    """Looks at this process's descriptors and memory while a block lasts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._before_kb, self._most_kb = memory_kb(), 0
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            self.most = max(self.most, descriptors())
            self._most_kb = max(self._most_kb, memory_kb())

    @property
    def grown_kb(self) -> int:
        """How much more memory there was at once than before."""
        return self._most_kb - self._before_kb

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._is_over.set()
        self.join()


def descriptors() -> int:
    """How many this process has open."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0  # none is left to look with


def memory_kb() -> int:
    """How much memory this process has; 0 where no descriptor is left to look with."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024
    except OSError:
        return 0


@contextmanager
def small_member(folder: Path, *, of: int, descriptors: int, **limits):
    """Its address and, when it is called, what it says in the end."""
    command = [sys.executable, "-m", "tests.small_member", str(folder), str(of), str(descriptors), json.dumps(limits)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None

        def end() -> dict[str, Any]:
            told, errors = process.communicate("end\n", timeout=20)
            return {**json.loads(told), "stderr": errors, "code": process.returncode}

        try:
            yield process.stdout.readline().strip(), end
        finally:
            process.kill()


def main() -> None:
    """Serve until a line comes in."""
    folder, number, most, limits = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    identities = [load_identity(folder / name) for name in NAMES]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    member = Organisation(identities[number], agreed(identities), folder / "small", limits=Limits(**limits))
    print(member.address, flush=True)
    began = time.process_time()
    with Watcher() as watcher:
        sys.stdin.readline()
    took = time.process_time() - began
    member.close()
    print(json.dumps({"notices": member.notices, "most": watcher.most, "grown_kb": watcher.grown_kb, "cpu_s": took}))


if __name__ == "__main__":
    main()
