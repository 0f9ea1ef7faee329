"""The references that are made from the code: every setting, every command. Markdown for the site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import typer
from typer.cli import get_docs_for_click

from crad.cli import VERBS, make_app
from crad.cli.options import metavar_of
from crad.config import PRESETS, Experiment, Panel, setting_of
from crad.config.notation import setting_text

SHARING = {
    "agreed": "all members alike",
    "agreed elsewhere": "all members alike",
    "private": "each organisation",
    "simulated": "simulation only",
}


def settings_page() -> str:
    """Return a table of all fields of `Experiment` for each panel of the help."""
    parts = [
        "# Settings",
        "The fields of `crad.Experiment`, which are also the keys of `experiment.toml`; a flag of `crad run` is the "
        "same word with hyphens. Flags win over a file, a file over a preset. The last column says who decides a "
        "setting between organisations.",
        *(f"## {panel}\n\n{_table(_settings_of(panel))}" for panel in get_args(Panel)),
        f"## Presets\n\nWhat they change; the rest is as above.\n\n{_table(_presets())}",
    ]
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Return what `--help` says of every verb."""
    parts = ["# Command line", "What `crad --help` and `crad VERB --help` say; made from the same code."]
    for verb in VERBS:
        program: Any = typer.main.get_command(make_app([verb]))  # a group, of a class that Typer keeps to itself
        context = typer.Context(program, info_name="crad")
        text = get_docs_for_click(obj=program.commands[verb], ctx=context, name=verb, indent=1, call_prefix="crad")
        parts.append(text.strip())
    return "\n\n".join(parts) + "\n"


def _settings_of(panel: str) -> Iterator[list[str]]:
    yield ["setting", "default", "what", "values", "decided by"]
    for name, field in Experiment.model_fields.items():
        setting = setting_of(name)
        if setting.panel == panel:
            text = setting_text(field.get_default(call_default_factory=True))
            default = f"`{text}`" if text else ""
            yield [f"`{name}`", default, setting.help, f"`{metavar_of(name)}`", SHARING[setting.sharing]]


def _presets() -> Iterator[list[str]]:
    yield ["setting", *PRESETS]
    for name in Experiment.model_fields:
        values = [preset.get(name, "") for preset in PRESETS.values()]
        if any(value != "" for value in values):
            yield [f"`{name}`", *(f"`{setting_text(value)}`" if value != "" else "" for value in values)]


def _table(rows: Iterator[list[str]]) -> str:
    header, *body = rows
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text if text.startswith("`") else text.replace("|", "\\|")  # in code a bar is a bar
