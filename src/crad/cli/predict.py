"""`crad predict MODEL INPUTS`: what an exported model, or all models of a run together, say about images."""

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
    Served,
    Size,
    TeacherPriorFlag,
    Temperature,
    committee_about,
    committee_lines,
    make_asked_committee,
)
from crad.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crad.prediction.committee import Committee
    from crad.prediction.trained_model import Probabilities, TrainedModel

MANY_CLASSES = 10  # more than these do not fit in a table: the most probable ones are shown
SHOWN_BEST = 3


class FaceName(StrEnum):
    """Which of a model's two faces speaks."""

    everywhere = "global"
    own = "local"


ModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="What crad export wrote, .safetensors or .onnx; with --committee a finished run directory.",
    ),
]
Inputs = Annotated[
    Path,
    typer.Argument(
        metavar="INPUTS",
        help="An image or a .wav, a folder of them, a table (.csv, .parquet), texts (.txt too), a .npy or a .npz file.",
    ),
]
FaceFlag = Annotated[
    FaceName, typer.Option("--face", help="global: images from anywhere; local: images like the model owner's own.")
]
Key = Annotated[
    str | None, typer.Option("--key", metavar="NAME", help="Which array of a .npz (test_images, or the only one).")
]
Build = Annotated[
    str | None, typer.Option("--build", metavar="package.module:build", help="Builds a network that is not built in.")
]


def predict_command(
    model: ModelFile,
    inputs: Inputs,
    face: FaceFlag = FaceName.everywhere,
    key: Key = None,
    build: Build = None,
    committee: IsCommittee = False,
    client: Served = None,
    rule: RuleName = None,
    teacher_prior: TeacherPriorFlag = None,
    members: Members = None,
    committee_size: Size = None,
    evidence: EvidenceFlag = None,
    temperature: Temperature = None,
    as_json: AsJson = False,
) -> None:
    """Say the most probable class of every image, row or text, and the probabilities.

    With --committee all models of a run answer together, each as its owner publishes it.

    Example: crad predict runs/first/client-3.onnx scans/
    Example: crad predict runs/first scans/ --committee --client 3 --face local
    """
    options = CommitteeOptions(client, rule, teacher_prior, members, committee_size, evidence, temperature)
    if not committee:
        options.refuse_without_committee()
    trained = _load_run(model, build, face, options) if committee else _load_file(model, build)
    card = trained.card
    names, images = card.kind_of_data.read_inputs(inputs, card, key=key)
    probabilities = trained.predict_proba(images, face.value)
    names = names or [str(index) for index in range(len(probabilities))]
    if as_json:
        typer.echo(json.dumps(_to_json(trained, names, probabilities, face=face.value), indent=1))
        return
    _print(trained, names, probabilities, face=face.value)


def _load_file(model: Path, build: str | None) -> TrainedModel:
    from crad.models.registry import resolve_builder
    from crad.prediction.model_files import load_model

    return load_model(model, build=None if build is None else resolve_builder(build))


def _load_run(run: Path, build: str | None, face: FaceName, options: CommitteeOptions) -> Committee:
    from crad.errors import ConfigError
    from crad.results.result import load

    if build is not None:
        raise ConfigError(
            "--build is for an exported file; a run knows its own networks: leave it out with --committee"
        )
    if face == FaceName.own and options.client is None:
        raise ConfigError(
            "--face local is for images like one client's own: say whose with --client, such as --client 0"
        )
    return make_asked_committee(load(run), options)


def _to_json(model: TrainedModel, names: Sequence[str], probabilities: Probabilities, *, face: str) -> object:
    predictions = [
        {
            "input": name,
            "class": model.classes[int(row.argmax())],
            "probability": float(row.max()),
            "probabilities": dict(zip(model.classes, row.tolist(), strict=True)),
        }
        for name, row in zip(names, probabilities, strict=True)
    ]
    return {"face": face, "classes": list(model.classes), **committee_about(model), "predictions": predictions}


def _print(model: TrainedModel, names: Sequence[str], probabilities: Probabilities, *, face: str) -> None:
    from rich.console import Console

    from crad.cli.terminal.terminal_tables import plain_table
    from crad.errors import escaped

    is_wide = len(model.classes) > MANY_CLASSES
    classes = [escaped(name) for name in model.classes]  # a data set's own may be anything
    header = ["input", "class", "%", *(["then"] if is_wide else [f"{name} %" for name in classes])]
    rows = []
    for name, row in zip(names, probabilities, strict=True):
        order = row.argsort()[::-1]
        after = ", ".join(f"{classes[i]} {100 * row[i]:.1f}" for i in order[1:SHOWN_BEST])
        rest = [after] if is_wide else [f"{100 * value:.1f}" for value in row]
        rows.append([escaped(name), classes[int(order[0])], f"{100 * row.max():.1f}", *rest])
    console = Console() if Console().is_terminal else Console(width=160)
    console.print(plain_table(header, rows))
    for line in committee_lines(model):
        console.print(line, highlight=False, markup=False)
    console.print(f"Probabilities of the {face} face, in percent.", highlight=False)
