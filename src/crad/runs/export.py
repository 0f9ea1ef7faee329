"""A member's selected model as files that others can load: safetensors, and ONNX where its exporter is there.

Under the balanced loss a model has two faces: plain, for images from anywhere, and with the logarithm of the member's
class shares added to its logits, for images like the member's own. The files have both, and say which is which.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from crad.errors import ConfigError
from crad.federation.context import RunContext
from crad.federation.federated_data import FederatedData
from crad.federation.peer import PeerSpec, first_model
from crad.federation.tasks import load_tensors

FACES = (
    "plain logits: for images from anywhere; logits + log_prior: for images in which classes are as frequent as among "
    "the owner's"
)
MODEL = "model."  # before the names of a resting state's weights


class WithPreparation(torch.nn.Module):
    """Takes pixels from 0 to 255 and gives class probabilities: nothing has to be known beside the file."""

    def __init__(self, model: torch.nn.Module, data: FederatedData, log_prior_C: torch.Tensor | None = None) -> None:
        super().__init__()
        self.model = model
        self.log_prior_C = None if log_prior_C is None else torch.nn.Buffer(log_prior_C.cpu().clone())
        self.mean = torch.nn.Buffer(data.preprocessor.mean.clone())
        self.std = torch.nn.Buffer(data.preprocessor.std.clone())

    def forward(self, pixels: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Pixels [B,channels,H,W] as floats to probabilities [B,C]; with a prior plain ones and local ones."""
        logits_BC = self.model((pixels - self.mean) / self.std)
        plain_BC = torch.softmax(logits_BC, dim=1)
        if self.log_prior_C is None:
            return plain_BC
        return plain_BC, torch.softmax(logits_BC + self.log_prior_C, dim=1)


def trained_model(context: RunContext, member: PeerSpec, state: Path) -> torch.nn.Module:
    """Return a member's model as its resting state has it, on the CPU and for use, not for training."""
    model = first_model(context, member, seed=0)
    model.load_state_dict(
        {name[len(MODEL) :]: tensor for name, tensor in load_tensors(state).items() if name.startswith(MODEL)}
    )
    return model.cpu().to(memory_format=torch.contiguous_format).eval().requires_grad_(False)  # type: ignore[call-overload, no-any-return]


def export_safetensors(
    model: torch.nn.Module,
    data: FederatedData,
    path: Path,
    *,
    architecture: str,
    log_prior_C: torch.Tensor | None = None,
) -> None:
    """Write the weights, with what is needed to use them in the file's metadata."""
    about = {
        "architecture": architecture,
        "classes": json.dumps(list(data.dataset.class_names)),
        "image_shape": json.dumps([*data.dataset.image_size, data.dataset.in_channels]),
        "mean": json.dumps(data.preprocessor.mean.flatten().tolist()),
        "std": json.dumps(data.preprocessor.std.flatten().tolist()),
    }
    if log_prior_C is not None:
        about |= {"log_prior": json.dumps(log_prior_C.tolist()), "faces": FACES}
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path, metadata=about)


def export_onnx(
    model: torch.nn.Module, data: FederatedData, path: Path, *, log_prior_C: torch.Tensor | None = None
) -> None:
    """Write the model with its preparation as one ONNX graph: pixels 0..255 [B,channels,H,W] in, probabilities out.

    With a prior there is a second output, `local_probabilities`.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"writing ONNX needs {' and '.join(missing)}: pip install 'crad[onnx]'")
    sides = data.dataset.image_size
    example = torch.zeros(2, data.dataset.in_channels, *sides)
    whole = WithPreparation(model, data, log_prior_C).cpu().eval()
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # the exporter's own: deprecations inside torch, operators that we do not use
        torch.onnx.export(
            whole,
            (example,),
            path,
            input_names=["pixels"],
            output_names=["probabilities"] if log_prior_C is None else ["probabilities", "local_probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            dynamo=True,
            verbose=False,
        )


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
