"""The models of a run at its selected round, one per client, each read when somebody asks for it.

What it takes to use them stands in `models.json` of the run directory, so that neither the data nor its division has to
be made again.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from torch import Tensor, nn

from crad.config import Experiment
from crad.errors import ConfigError, CradError, RunError
from crad.federation.context import RunContext, build_run_context
from crad.federation.peer import PeerSpec, log_prior
from crad.federation.tasks import load_tensors
from crad.methods import resolve_method
from crad.models import load_first_weights
from crad.plugins import OBJECT, passing
from crad.prediction.model_card import ModelCard, make_card
from crad.prediction.trained_model import TorchPredictor, TrainedModel, empty_network
from crad.randomness import torch_seed
from crad.runs.checkpoint import saved_rounds, states_at
from crad.runs.directory import RunDirectory
from crad.runs.records import Record

MODELS_FILE = "models.json"
MODEL = "model."  # before the names of a resting state's weights


class TemporaryStates:
    """A folder of states that is there as long as somebody holds this, or until the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="crad-"))
        # A worker that is about to be ended may still write there.
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def models_record(context: RunContext, members: Sequence[PeerSpec]) -> Record:
    """Return `models.json`: everything needed to use the models of a run beside their weights."""
    card = make_card(context.data, architecture="")
    peers = []
    for member in members:
        if not member.clients:
            continue  # a helper without data is no classifier of anybody
        prior_C = log_prior(context, member.clients, peer=member.index)
        peers.append(
            {
                "index": member.index,
                "clients": list(member.clients),
                "architecture": member.architecture.id,
                "weights": None if member.architecture.weights is None else str(member.architecture.weights),
                "draws_as": context.adversary.acts_as(member.index),
                "log_prior": None if prior_C is None else prior_C.tolist(),
            }
        )
    return {
        "schema": 1,
        "classes": list(card.class_names),
        "input_shape": list(card.input_shape),
        "pad_to": card.pad_to,
        "mean": list(card.mean),
        "std": list(card.std),
        "peers": peers,
    }


@dataclass(frozen=True, eq=False)
class RunModels(Sequence[TrainedModel]):
    """The trained models of a run: `models[3]` is client 3's, at the round that the summary reports."""

    experiment: Experiment
    record: Record = field(repr=False)
    states: Mapping[int, Path | None] = field(repr=False)
    round_index: int
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False)  # networks that were passed in memory
    folder: TemporaryStates | None = field(default=None, repr=False)  # holds the states where no run directory does

    def __len__(self) -> int:
        return self.experiment.clients

    def __iter__(self) -> Iterator[TrainedModel]:
        return (self[client] for client in range(len(self)))

    @overload
    def __getitem__(self, client: int) -> TrainedModel: ...

    @overload
    def __getitem__(self, client: slice) -> list[TrainedModel]: ...

    def __getitem__(self, client: int | slice) -> TrainedModel | list[TrainedModel]:
        """Read a client's model; an unknown client is refused."""
        if isinstance(client, slice):
            return [self[one] for one in range(*client.indices(len(self)))]
        number = client + len(self) if client < 0 else client
        if not 0 <= number < len(self):
            raise UnknownClientError(f"client {client} does not exist; choose 0 to {len(self) - 1}")
        peer = next(one for one in self.record["peers"] if number in one["clients"])
        card = self._card(number, peer)
        with passing(self.objects):
            module = empty_network(card, seed=torch_seed(self.experiment.seed, "peer", peer["draws_as"], "weights"))
        state, first = self.states[peer["index"]], peer.get("weights")
        if state is None and first is not None:  # it never learned: as it began
            load_first_weights(module, Path(first), name=peer["architecture"])
        elif state is not None:
            weights = stored_weights(state)
            check_fits(module, weights, name=peer["architecture"], where=state)
            module.load_state_dict(weights)
        return TrainedModel(card, TorchPredictor(module.requires_grad_(False), card))

    def _card(self, client: int, peer: Record) -> ModelCard:
        height, width, channels = self.record["input_shape"]
        prior = peer["log_prior"]
        return ModelCard(
            architecture=peer["architecture"],
            class_names=tuple(self.record["classes"]),
            input_shape=(height, width, channels),
            pad_to=self.record["pad_to"],
            mean=tuple(self.record["mean"]),
            std=tuple(self.record["std"]),
            log_prior=None if prior is None else tuple(prior),
            resize=self.experiment.resize,
            origin={
                "client": client,
                "round": self.round_index,
                "method": self.experiment.method,
                "dataset": self.experiment.dataset,
                "seed": self.experiment.seed,
            },
        )


class UnknownClientError(ConfigError, IndexError):
    """A client that the run does not have; an IndexError too, so that loops over models end."""


def stored_models(directory: RunDirectory, *, round_index: int, objects: Mapping[str, Any]) -> RunModels:
    """Return the models of a run directory; one of an earlier version needs its data once more."""
    experiment = directory.experiment()
    if round_index not in saved_rounds(directory.checkpoint_folder):
        raise RunError(
            f"{directory.path} has no checkpoint of round {round_index}, so its models are gone; run it again with "
            "another output"
        )
    states = states_at(directory.checkpoint_folder, round_index)
    if (directory.path / MODELS_FILE).is_file():
        record = directory.read_json(MODELS_FILE)
    else:
        with passing(objects):
            method = resolve_method(experiment.method, experiment.method_settings)
            context = build_run_context(experiment)
            record = models_record(context, method.roster(context))
    return RunModels(experiment, record, states, round_index, objects)


def stored_weights(state: Path) -> dict[str, Tensor]:
    """Return the weights and buffers of the model in a resting state."""
    try:
        tensors = load_tensors(state)
    except (OSError, CradError, ValueError) as error:
        raise RunError(f"the model in {state} cannot be read ({error})") from error
    return {name[len(MODEL) :]: tensor for name, tensor in tensors.items() if name.startswith(MODEL)}


def check_fits(module: nn.Module, weights: Mapping[str, Tensor], *, name: str, where: Path) -> None:
    """Refuse weights of another network: a function that was passed again may have been changed."""
    ours = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    theirs = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    different = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    if different:
        key = different[0]
        raise ConfigError(
            f"model {name.removeprefix(OBJECT)!r} is another network now: {key!r} is {ours.get(key, 'not there')}, and "
            f"{theirs.get(key, 'not there')} in {where}: pass the one that the run began with"
        )
