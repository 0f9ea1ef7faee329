"""Where the other defaults come from: the paper's protocol, what two cores do in half an hour, or in minutes."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's protocol in full: needs a GPU, or days.
    "paper": {},
    # What a two-core machine finishes in about ten minutes a method.
    "mini": {
        "rounds": 30,
        "train_limit": 4000,
        "test_limit": 1000,
        "proxy_size": 400,
        "width": 0.125,
        "batch_size": 16,
        "eval_every": 2,
    },
    # What two cores finish in about half an hour a method; ten thousand images are all of the subset. The rate
    # was chosen on validation images alone, as docs/small.md says.
    "small": {
        "rounds": 60,
        "train_limit": 10_000,
        "test_limit": 2000,
        "width": 0.25,
        "batch_size": 32,
        "lr": 0.03,
        "lr_schedule": "cosine",
        "warmup_rounds": 3,
        "eval_every": 5,
    },
    # Seconds, on images that come inside a dependency.
    "demo": {
        "dataset": "digits",
        "clients": 6,
        "rounds": 10,
        "proxy_size": 100,
        "width": 0.25,
        "batch_size": 16,
        "lr": 0.05,
        "distill_weight": 0.4,
        "eval_every": 2,
    },
}
