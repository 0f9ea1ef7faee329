"""Settings as people write them: TOML, flags, name=value pairs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from crad.config.setting import NONE
from crad.errors import ConfigError


def parse_pairs(text: str) -> dict[str, bool | int | float | str]:
    """`mu=0.3,mode=pooled` as a dictionary; numbers and true or false become what they say."""
    pairs: dict[str, bool | int | float | str] = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name in pairs:
            raise ConfigError(f"method_settings = {text!r}: {name} is given twice: leave one out")
        if not name or not equals or not value:
            raise ConfigError(f"method_settings = {text!r}: expected name=value pairs separated by commas")
        pairs[name] = _plain_value(value)
    return pairs


def _plain_value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def settings_by_method(
    pairs: Mapping[str, Any], methods: Sequence[str], *, otherwise: str = ""
) -> dict[str, dict[str, Any]]:
    """`fedmkd.mu=0.3` belongs to fedmkd; several methods are compared, so the method must be said.

    `otherwise`: what else one may do than write the method before it.
    """
    own: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for key, value in pairs.items():
        method, _, setting = key.rpartition(".")
        if method not in own:
            raise ConfigError(
                f"method_settings: {key!r} names no compared method; write METHOD.{setting}={value} with one of "
                f"{', '.join(methods)}{otherwise}"
            )
        own[method][setting] = value
    return own


def to_flags(settings: Mapping[str, Any]) -> str:
    """Settings as they are written on a command line."""
    words = []
    for key, value in settings.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        words.append(f"--{flag} {shlex.quote(setting_text(value))}")
    return " ".join(words)


def setting_text(value: object) -> str:
    """Return the value of a setting as a flag says it."""
    if isinstance(value, Mapping):
        value = tuple(f"{name}={one}" for name, one in value.items())
    return NONE if value is None else ",".join(value) if isinstance(value, tuple) else str(value)
