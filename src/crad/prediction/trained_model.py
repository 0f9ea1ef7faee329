"""A trained model for use: raw images in, class names or probabilities out. From a run, or from a file.

Shapes: N images, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from crad.data.dataset import Images
from crad.data.preprocessing import image_tensor
from crad.data.readers.arrays import to_batch
from crad.errors import ConfigError, RunError, install_hint, unknown_name
from crad.inference.engine import TeacherEngine
from crad.models import ARCHITECTURES, Architecture, build_model
from crad.models.timm_models import is_timm
from crad.plugins import OBJECT, passing
from crad.prediction.model_card import ModelCard
from crad.randomness import repeatable
from crad.training.evaluation import EVALUATION_BATCH, PREPARED_FROM, evaluation_mode

Face = Literal["global", "local"]
FACES: tuple[Face, ...] = get_args(Face)
Probabilities = NDArray[np.float32]  # [N, C]


class Predictor(Protocol):
    """Runs a model on raw images uint8 [N, H, W, channels]."""

    def __call__(self, images: Images, face: Face) -> Probabilities:
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

        A single image is a batch of one.

        Example:
            >>> result.models[0].predict_proba(x_test, face="local").sum(axis=1)  # doctest: +SKIP
            array([1., 1.], dtype=float32)
        """
        if face not in FACES:
            raise unknown_name("face", face, FACES)
        images = to_batch(x, self.card.input_shape, resize=self.card.resize)
        return self._predictor(images, face)

    def __repr__(self) -> str:
        sides = "x".join(map(str, self.card.input_shape))
        return f"<TrainedModel {self.card.architecture}: images {sides}, {len(self.classes)} classes>"


class TorchPredictor:
    """Runs a network as a run's own evaluation does, to the same bits on a CPU."""

    def __init__(self, module: torch.nn.Module, card: ModelCard) -> None:
        self.module: torch.nn.Module = module.to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        self._card, self._preprocessor = card, card.preprocessor()
        prior = card.log_prior
        self._log_prior_C = None if prior is None else torch.tensor(prior)
        self._is_ours = Architecture.parse(card.architecture).name in ARCHITECTURES

    @torch.no_grad()
    def __call__(self, images: Images, face: Face) -> Probabilities:
        """Return class probabilities [N, C]."""
        parts = [np.empty((0, self._card.num_classes), dtype=np.float32)]
        with repeatable(0, device="cpu"), evaluation_mode(self.module):
            is_prepared = self._is_ours and len(images) >= PREPARED_FROM
            run = TeacherEngine(device="cpu").prepare(self.module, key="own") if is_prepared else self.module
            for start in range(0, len(images), EVALUATION_BATCH):
                pixels = image_tensor(images[start : start + EVALUATION_BATCH], pad_to=self._card.pad_to)
                logits_BC = run(self._preprocessor.inputs(pixels))
                if face == "local" and self._log_prior_C is not None:
                    logits_BC = logits_BC + self._log_prior_C
                parts.append(torch.softmax(logits_BC, dim=1).numpy())
        return np.concatenate(parts)


class OnnxPredictor:
    """Runs an exported graph, which has the preprocessing and both faces inside."""

    def __init__(self, session: Any, card: ModelCard) -> None:  # noqa: ANN401  # onnxruntime has no types
        self._session, self._card = session, card

    def __call__(self, images: Images, face: Face) -> Probabilities:
        """Return class probabilities [N, C]."""
        name = "probabilities" if face == "global" else "local_probabilities"
        parts = [np.empty((0, self._card.num_classes), dtype=np.float32)]
        for start in range(0, len(images), EVALUATION_BATCH):
            [said] = self._session.run([name], {"pixels": images[start : start + EVALUATION_BATCH]})
            parts.append(said)
        return np.concatenate(parts)


def load_model(path: Path | str, *, build: Callable[[int, int], object] | None = None) -> TrainedModel:
    """Load a model that `crad export`, `Result.export` or `crad peer join` wrote: .safetensors, or .onnx.

    A .safetensors file of a network of your own names the function that builds it; code is never imported because a
    file says so, so pass it as `build`. An .onnx file needs no code, and onnxruntime (the extra `onnx`).

    Example:
        >>> model = crad.load_model("model.safetensors")  # doctest: +SKIP
        >>> model.predict_proba(images, face="local")  # doctest: +SKIP
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path} is no file: name a model that crad export wrote, .safetensors or .onnx")
    readers: Mapping[str, Callable[[], TrainedModel]] = {
        ".safetensors": lambda: _load_safetensors(path, build),
        ".onnx": lambda: _load_onnx(path),
    }
    if path.suffix not in readers:
        raise ConfigError(f"{path}: expected a model that crad export wrote, .safetensors or .onnx")
    return readers[path.suffix]()


def _load_safetensors(path: Path, build: Callable[[int, int], object] | None) -> TrainedModel:
    try:
        with safe_open(path, "pt") as file:
            card = ModelCard.from_metadata(file.metadata() or {}, where=str(path))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} cannot be read as safetensors ({error}): export it again") from error
    name = Architecture.parse(card.architecture).name
    if build is None and name not in ARCHITECTURES and not is_timm(name):
        raise ConfigError(
            f"{path}: its network is {card.architecture!r}, which is not built in, and no code is imported because a "
            "file names it: pass the function, crad.load_model(..., build=...), or use an .onnx file"
        )
    module = empty_network(card, build=build)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{path}: its weights do not fit the network {card.architecture!r}: {reason}") from error
    return TrainedModel(card, TorchPredictor(module.requires_grad_(False), card))


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


def _load_onnx(path: Path) -> TrainedModel:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(f"running {path} needs onnxruntime: {install_hint('onnx')}") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a kind of its own for each fault
        raise RunError(
            f"{path} cannot be read as ONNX ({' '.join(str(error).split())[:200]}): export it again"
        ) from error
    about = session.get_modelmeta().custom_metadata_map
    if "format" not in about:
        raise RunError(
            f"{path} does not say how images are prepared, as files of earlier versions do not: export it again"
        )
    card = ModelCard.from_metadata(about, where=str(path))
    return TrainedModel(card, OnnxPredictor(session, card))
