"""A trained model, or a committee of several, as one file: safetensors, and ONNX where its exporter is there.

A model has two faces: plain, for images from anywhere, and with the logarithm of its owner's class shares added to its
logits, for images like the owner's own. The files have both, the preprocessing and the class names, and their metadata
says which is which. The ONNX graph takes raw pixels, so nothing but the file is needed to run it.

Shapes: B images, H height, W width, C classes.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from crad.aggregation import RULES
from crad.aggregation.committee_rule import CommitteeRule, faced
from crad.errors import ConfigError, RunError, install_hint, unknown_name
from crad.federation.context import RunContext
from crad.federation.peer import PeerSpec, build_member_model
from crad.files import replacing
from crad.prediction.committee import Committee, LeftOutError, check_numbers
from crad.prediction.committee_card import MOST_MEMBERS
from crad.prediction.model_card import ModelCard, check_class_names
from crad.prediction.model_files import MEMBER
from crad.prediction.run_models import stored_weights
from crad.prediction.trained_model import FACES, TrainedModel, probe

SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx"}
FACE_NAMES = ("probabilities", "local_probabilities")  # of the graph's outputs


class WithPreparation(torch.nn.Module):
    """Takes raw pixels and gives class probabilities of both faces: nothing has to be known beside the file."""

    def __init__(self, model: torch.nn.Module, card: ModelCard) -> None:
        super().__init__()
        self.model, self.prepare = model, card.kind_of_data.preparation(card)
        self.log_prior_C = torch.nn.Buffer(_log_prior(card))

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take pixels uint8 [B,H,W,channels]; return probabilities [B,C], plain and with the owner's prior."""
        logits_BC = self.model(self.prepare(pixels))
        return torch.softmax(logits_BC, dim=1), torch.softmax(logits_BC + self.log_prior_C, dim=1)


class CommitteeGraph(torch.nn.Module):
    """Takes raw pixels and gives what all members say together, both faces: every member and the rule are inside."""

    def __init__(self, members: Sequence[torch.nn.Module], card: ModelCard, rule: CommitteeRule) -> None:
        super().__init__()
        self.members, self.prepare = torch.nn.ModuleList(members), card.kind_of_data.preparation(card)
        self.log_prior_C = torch.nn.Buffer(_log_prior(card))
        self.rule = rule

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take pixels uint8 [B,H,W,channels]; return probabilities [B,C], plain and with the client's prior."""
        inputs = self.prepare(pixels)
        logits_BC = self.rule.traced(torch.stack([member(inputs) for member in self.members]))
        return faced(logits_BC, None), faced(logits_BC, self.log_prior_C)


def _log_prior(card: ModelCard) -> torch.Tensor:
    return torch.tensor(card.log_prior or (0.0,) * card.num_classes)


def trained_model(context: RunContext, member: PeerSpec, state: Path) -> torch.nn.Module:
    """Return a member's model as its resting state has it, on the CPU and for use, not for training."""
    model = build_member_model(context, member, seed=0)
    model.load_state_dict(stored_weights(state))
    return _for_export(model).requires_grad_(False)


def file_name(format: str, client: int) -> str:  # as people call it
    """Return what a client's exported model is called where nobody says otherwise."""
    if format not in SUFFIXES:
        raise unknown_name("format", format, SUFFIXES)
    return f"client-{client}{SUFFIXES[format]}"


def committee_file_name(format: str, client: int | None) -> str:
    """Return what an exported committee is called where nobody says otherwise."""
    if format not in SUFFIXES:
        raise unknown_name("format", format, SUFFIXES)
    return f"committee{'' if client is None else f'-client-{client}'}{SUFFIXES[format]}"


def export_model(model: TrainedModel, format: str, path: Path) -> Path:
    """Write a model or a committee in one of the formats, whole or not at all; return where."""
    if format not in SUFFIXES:
        raise unknown_name("format", format, SUFFIXES)
    if path.is_dir():
        example = path / f"model{SUFFIXES[format]}"
        raise ConfigError(f"{path} is a folder: name the file to write, such as {example}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} lies in no folder that exists: make {path.parent} first, or choose another place")
    _check_numbers(model)
    try:
        with replacing(path) as beside:
            if isinstance(model, Committee):
                _export_committee(model, format, beside)
            else:
                write = export_safetensors if format == "safetensors" else export_onnx
                write(model.module, model.card, beside)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
    return path


