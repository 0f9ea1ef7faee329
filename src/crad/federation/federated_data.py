"""What all peers of a simulated federation agree on: the data's shape, its preparation, who holds what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crad.config import Experiment
from crad.data.catalog import load_dataset
from crad.data.dataset import Dataset
from crad.data.partition import Shard, class_counts, make_partition
from crad.data.preprocessing import ImageSet, Preprocessor, fit_preprocessor, image_set, image_tensor
from crad.data.site_data import OwnData
from crad.data.subsets import split_proxy
from crad.device import choose_device
from crad.inference.engine import check_precision
from crad.models import Allowance, Architecture, InputShape
from crad.randomness import stream

PROXY_FRACTION = 10  # the proxy set is never more than a tenth of the training images


@dataclass(frozen=True)
class FederatedData:
    """One experiment's data, divided; the same for every method with the same seed."""

    experiment: Experiment
    dataset: Dataset
    shards: tuple[Shard, ...]
    proxy: NDArray[np.int64]  # indices of images that no client holds
    preparation: Preprocessor
    device: str
    secret: int | None = None  # seed of what others must not be able to draw again; None in a simulation
    allowance: Allowance | None = None  # whose networks may be built here; None, in a simulation: everybody's

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return self.dataset.num_classes

    def architecture_of(self, client: int) -> Architecture:
        """Dealt out in turn: POOL[i mod 3]; a name may carry a width of its own, `cnn6@0.5`."""
        name = self.experiment.models[client % len(self.experiment.models)]
        return Architecture.parse(name) if "@" in name else Architecture(name, self.experiment.width)

    @property
    def input_shape(self) -> InputShape:
        """What every network of this federation is built for."""
        return InputShape(self.num_classes, self.dataset.in_channels, self.dataset.image_size)

    def images(self, indices: NDArray[np.int64]) -> ImageSet:
        """Training images at these indices, on the device."""
        data = self.dataset
        return image_set(data.train_images[indices], data.train_labels[indices], pad_to=data.pad_to, device=self.device)

    @cached_property
    def proxy_inputs(self) -> Tensor:
        """The proxy images, prepared as inputs; their labels are never looked at."""
        data = self.dataset
        images = image_tensor(data.train_images[self.proxy], pad_to=data.pad_to)
        return self.preparation.inputs(images.to(self.device))

    @cached_property
    def global_test(self) -> ImageSet:
        """The data set's own test images, for reporting only; an organisation of its own has none."""
        data = self.dataset
        return image_set(data.test_images, data.test_labels, pad_to=data.pad_to, device=self.device)

    def shard_counts(self) -> NDArray[np.int64]:
        """How many samples of each class every client holds, [clients, classes]."""
        parts = [shard.indices for shard in self.shards]
        return class_counts(self.dataset.train_labels, num_classes=self.num_classes, parts=parts)


def build_federated_data(experiment: Experiment, dataset: Dataset | None = None) -> FederatedData:
    """Load, limit, take out the proxy images, divide. Everything that can be refused is refused here.

    Another process of the same run hands over the data set as it was loaded and limited there.
    """
    # A GPU of this machine says nothing about the nodes of a cluster.
    is_elsewhere = experiment.engine == "ray" and experiment.device == "auto"
    device = choose_device("cpu" if is_elsewhere else experiment.device)
    check_precision(experiment.teacher_precision, device)
    dataset = dataset or load_dataset(
        experiment.dataset,
        train_limit=experiment.train_limit,
        test_limit=experiment.test_limit,
        seed=experiment.seed,
    )
    labels = dataset.train_labels
    proxy_size = min(experiment.proxy_size, len(labels) // PROXY_FRACTION)
    proxy, private = split_proxy(labels, size=proxy_size, rng=stream(experiment.seed, "proxy"))
    shards = make_partition(labels[private], num_classes=dataset.num_classes, experiment=experiment)
    return FederatedData(
        experiment=experiment,
        dataset=dataset,
        shards=tuple(_in_whole(shard, private) for shard in shards),
        proxy=proxy,
        preparation=fit_preprocessor(
            dataset.train_images,
            augmentation=dataset.augmentation if experiment.augment else "none",
            device=device,
        ),
        device=device,
    )


def build_own_data(
    experiment: Experiment,
    own: OwnData,
    *,
    client: int,
    preparation: Preprocessor,
    device: str,
    secret: int,
    allowance: Allowance | None = None,
) -> FederatedData:
    """The world as one organisation sees it: its own images as the shard of its client, nothing of the others.

    Without an allowance only built-in networks are built.
    """
    check_precision(experiment.teacher_precision, device)
    nothing = np.empty(0, dtype=np.int64)
    nobody = Shard(train=nothing, validation=nothing, test=nothing)
    return FederatedData(
        experiment=experiment,
        dataset=own.dataset,
        shards=tuple(own.shard if index == client else nobody for index in range(experiment.clients)),
        proxy=nothing,
        preparation=preparation,
        device=device,
        secret=secret,
        allowance=allowance or Allowance(),
    )


def _in_whole(shard: Shard, private: NDArray[np.int64]) -> Shard:
    """The partition saw only the private samples; back to indices into all training images."""
    return Shard(train=private[shard.train], validation=private[shard.validation], test=private[shard.test])
