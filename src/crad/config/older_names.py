"""Settings of earlier versions that stand for several of now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crad.config.setting import NONE
from crad.errors import ConfigError

ALIASES = {"liars": "Short for --attack noise --attackers COUNT"}


def without_aliases(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their names of now. `liars = N` said the only attack there was, and means what it meant."""
    others = {key: value for key, value in settings.items() if key != "liars"}
    liars = settings.get("liars", 0)
    if liars in (0, "0"):
        return others
    said = {key: value for key, value in others.items() if key in ("attack", "attackers") and value not in (0, "0")}
    if any(value not in (None, NONE) for value in said.values()):
        raise ConfigError(f"liars = {liars!r} is short for attack noise by as many: leave it out beside attack")
    try:
        number = int(liars)
    except (TypeError, ValueError):
        number = -1
    if isinstance(liars, bool | float) or number < 0:
        raise ConfigError(f"liars = {liars!r}: expected a whole number of clients, 0 or more")
    return {**others, "attack": "noise", "attackers": number}
