"""Models and committees from the files that `export.py` wrote. Nothing is imported because a file says so."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from crad.aggregation import RULES
from crad.errors import ConfigError, CradError, RunError, install_hint, printable
from crad.models import Architecture
from crad.models.allowance import count_values
from crad.models.timm_models import is_timm
from crad.prediction.committee import Committee, CommitteePredictor, LeftOutError, MemberModels, check_numbers
from crad.prediction.committee_card import CommitteeCard, is_committee
from crad.prediction.model_card import ModelCard
from crad.prediction.trained_model import OnnxPredictor, TorchPredictor, TrainedModel, empty_network, is_built_in

MEMBER = "member.{client}."  # before the names of a member's weights
_MEMBER = re.compile(r"member\.\d+\.")

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
    return TrainedModel(card, _load_network(StoredWeights(path), card, build))


def _load_committee(path: Path, about: Mapping[str, str], build: Build | None) -> Committee:
    card = CommitteeCard.from_metadata(about, where=str(path))
    named = card.settings["rule"]
    if named not in RULES:
        raise ConfigError(f"{path}: its rule {named!r} is none of this version's: {', '.join(RULES)}")
    try:
        rule = card.committee_rule()
    except CradError as error:
        raise RunError(f"{path} is no committee that crad exported: {error}") from error
    cards, weights = {member.client: member.card for member in card.members}, StoredWeights(path)
    models = MemberModels(lambda client: _load_network(weights, cards[client], build, MEMBER.format(client=client)))
    left_out = {}
    for client in cards:  # damaged or missing weights are found now, not in the middle of a prediction
        model = models.get(client)
        try:
            check_numbers(client, model, temperature=rule.temperature)
        except LeftOutError as error:
            left_out[client] = str(error)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:  # of a network that is not what it says
            left_out[client] = f"client {client} cannot be run ({printable(' '.join(str(error).split()))})"
    if len(left_out) == len(cards):
        raise RunError(f"{path}: nobody is left for a committee: {printable('; '.join(left_out.values()))}")
    if left_out:
        kept = [place for place, client in enumerate(cards) if client not in left_out]
        card, rule = card.select([client for client in cards if client not in left_out]), rule.select(kept)
    return Committee(card, CommitteePredictor(card, models, rule), left_out=left_out)


class StoredWeights:
    """The tensors of one file by what their names begin with; its header is read once, however many are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = _opened(path)  # as long as somebody may ask: it is mapped, not read
            self._names: dict[str, list[str]] = {"": list(self._file.keys())}  # the whole, and by member
            for name in self._names[""]:
                if start := _MEMBER.match(name):
                    self._names.setdefault(start[0], []).append(name)
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, error) from error

    def count(self, prefix: str) -> int:
        """Return how many values lie under a prefix."""
        return sum(math.prod(self._file.get_slice(name).get_shape()) for name in self._names.get(prefix, ()))

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Read the tensors whose names begin so, by the rest of their names."""
        try:
            return {name.removeprefix(prefix): self._file.get_tensor(name) for name in self._names.get(prefix, ())}
        except (SafetensorError, OSError) as error:
            raise _unreadable(self.path, error) from error


def _load_network(weights: StoredWeights, card: ModelCard, build: Build | None, prefix: str = "") -> TorchPredictor:
    """Read the weights under a prefix into a card's network."""
    path = weights.path
    is_known = is_built_in(card.architecture)
    if build is None and not is_known:
        raise ConfigError(
            f"{path}: its network is {card.architecture!r}, which is not built in, and no code is imported because a "
            "file names it: pass the function, crad.load_model(..., build=...), or use an .onnx file"
        )
    # Of a committee, only networks that are not built in are the caller's own.
    own = None if prefix and is_known else build
    _check_size(weights, card, prefix, is_known=own is None)
    module = empty_network(card, build=own)
    stored, ours = weights.under(prefix), module.state_dict()
    other = next((key for key, one in stored.items() if key in ours and one.dtype != ours[key].dtype), None)
    if other is not None:
        raise RunError(
            f"{path}: its weights do not fit the network {card.architecture!r}: '{printable(other)}' is of "
            f"{stored[other].dtype}, not {ours[other].dtype}"
        )
    try:
        module.load_state_dict(stored)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{path}: its weights do not fit the network {card.architecture!r}: {reason}") from error
    return TorchPredictor(module.requires_grad_(False), card)


def _check_size(weights: StoredWeights, card: ModelCard, prefix: str, *, is_known: bool) -> None:
    """Refuse a network that is larger than the weights that are there for it, before it takes any memory."""
    architecture = Architecture.parse(card.architecture)
    if not is_known or is_timm(architecture.name):
        return
    wanted, found = count_values(architecture, card.network_shape), weights.count(prefix)
    if wanted > found:
        raise RunError(
            f"{weights.path}: its weights do not fit the network {card.architecture!r}, which has {wanted:,} values: "
            f"there are {found:,}"
        )


def _opened(path: Path) -> Any:  # noqa: ANN401  # safetensors has no types
    return safe_open(path, "pt")


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
