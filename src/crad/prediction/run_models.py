"""The models of a run at its selected round, one per client, each read when somebody asks for it.

What it takes to use them stands in `models.json` of the run directory, so that neither the data nor its division has to
be made again.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
from pydantic import ValidationError
from torch import Tensor, nn

from crad.config import Experiment
from crad.data.columns import columns_from_json
from crad.data.dataset import Labels
from crad.data.federated_data import build_federated_data
from crad.errors import ConfigError, CradError, RunError, client_number, escaped, printable
from crad.federation.attacks import published_weights
from crad.federation.class_statistics import class_statistics
from crad.federation.context import RunContext, build_run_context
from crad.federation.message import Statistics
from crad.federation.peer import PeerSpec, fit_statistics, log_prior, training_indices, training_samples
from crad.federation.peer_evaluation import Evaluation
from crad.federation.tasks import load_tensors
from crad.methods import resolve_method
from crad.models import InputShape, load_first_weights, preparing_layer, set_own_statistics
from crad.plugins import OBJECT, is_object, passing
from crad.prediction.model_card import ModelCard, make_card
from crad.prediction.models_check import check_record
from crad.prediction.trained_model import Samples, TorchPredictor, TrainedModel, empty_network, is_built_in
from crad.randomness import torch_seed
from crad.runs.checkpoint import evaluations_at, saved_rounds, states_at
from crad.runs.directory import RunDirectory
from crad.runs.records import Record, partition_record

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
    peers, held_out = [], context.data.validation_counts()
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
                "train_counts": _train_counts(context, member),
                "validation_counts": [held_out[client] for client in member.clients],
                **_own_statistics(context, member),
            }
        )
    return {
        "schema": 1,
        "classes": list(card.class_names),
        "input_shape": list(card.input_shape),
        "pad_to": card.pad_to,
        "mean": list(card.mean),
        "std": list(card.std),
        **({} if card.kind == "image" else {"kind": card.kind, **card.kind_of_data.schema(context.data.dataset)}),
        **({} if card.stored_dtype is None else {"dtype": card.stored_dtype}),
        "peers": peers,
    }


def _own_statistics(context: RunContext, member: PeerSpec) -> Record:
    """Return by what a peer's network prepares samples before it has learned anything; images are prepared for all.

    Later they lie among its weights; who never took part has none.
    """
    layer = preparing_layer(member.architecture.name, context.input_shape)
    if layer is None:
        return {}
    fit_statistics(layer, context, training_samples(context, member.index, member.clients).samples.cpu())
    return {"own_statistics": {name: tensor.tolist() for name, tensor in layer.state_dict().items()}}


def with_statistics(record: Record, context: RunContext, evaluations: Mapping[int, Evaluation]) -> Record:
    """Return `models.json` with the class statistics that every client publishes of its model at the selected round.

    Attackers of a simulation publish other figures than they measured; those stand there. With them what every client
    counted of that model on its own validation half, where that was done: a committee is made from it without the data.
    """
    peers = []
    for peer in record["peers"]:
        evaluation = evaluations[peer["index"]]
        said = _said_of_itself(context, peer["index"], evaluation)
        counted = {} if evaluation.tallies is None else {"tallies": [asdict(one) for one in evaluation.tallies]}
        peers.append({**peer, "statistics": said.model_dump(mode="json"), **counted})
    return {**record, "peers": peers}


def _said_of_itself(context: RunContext, peer: int, evaluation: Evaluation) -> Statistics:
    """Return what a peer publishes of itself, with cross-entropies where its model gives numbers."""
    try:
        return class_statistics(context, peer, evaluation, with_cross_entropy=True)
    except ValidationError:  # its model overflows: that must not spoil a run that needs no cross-entropies
        return class_statistics(context, peer, evaluation)


def _train_counts(context: RunContext, member: PeerSpec) -> list[int]:
    """Return how many samples of each class a peer holds to train on."""
    labels = context.data.dataset.train_labels[training_indices(context, member.clients)]
    return [int(count) for count in np.bincount(labels, minlength=context.data.num_classes)]


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

    @property
    def num_classes(self) -> int:
        """Return C, the number of classes."""
        return len(self.record["classes"])

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
        asked = client_number(client, clients=len(self))
        number = asked + len(self) if asked < 0 else asked
        peer = self.peer_of(number)
        card = self._card(number, peer)
        state = self.states[peer["index"]]
        module = self._first_module(card, peer, is_needed=state is None)
        if state is not None:
            weights = stored_weights(state)
            check_fits(module, weights, name=peer["architecture"], where=state)
            module.load_state_dict(weights)
        return TrainedModel(card, TorchPredictor(module.requires_grad_(False), card))

    def published(self, client: int) -> TrainedModel:
        """Read what a client gives the others as its model: its own, but for some attackers of a simulation."""
        peer, model = self.peer_of(client), self[client]
        sender = _Publisher(
            index=peer["index"],
            model=model.module,
            experiment=self.experiment,
            input_shape=model.card.network_shape,
            first=partial(self._first_module, model.card, peer),
        )
        model.module.load_state_dict(published_weights(sender, self.round_index))
        return model

    def peer_of(self, client: int) -> Record:
        """Return what `models.json` says of the peer that holds a client's data; an unknown client is refused."""
        client = client_number(client, clients=len(self))
        if not 0 <= client < len(self):
            raise UnknownClientError(f"client {client} does not exist; choose 0 to {len(self) - 1}")
        found: Record = next(one for one in self.record["peers"] if client in one["clients"])
        return found

    def _first_module(self, card: ModelCard, peer: Record, *, is_needed: bool = True) -> nn.Module:
        """Build a client's network as it began; whoever will load other weights need not read its first ones."""
        with passing(self.objects):
            module = empty_network(card, seed=torch_seed(self.experiment.seed, "peer", peer["draws_as"], "weights"))
        first = peer.get("weights")
        if is_needed and first is not None:
            load_first_weights(module, Path(first), name=peer["architecture"])
        elif is_needed and "own_statistics" in peer:
            set_own_statistics(module, peer["own_statistics"])
        return module

    def _card(self, client: int, peer: Record) -> ModelCard:
        prior = peer["log_prior"]
        return ModelCard(
            architecture=peer["architecture"],
            class_names=tuple(self.record["classes"]),
            input_shape=tuple(self.record["input_shape"]),
            pad_to=self.record["pad_to"],
            mean=tuple(self.record["mean"]),
            std=tuple(self.record["std"]),
            log_prior=None if prior is None else tuple(prior),
            resize=self.experiment.resize,
            kind=self.record.get("kind", "image"),
            columns=columns_from_json(self.record.get("columns", ())),
            details=self.record.get("details", {}),
            stored_dtype=self.record.get("dtype"),
            rate=self.record.get("rate"),
            origin={
                "client": client,
                "round": self.round_index,
                "method": self.experiment.method,
                "dataset": self.experiment.dataset,
                "seed": self.experiment.seed,
            },
        )


