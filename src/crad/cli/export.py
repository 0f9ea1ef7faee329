"""`crad export RUN`: a client's model, or all clients' together, as one file that runs elsewhere."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crad.cli.committee_options import (
    CommitteeOptions,
    EvidenceFlag,
    IsCommittee,
    Members,
    RuleName,
    Size,
    TeacherPriorFlag,
    Temperature,
    committee_about,
    make_asked_committee,
)
from crad.cli.options import AsJson

if TYPE_CHECKING:
    from crad.prediction.trained_model import TrainedModel


class Format(StrEnum):
    """What a model can be written as."""

    onnx = "onnx"
    safetensors = "safetensors"


RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A finished run directory; or a .safetensors file to be written otherwise."),
]
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
        "--output",
        "-o",
        metavar="FILE",
        help="Default: client-I or committee, .onnx or .safetensors, in RUN; beside a file.",
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
    temperature: Temperature = None,
    as_json: AsJson = False,
) -> None:
    """Write a client's model, or a committee, as one file with its preprocessing, class names and both faces.

    The ONNX graph takes raw pixels (uint8, batch x height x width x channels) and gives probabilities; its metadata
    says the rest. A committee's has every member and the rule inside. Use it anywhere, or with crad predict.

    Example: crad export runs/first --client 3 --format onnx
    A member's committee.safetensors, or any model of this command, becomes an ONNX graph the same way.

    Example: crad export runs/first --committee --client 3 --format onnx
    Example: crad export committee.safetensors --format onnx
    """
    from crad.errors import ConfigError
    from crad.prediction.export import committee_file_name, file_name
    from crad.results.result import load

    options = CommitteeOptions(client, rule, teacher_prior, members, committee_size, evidence, temperature)
    if not committee:
        options.refuse_without_committee("client")
    if run.is_file():
        _export_file(run, options, format=format, output=output, is_forced=force, as_json=as_json, is_asked=committee)
        return
    result = load(run)
    if not committee and client is None:
        raise ConfigError("Missing option '--client': say whose model, or --committee for all of them together")
    name = committee_file_name(format, client) if client is None or committee else file_name(format, client)
    path = output or run / name
    _refuse_overwriting(path, is_forced=force)
    together = make_asked_committee(result, options) if committee else None
    result.export(format, client=None if committee else client, committee=together, path=path)
    _show(path, format, together or result.models[client or 0], as_json=as_json)


def _export_file(
    file: Path,
    options: CommitteeOptions,
    *,
    format: Format,
    output: Path | None,
    is_forced: bool,
    as_json: bool,
    is_asked: bool,
) -> None:
    """Write the model or committee of a file in another format: what it is was decided when the file was written."""
    from crad.errors import ConfigError
    from crad.prediction.export import SUFFIXES, export_model
    from crad.prediction.model_files import load_model

    if is_asked or options.client is not None:
        raise ConfigError(f"{file} is one model or committee already: leave out --client and --committee")
    if file.suffix != SUFFIXES["safetensors"] or format is Format.safetensors:
        raise ConfigError(f"{file} can only be turned from .safetensors into onnx: say --format onnx")
    path = output or file.with_suffix(SUFFIXES[format])
    _refuse_overwriting(path, is_forced=is_forced)
    model = load_model(file)
    _show(export_model(model, format, path), format, model, as_json=as_json)


def _refuse_overwriting(path: Path, *, is_forced: bool) -> None:
    from crad.errors import ConfigError

    if path.is_file() and not is_forced:
        raise ConfigError(f"{path} is there already: choose another --output, or write over it with --force")


def _show(path: Path, format: Format, model: TrainedModel, *, as_json: bool) -> None:
    if as_json:
        card = model.card
        about = {"path": str(path), "format": format.value, "architecture": card.architecture, **card.origin}
        about |= committee_about(model)
        typer.echo(json.dumps({**about, "classes": card.class_names, "input_shape": card.input_shape}, indent=1))
        return
    typer.echo(str(path))
