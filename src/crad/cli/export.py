"""`crad export RUN`: a client's model, or all clients' together, as one file that runs elsewhere."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from crad.cli.committee_options import (
    CommitteeOptions,
    EvidenceFlag,
    IsCommittee,
    Members,
    RuleName,
    Size,
    TeacherPriorFlag,
    committee_about,
    make_asked_committee,
)
from crad.cli.options import AsJson


class Format(StrEnum):
    """What a model can be written as."""

    onnx = "onnx"
    safetensors = "safetensors"


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A finished run directory.")]
Client = Annotated[
    int | None,
    typer.Option(
        "--client",
        metavar="I",
        help="Whose model, at the round that the summary reports; of a committee: whom its local face serves.",
    ),
]
FormatFlag = Annotated[Format, typer.Option("--format", help="onnx runs without this package, safetensors with it.")]
Target = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Default: client-I or committee, .onnx or .safetensors, in RUN."
    ),
]
Force = Annotated[bool, typer.Option("--force", metavar="", help="Write over a file that is there.")]


def export_command(
    run: RunArgument,
    client: Client = None,
    format: FormatFlag = Format.safetensors,
    output: Target = None,
    force: Force = False,
    committee: IsCommittee = False,
    rule: RuleName = None,
    teacher_prior: TeacherPriorFlag = None,
    members: Members = None,
    committee_size: Size = None,
    evidence: EvidenceFlag = None,
    as_json: AsJson = False,
) -> None:
    """Write a client's model, or a committee, as one file with its preprocessing, class names and both faces.

    The ONNX graph takes raw pixels (uint8, batch x height x width x channels) and gives probabilities; its metadata
    says the rest. A committee's has every member and the rule inside. Use it anywhere, or with crad predict.

    Example: crad export runs/first --client 3 --format onnx
    Example: crad export runs/first --committee --client 3 --format onnx
    """
    from crad.errors import ConfigError
    from crad.prediction.export import committee_file_name, file_name
    from crad.results.result import load

    options = CommitteeOptions(client, rule, teacher_prior, members, committee_size, evidence)
    if not committee:
        options.refuse_without_committee("client")
    result = load(run)
    if not committee and client is None:
        raise ConfigError("Missing option '--client': say whose model, or --committee for all of them together")
    name = committee_file_name(format, client) if client is None or committee else file_name(format, client)
    path = output or run / name
    if path.is_file() and not force:
        raise ConfigError(f"{path} is there already: choose another --output, or write over it with --force")
    together = make_asked_committee(result, options) if committee else None
    result.export(format, client=None if committee else client, committee=together, path=path)
    if as_json:
        model = together or result.models[client or 0]
        card = model.card
        about = {"path": str(path), "format": format.value, "architecture": card.architecture, **card.origin}
        about |= committee_about(model)
        typer.echo(json.dumps({**about, "classes": card.class_names, "input_shape": card.input_shape}, indent=1))
        return
    typer.echo(str(path))
