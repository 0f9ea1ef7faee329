"""Feed hostile bytes to every decoder: guided by coverage where atheris is installed, else by chance with a fixed seed.

Ends with a crash and the input in hexadecimal if any of them raises something else than SnapshotError.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RUNS, SEED = 120_000, 1
HANG_S = 120  # by the clock: on a busy machine a process may stand still for a while


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"inputs over all decoders, {RUNS} if not given")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--plain", action="store_true", help="by chance, also where atheris is installed")
    given = parser.parse_args()
    if given.plain or find_spec("atheris") is None:
        fuzz_by_chance(given.runs, given.seed)
    else:
        fuzz_by_coverage(given.runs, given.seed)


def fuzz_by_chance(runs: int, seed: int) -> None:
    from tests.fuzz import decoders

    rng, good = random.Random(seed), decoders.seeds()
    names, began = list(good), time.perf_counter()
    taken = dict.fromkeys(names, 0)
    for count in range(runs):
        name = names[count % len(names)]
        is_mutated = rng.random() < 0.9
        data = decoders.mutate(good[name], rng) if is_mutated else rng.randbytes(rng.randrange(200))
        try:
            taken[name] += decoders.survive(name, data)
        except BaseException:
            print(f"{name} breaks at {data.hex()}", file=sys.stderr)
            raise
    report(runs, seed, time.perf_counter() - began, f"taken {taken}")


def fuzz_by_coverage(runs: int, seed: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["crad.network", "crad.federation.message", "json"]):
        from tests.fuzz import decoders
    names, began = list(decoders.TARGETS), time.perf_counter()
    count = 0

    def one(data: bytes) -> None:
        nonlocal count
        count += 1
        if data:
            decoders.survive(names[data[0] % len(names)], data[1:])
        if count == runs:  # libFuzzer ends the process after this one: nothing after it would be printed
            report(runs, seed, time.perf_counter() - began, "guided by coverage")

    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            (Path(folder) / name).write_bytes(bytes([number]) + decoders.seeds()[name])
        options = [f"-runs={runs}", f"-seed={seed}", "-max_len=8192", "-rss_limit_mb=2048", f"-timeout={HANG_S}"]
        atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={tempfile.gettempdir()}/", folder], one)
        atheris.Fuzz()


def report(runs: int, seed: int, seconds: float, *more: Any) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{runs} inputs, seed {seed}, {seconds:.0f} s, peak memory {peak:.0f} MB,", *more, "no findings", flush=True)


if __name__ == "__main__":
    main()
