"""The flags of an experiment, made from its fields: one list for the TOML keys, the flags and their help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from crad.cli.callback_options import CallbackOptions, callback_flags
from crad.config import ALIASES, PRESETS, Experiment

Settings = dict[str, Any]

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Read an experiment.toml; flags win over it.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Where to write; must be new.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no tables; only the path at the end.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON on standard output.")]


def with_experiment_flags(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag per field of `Experiment`; those that were set arrive as `settings`.

    A command with a parameter `callback_options` gets the flags of those who hear of a run, too.
    """
    names = [name for name in (*Experiment.model_fields, *ALIASES) if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        taken = inspect.signature(command, eval_str=True).parameters
        own = [parameter for name, parameter in taken.items() if name not in ("settings", "callback_options")]
        others = callback_flags() if "callback_options" in taken else []

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:  # noqa: ANN401  # whatever the flags hold
            given = {name: values.pop(name) for name in names}
            settings = {name: value for name, value in given.items() if value is not None}
            if others:
                values["callback_options"] = CallbackOptions(**{flag.name: values.pop(flag.name) for flag in others})
            command(settings=settings, **values)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + others
        parameters += [_flag(name) for name in names]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # how Typer learns of flags made here
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _flag(name: str) -> inspect.Parameter:
    # Values stay text here: the settings model is the one place that checks them.
    if name in ALIASES:
        option = typer.Option(f"--{name}", metavar="N", help=ALIASES[name], rich_help_panel="Experiment")
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
        )
    field = Experiment.model_fields[name]
    word = name.replace("_", "-")
    text = f"{field.description}{_default(name)}"
    if field.annotation is bool:
        option = typer.Option(f"--{word}/--no-{word}", help=text, rich_help_panel="Experiment", show_default=False)
        kind: Any = bool | None
    else:
        metavar = "NAME" if isinstance(field.default, str) else "N"
        option = typer.Option(f"--{word}", metavar=metavar, help=text, rich_help_panel="Experiment", show_default=False)
        kind = str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _default(name: str) -> str:
    value = Experiment.model_fields[name].get_default(call_default_factory=True)
    if value is None or value == {}:
        return ""
    if isinstance(value, tuple):
        value = ",".join(value)
    others = ", ".join(f"{preset} {settings[name]}" for preset, settings in PRESETS.items() if name in settings)
    return f" ({value}{f'; {others}' if others else ''})"
