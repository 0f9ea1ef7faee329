"""Flags that take several values: names, methods, seeds, separated by commas."""

from __future__ import annotations

from crad.errors import ConfigError


def parse_methods(text: str, *, with_local: bool = False) -> list[str]:
    """Methods separated by commas, each once; `all` stands for the rows of the paper's main table.

    `with_local`: and for training alone before them, without which nobody can say whether joining helped.
    """
    from crad.methods import PAPER_METHODS

    every = ("local", *PAPER_METHODS) if with_local else PAPER_METHODS
    names = parse_list("--methods", text)
    return list(dict.fromkeys(one for name in names for one in (every if name == "all" else (name,))))


def parse_list(flag: str, text: str) -> list[str]:
    """Different names separated by commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or len(set(parts)) != len(parts):
        raise ConfigError(f"{flag} {text!r}: expected different values separated by commas")
    return parts


def parse_seeds(text: str) -> list[int]:
    """Different whole numbers separated by commas."""
    try:
        numbers = [int(part) for part in parse_list("--seeds", text)]
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: expected whole numbers separated by commas") from None
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"--seeds {text!r}: a seed stands there twice")
    return numbers
