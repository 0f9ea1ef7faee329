"""A peer: its model, its private data, and what it knows about itself. The one thing that changes in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from crad.data.partition import Shard
from crad.data.tensors import ImageSet
from crad.federation.message import Message, Statistics, pack, storable
from crad.federation.world import World
from crad.learning.epoch import make_optimizer
from crad.learning.evaluation import ClassScore, score
from crad.models import Architecture, build_model
from crad.randomness import stream, torch_seed

SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class Standing:
    """How a peer's current model does; the tests are None until somebody asks for them."""

    validation: tuple[ClassScore, ...]  # one per shard it holds
    local: tuple[ClassScore, ...] | None = None
    overall: ClassScore | None = None  # on the data set's own test images


class Peer:
    """One member of the roster. Usually holds one shard; the centralised ceiling holds them all."""

    def __init__(self, world: World, *, index: int, clients: tuple[int, ...], architecture: Architecture) -> None:
        self.world = world
        self.index = index
        self.clients = clients
        self.architecture = architecture
        experiment = world.experiment
        self.model = new_model(world, architecture, seed=torch_seed(experiment.seed, "peer", index, "weights"))
        self.optimizer = make_optimizer(self.model, experiment)
        shards = [world.shards[client] for client in clients]
        nothing = np.empty(0, dtype=np.int64)  # a roster member may own no data at all
        self.train = world.images(np.concatenate([nothing, *(shard.train for shard in shards)]))
        self._halves = [_halves(world, shard) for shard in shards]
        self._count_noise = self._draw_count_noise()
        self.standing = self._validate()

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return self.world.num_classes

    def snapshot(self, round_index: int, *, with_cross_entropy: bool = False) -> Message:
        """The frozen model with its class statistics, as bytes."""
        return pack(
            self.model.state_dict(),
            kind=SNAPSHOT,
            peer=self.index,
            round_index=round_index,
            architecture=self.architecture.id,
            statistics=self.statistics(with_cross_entropy=with_cross_entropy),
        )

    def statistics(self, *, with_cross_entropy: bool = False) -> Statistics:
        """What the peer says of itself per class, from its validation half; counts noised if private."""
        own = _sum_scores(self.standing.validation)
        counts = np.maximum(0.0, np.asarray(own.counts, dtype=np.float64) + self._count_noise)
        return Statistics(
            counts=tuple(counts.tolist()),
            accuracies=tuple(own.class_accuracies()),
            cross_entropies=tuple(own.class_cross_entropies()) if with_cross_entropy else None,
        )

    def revalidate(self) -> None:
        """Measure the model after it has learned; its test results are stale from now on."""
        self.standing = self._validate()

    def test(self) -> None:
        """Measure both metrics, unless the model has not moved since they were last measured."""
        if self.standing.overall is not None or not self.clients:
            return
        self.standing = Standing(
            validation=self.standing.validation,
            local=tuple(self._score(test) for _, test in self._halves),
            overall=self._score(self.world.global_test),
        )

    def state(self) -> dict[str, Tensor]:
        """Model and momentum, everything a checkpoint needs of the peer's tensors."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        return storable(tensors)

    def load_state(self, tensors: Mapping[str, Tensor], standing: Standing) -> None:
        """Take up exactly where `state` left off."""
        model = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        self.model.load_state_dict(model)
        for name, parameter in self.model.named_parameters():
            momentum = tensors.get(f"momentum.{name}")
            if momentum is not None:
                self.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)
        self.standing = standing

    def _validate(self) -> Standing:
        return Standing(validation=tuple(self._score(validation) for validation, _ in self._halves))

    def _score(self, images: ImageSet) -> ClassScore:
        return score(self.model, images, preparation=self.world.preparation, num_classes=self.num_classes)

    def _draw_count_noise(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        # One draw per client, class and run: counts do not change over the rounds, so neither may the noise.
        epsilon = self.world.experiment.private_counts
        if epsilon is None:
            return np.zeros(self.num_classes)
        rng = stream(self.world.experiment.seed, "peer", self.index, "private-counts")
        return rng.laplace(scale=1 / epsilon, size=self.num_classes)


def new_model(world: World, architecture: Architecture, *, seed: int) -> nn.Module:
    """An untrained model for this federation's images and classes, on its device."""
    model = build_model(
        architecture,
        num_classes=world.num_classes,
        in_channels=world.dataset.in_channels,
        image_size=world.dataset.image_size,
        seed=seed,
    )
    return model.to(device=world.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _halves(world: World, shard: Shard) -> tuple[ImageSet, ImageSet]:
    return world.images(shard.validation), world.images(shard.test)


def _sum_scores(scores: tuple[ClassScore, ...]) -> ClassScore:
    return ClassScore(
        counts=tuple(map(sum, zip(*(one.counts for one in scores), strict=True))),
        hits=tuple(map(sum, zip(*(one.hits for one in scores), strict=True))),
        cross_entropy_sums=tuple(map(sum, zip(*(one.cross_entropy_sums for one in scores), strict=True))),
    )
