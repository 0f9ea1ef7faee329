"""`crad audit`: whether a run keeps what it claims."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crad.cli.options import AsJson

if TYPE_CHECKING:
    from crad.analysis.privacy_audit import AuditLine, PrivacyAudit

app = typer.Typer(no_args_is_help=True, help="Test whether a run keeps what it claims.")

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A finished run with --private-training and --canaries.")
]
Confidence = Annotated[
    float, typer.Option("--confidence", metavar="SHARE", help="With which all lower bounds hold together.")
]
Delta = Annotated[
    float | None,
    typer.Option(
        "--delta",
        metavar="SHARE",
        help="Audit the claim at a smaller delta than the run's: the same noise keeps a larger epsilon there, and "
        "canaries prove more.",
    ),
]


@app.callback()
def _group() -> None:
    """Test whether a run keeps what it claims."""


@app.command("privacy")
def privacy_command(
    run: RunArgument, confidence: Confidence = 0.95, delta: Delta = None, as_json: AsJson = False
) -> None:
    """Show what a run's canaries prove about its privacy: a lower bound on epsilon beside the claimed one.

    It ends with 1 where more is proven than claimed. An alarm for gross faults, not evidence of privacy.

    Example: crad run --private-training 4 --canaries 1000 --output runs/audited; crad audit privacy runs/audited
    """
    from crad.analysis.privacy_audit import audit_run

    audit = audit_run(run, confidence=confidence, delta=delta)
    if as_json:
        typer.echo(json.dumps(_as_json(audit), indent=1))
    else:
        _show(audit)
    if audit.broken:
        raise typer.Exit(1)


def _as_json(audit: PrivacyAudit) -> dict[str, object]:
    return {**asdict(audit), "is_broken": bool(audit.broken), "sentence": audit.sentence}


def _show(audit: PrivacyAudit) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console() if Console().is_terminal else Console(width=110)
    table = Table(title=f"Lower bounds hold together with confidence {audit.confidence:g} (delta {audit.delta:g})")
    for column in ("", "canaries", "right / guessed", "epsilon at least", "at most provable", "claimed", ""):
        table.add_column(column, justify="right" if column else "left")
    for line in (*audit.clients, audit.whole):
        table.add_row(*_cells(line))
    console.print(table)
    console.print(audit.sentence, markup=False, highlight=False)


def _cells(line: AuditLine) -> list[str]:
    return [
        "whole run" if line.client is None else f"client {line.client}",
        str(line.canaries),
        f"{line.correct} / {line.guesses}",
        f"{line.epsilon_lower_bound:.2f}",
        f"{line.ceiling:.2f}",
        f"{line.claimed_epsilon:.2f}",
        "BROKEN" if line.is_broken else "",
    ]
