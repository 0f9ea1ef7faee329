"""The flags of an experiment, made from its fields: one list for the TOML keys, the flags and their help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from crad.cli.callback_options import CallbackOptions, callback_flags
from crad.config import ALIASES, PRESETS, Experiment, Panel, older_names, setting_of, with_current_names

Settings = dict[str, Any]

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Read an experiment.toml; flags win over it.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Where to write; must be new.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="No progress, no tables; only the path at the end.")
]
# What a person says of a table's columns, and of files of other kinds.
Label = Annotated[str | None, typer.Option("--label", metavar="COLUMN", help="Column of a table that is the label.")]
Ignore = Annotated[
    str | None, typer.Option("--ignore", metavar="COLUMN,...", help="Columns of a table that are no input.")
]
Categories = Annotated[
    str | None, typer.Option("--categories", metavar="COLUMN,...", help="Columns whose numbers are codes.")
]
Missing = Annotated[
    str | None, typer.Option("--missing", metavar="COLUMN=CODE,...", help="Codes that mean a gap, such as chol=0.")
]
Ranges = Annotated[
    str | None, typer.Option("--ranges", metavar="COLUMN=LOW:HIGH,...", help="Expected ranges, such as age=0:120.")
]
KindName = Annotated[str | None, typer.Option("--kind", metavar="KIND", help=f"{setting_of('kind').help}.")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", metavar="SECONDS", help="Length that recordings are brought to.")
]
Text = Annotated[str | None, typer.Option("--text", metavar="COLUMN,...", help="Columns of a table that hold texts.")]
Vocabulary = Annotated[
    str | None, typer.Option("--vocabulary", metavar="COUNT", help="Ids that words of texts are hashed to (8192).")
]
TextLength = Annotated[
    str | None, typer.Option("--text-length", metavar="COUNT", help="Words of a text that are read (64).")
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print the outcome as JSON on standard output.")]


def with_experiment_flags(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag per field of `Experiment`; those that were set arrive as `settings`.

    A command with a parameter `callback_options` gets the flags of those who hear of a run, too.
    """
    flags = _flags([name for name in Experiment.model_fields if name not in without])

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        taken = inspect.signature(command, eval_str=True).parameters
        own = [parameter for name, parameter in taken.items() if name not in ("settings", "callback_options")]
        others = callback_flags() if "callback_options" in taken else []

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:  # noqa: ANN401  # whatever the flags hold
            given = {flag.name: values.pop(flag.name) for flag in flags}
            settings = with_current_names({name: value for name, value in given.items() if value is not None})
            if others:
                values["callback_options"] = CallbackOptions(**{flag.name: values.pop(flag.name) for flag in others})
            command(settings=settings, **values)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + others + flags
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # how Typer learns of flags made here
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _flags(names: Collection[str]) -> list[inspect.Parameter]:
    """Return a flag for each of these settings, panel by panel, then those that are only understood."""
    ordered = sorted(names, key=lambda name: get_args(Panel).index(setting_of(name).panel))
    older = [_flag(name, spelled=old) for old, name in older_names().items() if name in names]
    return [*map(_flag, ordered), *map(_shorthand, ALIASES), *older]


def _flag(name: str, *, spelled: str | None = None) -> inspect.Parameter:
    """Return the flag of a setting; under an older name it is understood and not shown."""
    # Values stay text here: the settings model is the one place that checks them.
    setting, word = setting_of(name), (spelled or name).replace("_", "-")
    is_switch = Experiment.model_fields[name].annotation is bool
    option = typer.Option(
        f"--{word}/--no-{word}" if is_switch else f"--{word}",
        metavar="" if is_switch else metavar_of(name),
        help=f"{setting.help}{_default(name)}",
        rich_help_panel=setting.panel,
        show_default=False,
        hidden=spelled is not None,
    )
    return _parameter(spelled or name, bool | None if is_switch else str | None, option)


def _shorthand(name: str) -> inspect.Parameter:
    option = typer.Option(f"--{name}", metavar="COUNT", help=ALIASES[name], rich_help_panel="Simulated attacks")
    return _parameter(name, str | None, option)


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:  # noqa: ANN401  # a type, and Typer's own
    annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def metavar_of(name: str) -> str:
    """Return what the flag of a setting wants, as its help says it: choices, or the kind of value."""
    if name == "preset":
        return f"[{'|'.join(PRESETS)}]"
    if setting_of(name).metavar is not None:
        return str(setting_of(name).metavar)
    kind = _plain_type(name)
    choices = f"[{'|'.join(get_args(kind))}]"
    return _KINDS.get(kind) or (choices if len(choices) <= MAX_CHOICES else "NAME")


MAX_CHOICES = 28  # characters; longer ones are broken in the midst of a word on a narrow terminal: the help names them
_KINDS: dict[Any, str] = {
    int: "COUNT",
    float: "NUMBER",
    str: "NAME",
    tuple: "NAME,...",
    dict: "NAME=VALUE,...",
}


def _plain_type(name: str) -> Any:  # noqa: ANN401  # a type or a Literal
    """Return the type of a setting without bounds and without None: a Literal, or what holds its values."""
    kind: Any = Experiment.model_fields[name].annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind if get_origin(kind) in (None, Literal) else get_origin(kind)


def _default(name: str) -> str:
    value = Experiment.model_fields[name].get_default(call_default_factory=True)
    if value is None or value == {}:
        return ""
    if isinstance(value, tuple):
        value = ",".join(value)
    others = ", ".join(f"{preset} {settings[name]}" for preset, settings in PRESETS.items() if name in settings)
    return f" ({value}{f'; {others}' if others else ''})"
