"""Values that hold several: lists of names, of seeds, and settings that belong to one of several methods."""

from __future__ import annotations

from collections.abc import Sequence

from crad.cli.options import Settings
from crad.errors import ConfigError


def settings_by_method(pairs: Settings, names: Sequence[str]) -> dict[str, Settings]:
    """`fedmkd.mu=0.3` belongs to fedmkd; several methods are compared, so the method must be said."""
    own: dict[str, Settings] = {name: {} for name in names}
    for key, value in pairs.items():
        method, _, setting = key.rpartition(".")
        if method not in own:
            raise ConfigError(
                f"method_settings: {key!r} names no compared method; write METHOD.{setting}={value} with one of "
                f"{', '.join(names)}"
            )
        own[method][setting] = value
    return own


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
