"""`python -m tests.simulation`: many schedules, or one told step by step."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.schedule import BrokenError, run_schedule


def main() -> int:
    """Run them; the seed of every schedule that breaks the promise is printed, and the exit code is 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1, help="seed of the first one")
    parser.add_argument("--seed", type=int, help="this schedule alone")
    parser.add_argument("--show", action="store_true", help="tell every step")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.schedules) if options.seed is None else [options.seed]
    began, broken, steps = time.monotonic(), 0, 0
    for done, seed in enumerate(seeds, start=1):
        try:
            steps += run_schedule(seed, print if options.show else lambda text: None).clock.steps
        except BrokenError as error:
            broken += 1
            print(error, flush=True)
        if done % 500 == 0:
            pace = (time.monotonic() - began) / done
            left = pace * (len(seeds) - done)
            print(f"{done} schedules, {broken} broken, {steps} steps, {left:.0f} s left", flush=True)
    print(f"{len(seeds)} schedules, {broken} broken, {steps} steps, {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
