"""Everything about names of earlier versions: what settings were called, in files, hashes and flags.

A setting that was renamed says its older name itself (`Setting.stored_as`, `Setting.also_called`), and one that came
later the value that older runs had without knowing it (`Setting.before`). An alias stands for several settings of now.
What was tried and dropped (docs/choosing-the-rule.md) is still read where it was off, and refused where it was on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crad.config.experiment_fields import ExperimentFields
from crad.config.setting import ALWAYS_THERE, NONE
from crad.config.setting_lists import all_settings, setting_of
from crad.errors import ConfigError, shown

ALIASES = {"liars": "Short for --attack noise --attackers COUNT"}
# By the value at which they did nothing; and values that settings of now had.
DROPPED = {"snapshot_average": 0.0, "calibration": "none", "pooling": "mean", "distill_by_class": 0.0}
DROPPED_VALUES = {"filter": "consensus-of-three", "distill_schedule": "falling"}
HAS_DROPPED = "e30c49f"  # a commit


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


def older_names() -> Mapping[str, str]:
    """Return the settings that were called otherwise, or that people call otherwise, by that name."""
    settings = all_settings().items()
    return {other: name for name, one in settings for other in (one.stored_as, one.also_called) if other is not None}


def with_current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the names of now, whichever they were given by; refuse one that is set twice."""
    older, renamed = older_names(), dict[str, Any]()
    for key, value in _without_dropped(settings).items():
        name = older.get(key, key)
        said = renamed.get(name)
        if said not in (None, NONE) and value not in (None, NONE, said):
            raise ConfigError(f"{key} = {value!r}: it is {name} by its older name, which is {said!r}: leave one out")
        renamed[name] = value if said in (None, NONE) else said
    return renamed


def _without_dropped(settings: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in settings.items():
        is_on = key in DROPPED and value not in (None, NONE, DROPPED[key])
        if is_on or (key in DROPPED_VALUES and value == DROPPED_VALUES[key]):
            raise ConfigError(
                f"{key} = {shown(value)} was tried and dropped (docs/choosing-the-rule.md): take crad at commit "
                f"{HAS_DROPPED} to run it, or to read a run that had it"
            )
    return {key: value for key, value in settings.items() if key not in DROPPED}


def with_stored_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the names that files and hashes have for them, which never change."""
    return {setting_of(name).stored_as or name: value for name, value in settings.items()}


def stored_settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run directory says, under the names of now: what it does not say came later than the run."""
    has_default = {name for name, field in ExperimentFields.model_fields.items() if field.default is not None}
    before = {name: one.before for name, one in all_settings().items() if name in has_default}
    later = {name: value for name, value in before.items() if value is not ALWAYS_THERE}
    return {**later, **with_current_names(stored)}
