"""A callback of your own: who is behind the others, round by round, and what they hold.

    python examples/own_callback.py

A callback only listens: with or without it a run ends with the same bits. `crad.Callback` has all that it may hear.
"""

from collections import Counter
from typing import Any

import crad


class LastOnes(crad.Callback):
    def __init__(self) -> None:
        self.times: Counter[int] = Counter()

    def on_partition(self, partition: dict[str, Any]) -> None:
        self.sizes = partition["train"]

    def on_round(self, record: dict[str, Any]) -> None:
        last = min(record["clients"], key=lambda client: client["validation_accuracy"])
        self.times[last["client"]] += 1
        print(f"round {record['round']}: client {last['client']} is last with {last['validation_accuracy']:.1f} %")

    def on_run_end(self, result: crad.Result) -> None:
        for client, times in self.times.most_common():
            print(f"client {client}, {self.sizes[client]} images to train on: last in {times} of {len(result.rounds)}")


if __name__ == "__main__":
    crad.run(crad.Experiment(preset="demo", rounds=3), callbacks=[LastOnes()])
