"""Peak memory of whole runs, each in a process of its own, against a process that so far only holds the data."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.data import cifar_like, models_for
from benchmarks.harness import Section, Settings, ask_child
from crad.models import Architecture, build_model

MIB = 2**20
ACTIVE = 10  # at most


def run(settings: Settings) -> Section:
    """Narrow models with 10, 100 and 1000 clients, then the full-width pool with 100; never more than ten active."""
    few = [(10, 0.125), (100, 0.125)]
    cases = settings.choose([*few, (1000, 0.125), (100, 1.0)], few, [(3, 0.125)])
    rows, numbers = [], []
    for clients, width in cases:
        settings.say(f"{clients} clients, width {width:g}")
        row = _measure(clients, width, settings)
        numbers.append(row)
        rows.append(
            [
                f"N={clients}, {min(ACTIVE, clients)} active, width {width:g}",
                *(f"{row[key] / MIB:,.0f}" for key in ("base_bytes", "needed_bytes", "peak_bytes")),
                f"{row['peak_bytes'] / row['needed_bytes']:.2f}",
            ]
        )
    return Section(
        "memory",
        "Peak resident memory of one process, MiB",
        ("run", "idle with data", "ten active models and a teacher at work", "crad.run", "ratio of the last two"),
        rows,
        notes=[
            "At work: a process that holds ten models with their momentum and one frozen teacher, and takes one batch "
            "through each. crad.run holds one model at a time and the others' states on disk, so it may need less."
        ],
        numbers=numbers,
    )


def _measure(clients: int, width: float, settings: Settings) -> dict[str, Any]:
    wanted = {
        "dataset": cifar_like(settings),
        "clients": clients,
        "active": min(ACTIVE, clients),
        "rounds": 2,
        "eval_every": 1000,
        "train_limit": 10 * clients,
        "test_limit": 10,
        "proxy_size": 0,
        "partition": "iid",
        "width": width,
        "models": models_for(settings),
        "device": "cpu",
        "engine": "serial",
    }
    if clients < 100:  # the smallest subset that still has ten images of every class
        wanted["train_limit"] = 20 * clients
    needed, done = (ask_child(what, json.dumps(wanted)) for what in ("needed", "run"))
    return {
        "clients": clients,
        "width": width,
        "seconds": done["seconds"],
        "base_bytes": needed["idle_bytes"],
        "peak_bytes": done["peak_bytes"],
        "needed_bytes": needed["peak_bytes"],
    }


def model_bytes(name: str, width: float) -> int:
    """Parameters and buffers of a model for ten classes of 32x32x3."""
    model = build_model(Architecture(name, width), num_classes=10, in_channels=3, image_size=(32, 32), seed=0)
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
