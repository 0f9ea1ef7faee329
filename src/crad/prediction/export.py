"""A trained model as one file that others can load: safetensors, and ONNX where its exporter is there.

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from crad.errors import ConfigError, RunError, install_hint, unknown_name
from crad.federation.context import RunContext
from crad.federation.peer import PeerSpec, first_model
from crad.files import replacing
from crad.prediction.model_card import ModelCard
from crad.prediction.run_models import stored_weights
from crad.prediction.trained_model import TrainedModel

SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx"}
FACE_NAMES = ("probabilities", "local_probabilities")  # of the graph's outputs


class WithPreparation(torch.nn.Module):
    """Takes raw pixels and gives class probabilities of both faces: nothing has to be known beside the file."""

    def __init__(self, model: torch.nn.Module, card: ModelCard) -> None:
        super().__init__()
        self.model = model
        preprocessor = card.preprocessor()
        self.mean, self.std = torch.nn.Buffer(preprocessor.mean), torch.nn.Buffer(preprocessor.std)
        self.log_prior_C = torch.nn.Buffer(torch.tensor(card.log_prior or (0.0,) * card.num_classes))
        height, width, _ = card.input_shape
        below, right = (max(0, (card.pad_to or 0) - side) for side in (height, width))
        self.border = (right // 2, right - right // 2, below // 2, below - below // 2)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take pixels uint8 [B,H,W,channels]; return probabilities [B,C], plain and with the owner's prior."""
        images = pixels.permute(0, 3, 1, 2).to(torch.float32)
        if any(self.border):
            images = F.pad(images, self.border)
        logits_BC = self.model((images - self.mean) / self.std)
        return torch.softmax(logits_BC, dim=1), torch.softmax(logits_BC + self.log_prior_C, dim=1)


def trained_model(context: RunContext, member: PeerSpec, state: Path) -> torch.nn.Module:
    """Return a member's model as its resting state has it, on the CPU and for use, not for training."""
    model = first_model(context, member, seed=0)
    model.load_state_dict(stored_weights(state))
    return _for_export(model).requires_grad_(False)


def file_name(format: str, client: int) -> str:  # as people call it
    """Return what a client's exported model is called where nobody says otherwise."""
    if format not in SUFFIXES:
        raise unknown_name("format", format, SUFFIXES)
    return f"client-{client}{SUFFIXES[format]}"


def export_model(model: TrainedModel, format: str, path: Path) -> Path:
    """Write a model in one of the formats, whole or not at all; return where."""
    if format not in SUFFIXES:
        raise unknown_name("format", format, SUFFIXES)
    if path.is_dir():
        example = path / f"model{SUFFIXES[format]}"
        raise ConfigError(f"{path} is a folder: name the file to write, such as {example}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} lies in no folder that exists: make {path.parent} first, or choose another place")
    write = export_safetensors if format == "safetensors" else export_onnx
    try:
        with replacing(path) as beside:
            write(model.module, model.card, beside)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
    return path


def export_safetensors(model: torch.nn.Module, card: ModelCard, path: Path) -> None:
    """Write the weights, with what is needed to use them in the file's metadata."""
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, path, metadata=card.to_metadata())


def export_onnx(model: torch.nn.Module, card: ModelCard, path: Path) -> None:
    """Write the model as one ONNX graph from raw pixels uint8 [B,H,W,channels] to the probabilities of both faces."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"writing ONNX needs {' and '.join(missing)}: {install_hint('onnx')}")
    example = torch.zeros(2, *card.input_shape, dtype=torch.uint8)
    whole = WithPreparation(_for_export(copy.deepcopy(model)), card).eval()
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # the exporter's own: deprecations inside torch, operators that we do not use
        program = torch.onnx.export(
            whole,
            (example,),
            input_names=["pixels"],
            output_names=list(FACE_NAMES),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    assert program is not None, "the exporter of today returns a program"
    program.model.metadata_props.update(card.to_metadata())
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