def _check_numbers(model: TrainedModel) -> None:
    """Refuse to write what answers nothing: a graph would not leave out the member that spoils every answer."""
    card = model.card
    try:
        check_class_names(card.class_names)
    except ValueError as error:
        raise ConfigError(f"a file of this model would not be read again: {error}; name them otherwise") from error
    samples = probe(card)
    if isinstance(model, Committee):
        models = model.torch_predictor.models
        for client in model.members:
            try:
                check_numbers(client, models.get(client), temperature=model.temperature)
            except LeftOutError as error:
                raise RunError(f"{error}: make the committee without it") from error
    faces = FACES if card.log_prior is not None else ("global",)
    for face in faces if len(samples) else ():
        try:
            model.predict_proba(samples, face)
        except RunError as error:
            what = (
                "this committee"
                if isinstance(model, Committee)
                else f"the model of client {card.origin.get('client', '?')}"
            )
            raise RunError(f"{what} gives non-finite predictions, so no file is written: take another one") from error


def export_safetensors(model: torch.nn.Module, card: ModelCard, path: Path) -> None:
    """Write the weights, with what is needed to use them in the file's metadata."""
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, path, metadata=card.to_metadata())


def export_onnx(model: torch.nn.Module, card: ModelCard, path: Path) -> None:
    """Write the model as one ONNX graph from raw pixels uint8 [B,H,W,channels] to the probabilities of both faces."""
    _check_onnx()
    whole = WithPreparation(_for_export(copy.deepcopy(model)), card)
    _write_graph(whole, card, path, metadata=card.to_metadata())


def _export_committee(committee: Committee, format: str, path: Path) -> None:
    """Write all members, with what is needed to use them; as ONNX the rule is in the graph."""
    predictor, about = committee.torch_predictor, committee.about
    if len(about.members) > MOST_MEMBERS:
        raise ConfigError(f"{len(about.members)} members are too many for one file: it holds {MOST_MEMBERS}")
    if format == "safetensors":
        if committee.rule not in RULES:
            raise ConfigError(
                f"a .safetensors file names its rule, and {committee.rule!r} is not built in: export it as onnx, where "
                "the rule is in the graph"
            )
        save_file(_all_weights(committee), path, metadata=about.to_metadata())
        return
    _check_onnx()
    members = [_for_export(copy.deepcopy(predictor.models.get(client).module)) for client in committee.members]
    whole = CommitteeGraph(members, about.model, predictor.rule)
    try:
        _write_graph(whole, about.model, path, metadata=about.to_metadata())
    except torch.onnx.OnnxExporterError as error:
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise ConfigError(
            f"rule {committee.rule!r} or a member's network cannot be written as ONNX ({reason}): choose another rule, "
            "or export it as safetensors"
        ) from error


def _all_weights(committee: Committee) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for client in committee.members:
        module = committee.torch_predictor.models.get(client).module
        prefix = MEMBER.format(client=client)
        weights |= {prefix + name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}
    return weights


def _check_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"writing ONNX needs {' and '.join(missing)}: {install_hint('onnx')}")


def _write_graph(whole: torch.nn.Module, card: ModelCard, path: Path, *, metadata: Mapping[str, str]) -> None:
    example = torch.from_numpy(np.zeros((2, *card.input_shape), dtype=card.dtype))
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # the exporter's own: deprecations inside torch, operators that we do not use
        program = torch.onnx.export(
            whole.eval(),
            (example,),
            input_names=[card.kind_of_data.input_name],
            output_names=list(FACE_NAMES),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    assert program is not None, "the exporter of today returns a program"
    program.model.metadata_props.update(metadata)
    program.save(path, external_data=False)


def _for_export(model: torch.nn.Module) -> torch.nn.Module:
    return model.cpu().to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload, no-any-return]


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
