"""What of a round lies beyond pure computing: `python -m benchmarks.studies.rest CLIENTS IMAGES_PER_CLIENT [ROUNDS]`.

Rounds of the full-width pool on the CIFAR-10 subset (CRAD_DATA), one process. The first one also warms up.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import crad
from benchmarks.engine import computing_timed
from crad.config import Experiment
from crad.runs.callbacks import LambdaCallback


def main() -> None:
    """Print the seconds of each round, its parts, and the share that is none of them."""
    clients, images, rounds = (int(word) for word in [*sys.argv[1:], "1"][:3])
    parts: defaultdict[str, float] = defaultdict(float)

    def show(record: dict[str, Any]) -> None:
        seconds = record["timing"]["seconds"]
        named = ", ".join(f"{name} {value:.1f} s" for name, value in parts.items())
        share = 100 * (1 - sum(parts.values()) / seconds)
        print(f"round {record['round']}: {seconds:.1f} s: {named}; beyond computing {share:.2f} %", flush=True)
        parts.clear()

    experiment = Experiment(
        dataset="cifar10",
        clients=clients,
        rounds=rounds,
        train_limit=clients * images,
        test_limit=10,
        proxy_size=0,
        partition="iid",
        device="cpu",
        engine="serial",
    )
    forget_measuring = LambdaCallback(
        on_round=show, on_step=lambda step: parts.clear() if step.stage == "measuring" else None
    )
    with computing_timed(parts):
        crad.run(experiment, callbacks=[forget_measuring])


if __name__ == "__main__":
    main()
