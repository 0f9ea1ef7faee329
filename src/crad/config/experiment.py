"""One experiment: its fields from a preset, a TOML file and flags, validated once at the edge; and written again.

Flags win over the file, the file wins over the preset. The keys of the TOML file are the fields of
`experiment_fields.py`; the flags are the same words with hyphens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from crad.config.experiment_fields import ExperimentFields
from crad.config.notation import parse_pairs
from crad.config.older_names import ALIASES, stored_settings, with_current_names, with_stored_names, without_aliases
from crad.config.presets import PRESETS
from crad.config.setting import NONE
from crad.errors import ConfigError, first_fault, unknown_name
from crad.files import read_toml


class Experiment(ExperimentFields):
    """Everything that decides the outcome of a run, and how it is executed. Frozen; an unknown key is refused.

    Example:
        >>> import crad
        >>> crad.Experiment(preset="demo", method="crad", seed=1).clients
        6
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  # pydantic checks each
        """Settings over those of their preset; refused with one clear line."""
        try:
            super().__init__(**_over_preset(settings))
        except ValidationError as error:
            raise ConfigError(first_fault(error, depth=1)) from error


def make_experiment(settings: Mapping[str, Any] | None = None, *, path: Path | None = None) -> Experiment:
    """Make an experiment from flags over a TOML file over a preset; refused with one clear line."""
    from_file = {} if path is None else read_toml(path, what="the experiment file")
    return Experiment(**{**with_current_names(from_file), **with_current_names(settings or {})})


def stored_experiment(path: Path) -> Experiment:
    """Read the experiment of a run directory, of whichever version."""
    stored = read_toml(path, what="the experiment file")
    try:
        return Experiment(**stored_settings(stored))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _over_preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    preset = settings.get("preset", "paper")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    settings = with_current_names(settings)
    for key in settings:
        if key not in Experiment.model_fields and key not in ALIASES:
            raise unknown_name("setting", key, Experiment.model_fields)
    merged = {**PRESETS[preset], **_shorter_warmup(preset, settings), **without_aliases(settings)}
    if isinstance(merged.get("models"), str):
        merged["models"] = tuple(part.strip() for part in merged["models"].split(","))
    if isinstance(merged.get("method_settings"), str):
        merged["method_settings"] = parse_pairs(merged["method_settings"])
    return {key: None if value == NONE and _is_optional(key) else value for key, value in merged.items()}


def _shorter_warmup(preset: str, settings: Mapping[str, Any]) -> dict[str, int]:
    """Return a preset's warm-up for fewer rounds than its own, as the same share of them; for more it stays."""
    whole, rounds = PRESETS[preset], settings.get("rounds")
    if "warmup_rounds" not in whole or not isinstance(rounds, int) or rounds >= whole["rounds"]:
        return {}
    return {"warmup_rounds": whole["warmup_rounds"] * max(rounds, 0) // whole["rounds"]}


def _is_optional(name: str) -> bool:
    return Experiment.model_fields[name].default is None


def to_toml(experiment: Experiment) -> str:
    """Everything needed to repeat the experiment, as TOML; it does not depend on what a preset says later."""
    settings = with_stored_names(experiment.model_dump(mode="json"))
    return tomli_w.dumps({key: NONE if value is None else value for key, value in settings.items()})


def changed_settings(experiment: Experiment) -> dict[str, Any]:
    """Return what a command needs beside the preset to repeat the experiment."""
    preset = Experiment(preset=experiment.preset).model_dump()
    return {key: value for key, value in experiment.model_dump().items() if value != preset[key]}
