"""The command `crad`. Nothing heavy is imported until a verb needs it: `crad --help` must be quick."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Any, NoReturn

import typer

from crad import __version__
from crad.cli.terminal.signals import Terminated, ending_soon, leave, raise_on_sigterm
from crad.errors import CradError

# Verb, where it is, and its line in `crad --help`; only the verb that was asked for is imported.
VERBS = {
    "demo": ("crad.cli.compare:demo_command", "See in a minute what joining brings, on real images."),
    "run": ("crad.cli.run:run_command", "Run one experiment and write a run directory."),
    "compare": ("crad.cli.compare:compare_command", "Compare methods on identical partitions, with several seeds."),
    "reproduce": ("crad.cli.reproduce:reproduce_command", "Rerun the paper's tables and figures, ours beside theirs."),
    "advise": ("crad.cli.advise:advise_command", "Say which method to take, by what was measured, and how sure."),
    "report": ("crad.cli.report:report_command", "Write one page about one or several runs, and its figures as files."),
    "explain": ("crad.cli.explain:explain_command", "Show every teacher's part in a target of a run."),
    "export": ("crad.cli.export:export_command", "Write a client's model as one file, ONNX or safetensors."),
    "predict": ("crad.cli.predict:predict_command", "Say what an exported model makes of images."),
    "audit": ("crad.cli.audit:app", "Test whether a private run keeps what it claims."),
    "peer": ("crad.cli.peer:app", "Take part in a federation across organisations."),
    "data": ("crad.cli.data:app", "List, download and check data sets."),
}


def make_app(words: Sequence[str]) -> typer.Typer:
    """Make the command line, with the whole of the verb that these words ask for and a line of every other."""
    asked = _asked_verb(words)
    # A list of verbs or a version needs no rich: importing it takes twice the rest.
    is_only_listing = asked is None and not {"--help", "--version"}.isdisjoint(words)
    app = typer.Typer(
        help="Federated learning with no server, no public data and no common architecture.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None if is_only_listing else "rich",
    )
    app.callback()(_whole_command)
    for verb, (place, line) in VERBS.items():
        module, name = place.split(":")
        found = getattr(importlib.import_module(module), name) if verb == asked else _not_asked_for
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=verb)
        else:
            app.command(verb, help=line if found is _not_asked_for else None)(found)
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"crad {__version__}")
        raise typer.Exit


def _whole_command(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", is_eager=True, callback=_show_version, help="Show the version and end."),
    ] = False,
) -> None:
    """Take what is said before any verb."""


def _words() -> list[str]:
    """Return what was typed after `crad`, or is being typed where a shell asks for how it might go on."""
    if not any(name.endswith("_COMPLETE") and name.startswith("_") for name in os.environ) or len(sys.argv) > 1:
        return sys.argv[1:]
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    try:
        return shlex.split(typed)[1:]
    except ValueError:  # a quotation mark that is still open
        return typed.split()[1:]


def _asked_verb(words: Sequence[str]) -> str | None:
    return next((word for word in words if not word.startswith("-")), None)


def _not_asked_for() -> None:
    raise AssertionError("only listed")


# Typer's own base of all usage errors, wherever it keeps it.
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run the command line: 0 on success, 2 with one line for bad input, 130 or 143 when interrupted."""
    raise_on_sigterm()
    try:
        words = _words()
        with ending_soon() if _asked_verb(words) == "peer" else nullcontext():
            code = make_app(words)(standalone_mode=False)
    except CradError as error:
        _fail(str(error), code=2)
    except OSError as error:  # a path that is too long, a folder where a file should be, no permission
        _fail(str(error), code=2)
    except _USAGE_ERROR as error:
        message = error.format_message()
        end = "" if message.endswith((".", "?", "!")) else "."
        _fail(f"{message}{end} See crad --help." if message else "say what to do: crad --help lists the verbs", code=2)
    except Terminated:
        leave(143)
    except (KeyboardInterrupt, typer.Abort):
        leave(130)
    if code == 130:  # Typer's way to say Ctrl-C
        leave(130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, *, code: int) -> NoReturn:
    line = " ".join(message.split())
    typer.echo(f"crad: {line}", err=True)
    sys.exit(code)
