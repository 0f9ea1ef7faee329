"""The command `crad`. Nothing heavy is imported until a verb needs it: `crad --help` must be quick."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer

from crad.cli import data
from crad.cli.compare import compare_command, demo_command
from crad.cli.explain import explain_command
from crad.cli.run import run_command
from crad.cli.signals import Terminated, raise_on_sigterm
from crad.errors import CradError

app = typer.Typer(
    help="Federated learning with no server, no public data and no common architecture.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo_command)
app.command("run")(run_command)
app.command("compare")(compare_command)
app.command("explain")(explain_command)
app.add_typer(data.app, name="data")

# Typer's own base of all usage errors, wherever it keeps it.
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run the command line: 0 on success, 2 with one line for bad input, 130 or 143 when interrupted."""
    raise_on_sigterm()
    try:
        code = app(standalone_mode=False)
    except CradError as error:
        _fail(str(error), code=2)
    except OSError as error:  # a path that is too long, a folder where a file should be, no permission
        _fail(str(error), code=2)
    except _USAGE_ERROR as error:
        message = error.format_message()
        _fail(f"{message} See crad --help." if message else "say what to do: crad --help lists the verbs", code=2)
    except Terminated:
        sys.exit(143)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, *, code: int) -> NoReturn:
    line = " ".join(message.split())
    typer.echo(f"crad: {line}", err=True)
    sys.exit(code)
