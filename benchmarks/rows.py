"""A large table: what reading it takes, and what a round of ten clients takes on it, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Section, Settings, ask_child

MIB = 2**20
COLUMNS, CLIENTS, ROUNDS = 50, 10, 1
CHUNK = 10_000  # rows that are written at once


def run(settings: Settings) -> Section:
    """Read a CSV file of a million rows and fifty columns, then run a round of ten clients on it; fewer rows before."""
    rows, numbers = [], []
    for count in settings.choose([100_000, 1_000_000], [20_000, 100_000], [400]):
        settings.say(f"{count:,} rows")
        row = _measure(_table(count, settings), count)
        numbers.append(row)
        sizes = [f"{row[key] / MIB:,.0f}" for key in ("file_bytes", "read_bytes", "run_bytes")]
        rows.append([f"{count:,}", sizes[0], f"{row['read_s']:.1f}", sizes[1], f"{row['run_s']:.1f}", sizes[2]])
    return Section(
        "rows",
        f"A table of {COLUMNS} columns, {CLIENTS} clients",
        ("rows", "file MiB", "reading s", "peak MiB", "reading and one round s", "peak MiB"),
        rows,
        notes=[
            f"Method crad, networks mlp, mlp-deep and tab-transformer at a quarter of their width, batches of 512, "
            f"{ROUNDS} round, tested at its end with its committee, one process."
        ],
        numbers=numbers,
    )


def _measure(path: Path, count: int) -> dict[str, Any]:
    wanted = {
        "dataset": str(path),
        "label": "class",
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "method": "crad",
        "batch_size": min(512, count // 20),
        "width": 0.25,
        "proxy_size": 0,
        "device": "cpu",
        "engine": "serial",
    }
    read, done = (ask_child(what, json.dumps(wanted)) for what in ("read", "run"))
    return {
        "rows": count,
        "file_bytes": path.stat().st_size,
        "read_s": read["seconds"],
        "read_bytes": read["peak_bytes"],
        "run_s": done["seconds"],
        "run_bytes": done["peak_bytes"],
    }


def _table(count: int, settings: Settings) -> Path:
    """Write a table whose class depends on a few of its columns; every tenth number is a gap, one column a category."""
    settings.output.mkdir(parents=True, exist_ok=True)
    path = settings.output / f"rows-{count}.csv"
    if path.is_file():
        return path
    rng = np.random.default_rng(7)
    partial = path.with_suffix(".part")
    with partial.open("w", encoding="utf-8") as file:
        print(*(f"c{place}" for place in range(COLUMNS)), "class", sep=",", file=file)
        for begin in range(0, count, CHUNK):
            _write_rows(file, rng, min(CHUNK, count - begin))
    partial.rename(path)
    return path


def _write_rows(file: Any, rng: np.random.Generator, count: int) -> None:  # noqa: ANN401  # a text file
    x = rng.normal(size=(count, COLUMNS))
    label = (x[:, 1] + x[:, 2] * x[:, 3] > 0).astype(int) + (x[:, 4] > 1)
    is_gap = rng.random(x.shape) < 0.1
    for values, gaps, place in zip(x, is_gap, label, strict=True):
        cells = ["" if gap else f"{value:.4g}" for value, gap in zip(values, gaps, strict=True)]
        cells[0] = "abc"[int(abs(values[0])) % 3]
        print(*cells, f"class {place}", sep=",", file=file)
