"""`crad explain RUN`: how the teachers of a run were combined for single test images."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from crad.cli.options import AsJson

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of a method with a rule.")]
Student = Annotated[
    int | None, typer.Option("--student", metavar="CLIENT", help="Whose peers are the teachers; with --image: 0.")
]
Image = Annotated[int | None, typer.Option("--image", metavar="I", help="Index of a test sample, of whatever kind.")]
ClassName = Annotated[
    str | None, typer.Option("--class", metavar="C", help="A class by index or name; default: the true class.")
]


def explain_command(
    run: RunArgument, student: Student = None, image: Image = None, class_: ClassName = None, as_json: AsJson = False
) -> None:
    """Show every teacher's part in a target: its support, what it says, its state and its weight.

    Without --image: the clearest success and the clearest failure of the rule, of all students or of --student.

    Example: crad explain runs/first --student 2 --image 17
    """
    from rich.console import Console

    from crad.analysis.traces import describe
    from crad.cli.terminal.terminal_tables import trace_table
    from crad.errors import ConfigError
    from crad.inspection import FAILURE_RULE, SUCCESS_RULE, RunInspector

    if image is None and class_ is not None:
        raise ConfigError("--class needs --image: say which test sample")
    inspector = RunInspector(run)
    if image is None:
        success, failure = inspector.clearest(student=student)
        titled = {SUCCESS_RULE: success, FAILURE_RULE: failure}
    else:
        asked = None if class_ is None else inspector.class_of(class_)
        titled = {"": inspector.trace(student=student or 0, image=image, class_index=asked)}
    if as_json:
        typer.echo(json.dumps([asdict(trace) for trace in titled.values()], indent=1))
        return
    console = Console() if Console().is_terminal else Console(width=110)
    for title, trace in titled.items():
        if title:
            console.print(title, style="bold")
        console.print(trace_table(trace))
        console.print(describe(trace), markup=False, highlight=False)
