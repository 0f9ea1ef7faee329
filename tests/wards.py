"""A federation of three wards with a small table: what tests of tables and of trees run."""

from __future__ import annotations

from pathlib import Path

from crad.config import Experiment


def ward_experiment(table: Path, *, models: tuple[str, ...], width: float) -> Experiment:
    """The three wards as clients; a round takes milliseconds."""
    return Experiment(
        dataset=str(table),
        label="ill",
        site="ward",
        partition="natural",
        clients=3,
        models=models,
        width=width,
        rounds=2,
        batch_size=16,
        optimizer="adamw",
        lr=0.01,
        proxy_size=12,
        device="cpu",
        workers=1,
        seed=4,
    )
