"""`crad export RUN`: a client's model as one file that runs elsewhere."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from crad.cli.options import AsJson


class Format(StrEnum):
    """What a model can be written as."""

    onnx = "onnx"
    safetensors = "safetensors"


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A finished run directory.")]
Client = Annotated[
    int, typer.Option("--client", metavar="I", help="Whose model, at the round that the summary reports.")
]
FormatFlag = Annotated[Format, typer.Option("--format", help="onnx runs without this package, safetensors with it.")]
Target = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: client-I.onnx or .safetensors in RUN.")
]
Force = Annotated[bool, typer.Option("--force", metavar="", help="Write over a file that is there.")]


def export_command(
    run: RunArgument,
    client: Client,
    format: FormatFlag = Format.safetensors,
    output: Target = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a client's model as one file with its preprocessing, class names and both faces.

    The ONNX graph takes raw pixels (uint8, batch x height x width x channels) and gives probabilities; its metadata
    says the rest. Use it anywhere, or with crad predict.

    Example: crad export runs/first --client 3 --format onnx
    """
    from crad.errors import ConfigError
    from crad.prediction.export import file_name
    from crad.results.result import load

    result = load(run)
    path = output or run / file_name(format, client)
    if path.is_file() and not force:
        raise ConfigError(f"{path} is there already: choose another --output, or write over it with --force")
    result.export(format, client=client, path=path)
    if as_json:
        card = result.models[client].card
        about = {"path": str(path), "format": format.value, "architecture": card.architecture, **card.origin}
        typer.echo(json.dumps({**about, "classes": card.class_names, "input_shape": card.input_shape}, indent=1))
        return
    typer.echo(str(path))
