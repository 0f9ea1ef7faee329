"""A trained model for use: raw samples in, class names or probabilities out.

Shapes: N samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from crad.errors import ConfigError, RunError, unknown_name
from crad.inference.engine import TeacherEngine
from crad.models import ARCHITECTURES, Architecture, build_model
from crad.models.timm_models import is_timm
from crad.plugins import OBJECT, passing
from crad.prediction.model_card import ModelCard
from crad.randomness import repeatable
from crad.training.evaluation import EVALUATION_BATCH, PREPARED_FROM, evaluation_mode

Face = Literal["global", "local"]
LARGEST_PROBE = 2**20  # values of a sample on which a model is tried: an image of 1024 x 1024
FACES: tuple[Face, ...] = get_args(Face)
Probabilities = NDArray[np.float32]  # [N, C]
Samples = NDArray[Any]  # [N, ...] as a kind of data has them


class Predictor(Protocol):
    """Runs a model on raw samples: images uint8 [N, H, W, channels], rows of a table float32 [N, F]."""

    def __call__(self, images: Samples, face: Face) -> Probabilities:
        """Return class probabilities [N, C]."""
        ...


class TrainedModel:
    """A client's model with its preprocessing and class names: takes images as they were given to the run.

    It has two faces. "global", the model as it is, is for images from anywhere; "local", with the logarithm of its
    owner's class shares added to the logits, for images like the owner's own. Under the plain loss both are the same.

    Example:
        >>> import crad
        >>> model = crad.load_model("model.safetensors")  # doctest: +SKIP
        >>> model.predict(images)  # doctest: +SKIP
        array(['cat', 'dog'], dtype='<U3')
    """

    def __init__(self, card: ModelCard, predictor: Predictor) -> None:
        self.card = card
        self._predictor = predictor

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the class names, in the order of the columns of `predict_proba`."""
        return self.card.class_names

    @property
    def module(self) -> torch.nn.Module:
        """Return the network itself (normalised inputs [N, channels, H, W] to logits), to train on or to look into."""
        if not isinstance(self._predictor, TorchPredictor):
            raise ConfigError("a model from an ONNX file is a graph without a torch module: load the .safetensors")
        return self._predictor.module

    def predict(self, x: object, face: Face = "global", *, as_index: bool = False) -> NDArray[Any]:
        """Return the most probable class of every image by name, or with `as_index` by its place in `classes`.

        Example:
            >>> result.models[0].predict(x_test)  # doctest: +SKIP
            array(['benign', 'malignant'], dtype='<U9')
        """
        best: NDArray[Any] = self.predict_proba(x, face).argmax(axis=1)
        return best if as_index else np.array(self.classes)[best]

    def predict_proba(self, x: object, face: Face = "global") -> Probabilities:
        """Return class probabilities [N, C] of raw images: numpy or torch, uint8 [N,H,W], [N,H,W,C] or [N,C,H,W].

        Of a table: a frame with its columns, or numbers [N, F] in their order. Of texts: a list of them, a frame with
        their columns, or token ids [N, L]. A single sample is a batch of one.

        Example:
            >>> result.models[0].predict_proba(x_test, face="local").sum(axis=1)  # doctest: +SKIP
            array([1., 1.], dtype=float32)
        """
        if face not in FACES:
            raise unknown_name("face", face, FACES)
        said = self._predictor(self.card.kind_of_data.batch(x, self.card), face)
        silent = np.flatnonzero(~np.isfinite(said).all(axis=1))
        if len(silent):
            raise RunError(
                f"no finite numbers come out on input {silent[0]}: look at that input, or take another model"
            )
        return said

    def __repr__(self) -> str:
        sides = "x".join(map(str, self.card.input_shape))
        words = self.card.kind_of_data.words
        return f"<TrainedModel {self.card.architecture}: {words.several} {sides}, {len(self.classes)} classes>"


