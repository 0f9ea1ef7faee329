"""Lists of settings, by what each says of itself in `Setting`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from crad.config.experiment_fields import ExperimentFields
from crad.config.setting import Role, Setting


def setting_of(name: str) -> Setting:
    """Return what a field of `Experiment` is to the rest of the package."""
    return all_settings()[name]


def names_where(is_meant: Callable[[Setting], bool]) -> tuple[str, ...]:
    """Return the settings of which this is true, in the order of their fields."""
    return tuple(name for name, setting in all_settings().items() if is_meant(setting))


def names_of(*roles: Role) -> tuple[str, ...]:
    """Return the settings with one of these roles, in the order of their fields."""
    return names_where(lambda setting: setting.role in roles)


def all_settings() -> Mapping[str, Setting]:
    """Return what every field of `Experiment` is to the rest of the package, in their order."""
    return _settings_of(ExperimentFields)


@functools.cache  # asked for hundreds of times by everything that reads or names a run
def _settings_of(fields: type[ExperimentFields]) -> Mapping[str, Setting]:
    described = fields.model_fields.items()
    return {name: next(one for one in field.metadata if isinstance(one, Setting)) for name, field in described}