@dataclass(frozen=True)
class _Publisher:
    """A client that is read back from its state, as the one who publishes its model."""

    index: int
    model: nn.Module
    experiment: Experiment
    input_shape: InputShape
    first: Callable[[], nn.Module]

    def first_model(self) -> nn.Module:
        """Return its network as it was before it had learned anything."""
        return self.first()


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
        written: object = directory.read_json(MODELS_FILE)
        where = directory.path / MODELS_FILE
        record = check_record(written, where=where, clients=experiment.clients, indices=states.keys())
    else:
        with passing(objects):
            method = resolve_method(experiment.method, experiment.method_settings)
            context = build_run_context(experiment)
            record = models_record(context, method.roster(context))
    return RunModels(experiment, record, states, round_index, objects)


def complete_models(models: RunModels, directory: RunDirectory) -> RunModels:
    """Return the models with what clients published of them; a directory of an earlier version needs its data again."""
    if all({"statistics", "train_counts"} <= peer.keys() for peer in models.record["peers"]):
        return models
    with passing(models.objects):
        method = resolve_method(models.experiment.method, models.experiment.method_settings)
        context = build_run_context(models.experiment)
        directory.check_same_data(partition_record(context.data))
        record = models_record(context, method.roster(context))
    evaluations = evaluations_at(directory.checkpoint_folder, models.round_index)
    return replace(models, record=with_statistics(record, context, evaluations))


def validation_half(models: RunModels, client: int, *, directory: RunDirectory | None) -> tuple[Samples, Labels]:
    """Return a client's own validation images and labels, from the run's data as it was divided."""
    experiment = models.experiment
    if is_object(experiment.dataset) and experiment.dataset not in models.objects:
        raise ConfigError(
            f"members are chosen on client {client}'s validation images, and the run's data was passed in memory: pass "
            "it again, crad.load(path, data=...).committee(client, size=...)"
        )
    with passing(models.objects):
        data = build_federated_data(experiment, device="cpu")
    if directory is not None:
        directory.check_same_data(partition_record(data))
    where = data.shards[client].validation
    if not len(where):
        raise RunError(f"client {client} has no validation images to choose members on: leave the size out")
    return data.dataset.train_samples[where], data.dataset.train_labels[where]


def stored_weights(state: Path) -> dict[str, Tensor]:
    """Return the weights and buffers of the model in a resting state."""
    try:
        tensors = load_tensors(state)
    except (OSError, CradError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        reason = "it is cut off" if isinstance(error, struct.error) else escaped(str(error))
        raise RunError(f"the model in {state} cannot be read ({reason})") from error
    return {name[len(MODEL) :]: tensor for name, tensor in tensors.items() if name.startswith(MODEL)}


def check_fits(module: nn.Module, weights: Mapping[str, Tensor], *, name: str, where: Path) -> None:
    """Refuse weights of another network: a function that was passed again may have been changed, or the file has."""
    ours = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    theirs = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    different = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    if not different:
        return
    key = different[0]
    what = f"'{printable(key)}' is {ours.get(key, 'not there')}, and {theirs.get(key, 'not there')} in {where}"
    if is_built_in(name):
        raise RunError(f"the model of network {name} is damaged or another client's: {what}")
    raise ConfigError(
        f"model {name.removeprefix(OBJECT)!r} is another network now: {what}: pass the one that the run began with"
    )
