"""Models and committees from the files that `export.py` wrote. Nothing is imported because a file says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from crad.aggregation import RULES
from crad.errors import ConfigError, CradError, RunError, install_hint
from crad.models import ARCHITECTURES, Architecture
from crad.models.timm_models import is_timm
from crad.prediction.committee import Committee, CommitteePredictor, MemberModels
from crad.prediction.committee_card import CommitteeCard, is_committee
from crad.prediction.model_card import ModelCard
from crad.prediction.trained_model import OnnxPredictor, TorchPredictor, TrainedModel, empty_network

MEMBER = "member.{client}."  # before the names of a member's weights

Build = Callable[[int, int], object]  # a network of one's own, from the number of classes and of channels


def load_model(path: Path | str, *, build: Build | None = None) -> TrainedModel:
    """Load a model that `crad export`, `Result.export` or `crad peer join` wrote: .safetensors, or .onnx.

    A file of a committee gives a `Committee`. A .safetensors file of a network of your own names the function that
    builds it; code is never imported because a file says so, so pass it as `build`. An .onnx file needs no code, and
    onnxruntime (the extra `onnx`).

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


def _load_safetensors(path: Path, build: Build | None) -> TrainedModel:
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error
    if is_committee(about):
        return _load_committee(path, about, build)
    card = ModelCard.from_metadata(about, where=str(path))
    return TrainedModel(card, _load_network(path, card, build))


def _load_committee(path: Path, about: Mapping[str, str], build: Build | None) -> Committee:
    card = CommitteeCard.from_metadata(about, where=str(path))
    named = card.settings["rule"]
    if named not in RULES:
        raise ConfigError(f"{path}: its rule {named!r} is none of this version's: {', '.join(RULES)}")
    try:
        rule = card.committee_rule()
    except CradError as error:
        raise RunError(f"{path} is no committee that crad exported: {error}") from error
    cards = {member.client: member.card for member in card.members}
    models = MemberModels(lambda client: _load_network(path, cards[client], build, MEMBER.format(client=client)))
    for client in cards:
        models.get(client)  # damaged or missing weights are found now, not in the middle of a prediction
    return Committee(card, CommitteePredictor(card, models, rule))


def _load_network(path: Path, card: ModelCard, build: Build | None, prefix: str = "") -> TorchPredictor:
    """Read the weights under a prefix into a card's network."""
    name = Architecture.parse(card.architecture).name
    is_known = name in ARCHITECTURES or is_timm(name)
    if build is None and not is_known:
        raise ConfigError(
            f"{path}: its network is {card.architecture!r}, which is not built in, and no code is imported because a "
            "file names it: pass the function, crad.load_model(..., build=...), or use an .onnx file"
        )
    # Of a committee, only networks that are not built in are the caller's own.
    module = empty_network(card, build=None if prefix and is_known else build)
    try:
        module.load_state_dict(_tensors_under(path, prefix))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{path}: its weights do not fit the network {card.architecture!r}: {reason}") from error
    return TorchPredictor(module.requires_grad_(False), card)


def _tensors_under(path: Path, prefix: str) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118  # no mapping
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} cannot be read as safetensors ({error}): export it again")


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
    if is_committee(about):
        whole = CommitteeCard.from_metadata(about, where=str(path))
        return Committee(whole, OnnxPredictor(session, whole.model))
    card = ModelCard.from_metadata(about, where=str(path))
    return TrainedModel(card, OnnxPredictor(session, card))