class TorchPredictor:
    """Runs a network as a run's own evaluation does, to the same bits on a CPU."""

    def __init__(self, module: torch.nn.Module, card: ModelCard) -> None:
        self.module: torch.nn.Module = module.to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        self.card, self._preprocessor = card, card.preprocessor()
        prior = card.log_prior
        self._log_prior_C = None if prior is None else torch.tensor(prior)
        self._is_ours = Architecture.parse(card.architecture).name in ARCHITECTURES

    def __call__(self, images: Samples, face: Face) -> Probabilities:
        """Return class probabilities [N, C]."""
        logits_BC = self.logits(images)
        if face == "local" and self._log_prior_C is not None:
            logits_BC = logits_BC + self._log_prior_C
        said: Probabilities = torch.softmax(logits_BC, dim=1).numpy()
        return said

    @torch.no_grad()
    def logits(self, images: Samples) -> torch.Tensor:
        """Return what the network itself gives for raw images, [N, C], without any prior."""
        parts = [torch.empty(0, self.card.num_classes)]
        with repeatable(0, device="cpu"), evaluation_mode(self.module):
            is_prepared = self._is_ours and len(images) >= PREPARED_FROM
            run = TeacherEngine(device="cpu").prepare(self.module, key="own") if is_prepared else self.module
            for start in range(0, len(images), EVALUATION_BATCH):
                samples = self.card.kind_of_data.to_tensor(images[start : start + EVALUATION_BATCH], self.card)
                parts.append(run(self._preprocessor.inputs(samples)))
        return torch.cat(parts)

    @property
    def is_finite(self) -> bool:
        """Return whether all its weights and buffers are numbers."""
        return all(bool(tensor.isfinite().all()) for tensor in self.module.state_dict().values())

    @property
    def nbytes(self) -> int:
        """Return the bytes of the network's weights and buffers."""
        return sum(tensor.nbytes for tensor in self.module.state_dict().values())


class OnnxPredictor:
    """Runs an exported graph, which has the preprocessing and both faces inside."""

    def __init__(self, session: Any, card: ModelCard) -> None:  # noqa: ANN401  # onnxruntime has no types
        self._session, self._card = session, card

    def __call__(self, images: Samples, face: Face) -> Probabilities:
        """Return class probabilities [N, C]."""
        name = "probabilities" if face == "global" else "local_probabilities"
        parts = [np.empty((0, self._card.num_classes), dtype=np.float32)]
        for start in range(0, len(images), EVALUATION_BATCH):
            batch = {self._card.kind_of_data.input_name: images[start : start + EVALUATION_BATCH]}
            try:
                [said] = self._session.run([name], batch)
            except Exception as error:  # onnxruntime has a kind of its own for each fault
                reason = " ".join(str(error).split())[:200]
                raise RunError(f"this ONNX graph is not what its metadata says ({reason}): export it again") from error
            if said.shape[1:] != (self._card.num_classes,):
                found = "x".join(map(str, said.shape[1:]))
                raise RunError(
                    f"this ONNX graph is not what its metadata says ({found} classes for {self._card.num_classes} "
                    "names): export it again"
                )
            parts.append(said)
        return np.concatenate(parts)


def probe(card: ModelCard) -> Samples:
    """Return raw samples of a model's form to try it on: two, or none where a file claims that they are huge."""
    if max(math.prod(card.input_shape), math.prod(card.image_size)) > LARGEST_PROBE:
        return np.empty((0, *card.input_shape), dtype=card.dtype)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (2, *card.input_shape), dtype=np.uint8).astype(card.dtype)
    return values % card.details["vocabulary"] if "vocabulary" in card.details else values


def is_built_in(architecture: str) -> bool:
    """Return whether a name is one of this package's networks, or timm's: nothing of a user's own."""
    name = Architecture.parse(architecture).name
    return name in ARCHITECTURES or is_timm(name)


def empty_network(
    card: ModelCard, *, build: Callable[[int, int], object] | None = None, seed: int = 0
) -> torch.nn.Module:
    """Build a card's network, untrained; `build` in place of what its name means."""
    architecture = Architecture.parse(card.architecture)
    if build is None:
        return build_model(architecture, **vars(card.network_shape), seed=seed)
    given = f"{OBJECT}<given>"  # no object that is passed to a run is called so
    with passing({given: build}):
        return build_model(Architecture(given, architecture.width), **vars(card.network_shape), seed=seed)
