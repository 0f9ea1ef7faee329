"""What of a round lies beyond pure computing?

`python -m benchmarks.studies.rest CLIENTS IMAGES_PER_CLIENT [ROUNDS] [SETTING=VALUE...]`: rounds of the full-width pool
on the CIFAR-10 subset (CRAD_DATA), one process, unless a setting says otherwise. The first one also warms up.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import crad
from crad.config import Experiment, parse_pairs
from crad.device import ComputePart, computing_timed
from crad.runs.callbacks import LambdaCallback


def main(words: Sequence[str]) -> None:
    """Print the seconds of each round, its parts, and the share that is none of them."""
    clients, images, rounds = (int(word) for word in [*(word for word in words if "=" not in word), "1"][:3])
    own: dict[str, Any] = {"dataset": "cifar10"}
    for word in words:
        own |= parse_pairs(word) if "=" in word else {}
    parts: dict[ComputePart, float] = {}

    def show(record: dict[str, Any]) -> None:
        seconds = record["timing"]["seconds"]
        named = ", ".join(f"{name} {value:.1f} s" for name, value in parts.items())
        share = 100 * (1 - sum(parts.values()) / seconds)
        print(f"round {record['round']}: {seconds:.1f} s: {named}; beyond computing {share:.2f} %", flush=True)
        parts.clear()

    experiment = Experiment(
        **own,
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
    main(sys.argv[1:])
