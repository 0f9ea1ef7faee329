"""`python -m tests.simulation`: many schedules, or one told step by step."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

from tests.simulation.schedule import run_schedule, try_schedule

TOLD = 500  # schedules between two words
CHUNK = 20  # schedules handed out at once
CHUNKS_A_PROCESS = 25  # killed tasks keep their stacks: thousands of schedules use up a process's mappings


def main() -> int:
    """Run them; the seed of every schedule that breaks the promise is printed, and the exit code is 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1, help="seed of the first one")
    parser.add_argument("--seed", type=int, help="this schedule alone, told step by step")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        run_schedule(options.seed, print)
        return 0
    seeds = range(options.first, options.first + options.schedules)
    began, broken, steps = time.monotonic(), 0, 0
    with multiprocessing.get_context("spawn").Pool(options.workers, maxtasksperchild=CHUNKS_A_PROCESS) as pool:
        for done, (taken, fault) in enumerate(pool.imap_unordered(try_schedule, seeds, chunksize=CHUNK), start=1):
            steps += taken
            if fault:
                broken += 1
                print(fault, flush=True)
            if done % TOLD == 0:
                left_s = (time.monotonic() - began) / done * (len(seeds) - done)
                print(f"{done} schedules, {broken} broken, {steps} steps, {left_s:.0f} s left", flush=True)
    print(f"{len(seeds)} schedules, {broken} broken, {steps} steps, {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
