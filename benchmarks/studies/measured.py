"""What a study has measured, a line of JSON each, so that nothing is measured twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return all that was measured."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_line(path: Path, line: Mapping[str, Any]) -> None:
    """Keep what was measured, and say it."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)
