"""A federation's data, divided: the data set, who holds which part of it, and how samples become inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crad.config import Experiment
from crad.data.catalog import load_dataset
from crad.data.columns import check_standardize
from crad.data.dataset import Dataset
from crad.data.partition import Shard, Sites, class_counts, make_partition, record_lots
from crad.data.preprocessing import Preprocessor, SampleSet
from crad.data.readers.table_file import options_of
from crad.data.subsets import split_proxy
from crad.device import resident_bytes
from crad.randomness import stream

if TYPE_CHECKING:
    from crad.data.agreed.own_data import OwnData

SHIFT_SAMPLES, SHIFT_FEATURES = 1000, 12  # at most so many of a client are looked at, and so many features shown
PROXY_FRACTION = 10  # the proxy set is never more than a tenth of the training images


@dataclass(frozen=True)
class FederatedData:
    """One experiment's data, divided; the same for every method with one seed. Images lie where inputs are made."""

    dataset: Dataset
    shards: tuple[Shard, ...]
    proxy: NDArray[np.int64]  # indices of images that no client holds
    preprocessor: Preprocessor
    is_natural: bool = False  # every shard is what one site holds, in the order of the data set's site names
    num_classes: int = field(init=False)  # C

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_classes", self.dataset.num_classes)

    def samples(self, indices: NDArray[np.int64]) -> SampleSet:
        """Return the training samples at these indices, on the device."""
        if (resident := self._resident) is not None:
            chosen = torch.from_numpy(indices).to(resident.labels.device)
            return SampleSet(resident.samples[chosen], resident.labels[chosen])
        return self._sample_set(self.dataset.train_samples[indices], self.dataset.train_labels[indices])

    @cached_property
    def _resident(self) -> SampleSet | None:
        """Return all training images on a GPU that has room for them, where they are taken up once; elsewhere None."""
        device, size = self.preprocessor.device.type, self.dataset.train_samples.nbytes
        if size > resident_bytes(device):
            return None
        return self._sample_set(self.dataset.train_samples, self.dataset.train_labels)

    @cached_property
    def proxy_inputs(self) -> Tensor:
        """Return the proxy images, prepared as inputs; their labels are never looked at."""
        images = self.dataset.kind_of_data.to_tensor(self.dataset.train_samples[self.proxy], self.dataset)
        return self.preprocessor.inputs(images.to(self.preprocessor.device))

    @cached_property
    def global_test(self) -> SampleSet:
        """Return the data set's own test images, for reporting only; an organisation of its own has none."""
        return self._sample_set(self.dataset.test_samples, self.dataset.test_labels)

    @cached_property
    def held_out(self) -> SampleSet:
        """Return the test halves of all clients one after the other, then the validation halves in the same way.

        Only a simulation has them together.
        """
        halves = [*(shard.test for shard in self.shards), *(shard.validation for shard in self.shards)]
        return self.samples(np.concatenate(halves))

    def validation_counts(self) -> list[list[int]]:
        """Return how many validation samples of each class every client holds."""
        return self._counts([shard.validation for shard in self.shards]).tolist()  # type: ignore[no-any-return]

    def training_counts(self) -> NDArray[np.int64]:
        """Return how many training samples of each class every client holds, [clients, classes]."""
        return self._counts([shard.train for shard in self.shards])

    def shard_counts(self) -> NDArray[np.int64]:
        """Return how many samples of each class every client holds, [clients, classes]."""
        return self._counts([shard.indices for shard in self.shards])

    def input_shift(self) -> dict[str, Any]:
        """Return by how many deviations the mean of a client's samples differs from that of all others, by feature.

        Of many features those that differ most; a client that has nothing to say of one has None.
        """
        parts = [_spread(shard.indices, SHIFT_SAMPLES) for shard in self.shards]
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        samples = self.dataset.train_samples[np.concatenate(parts)]
        found = {}
        for name, values in self.dataset.kind_of_data.features(self.dataset, samples).items():
            found[name] = [_difference(values, owner == client) for client in range(len(parts))]
        most = sorted(found, key=lambda name: -max(abs(one or 0.0) for one in found[name]))[:SHIFT_FEATURES]
        shown = [name for name in found if name in most]
        return {
            "features": shown,
            "differences": [[found[name][client] for name in shown] for client in range(len(parts))],
        }

    def _counts(self, parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        return class_counts(self.dataset.train_labels, num_classes=self.num_classes, parts=parts)

    def _sample_set(self, samples: NDArray[Any], labels: NDArray[np.int64]) -> SampleSet:
        device = self.preprocessor.device
        tensor = self.dataset.kind_of_data.to_tensor(samples, self.dataset)
        return SampleSet(tensor.to(device), torch.from_numpy(labels.astype(np.int64)).to(device))


def build_federated_data(experiment: Experiment, dataset: Dataset | None = None, *, device: str) -> FederatedData:
    """Load, limit, take out the proxy images, divide; a data set that is given was loaded and limited elsewhere."""
    dataset = dataset or load_dataset(
        experiment.dataset,
        train_limit=experiment.train_limit,
        test_limit=experiment.test_limit,
        resize=experiment.resize,
        table=options_of(experiment),
        kind=experiment.kind,
        seconds=experiment.seconds,
        seed=experiment.seed,
    )
    check_standardize(experiment.standardize, dataset.columns, is_private=experiment.private_training is not None)
    labels = dataset.train_labels
    proxy_size = min(experiment.proxy_size, len(labels) // PROXY_FRACTION)
    proxy, private = split_proxy(labels, size=proxy_size, rng=stream(experiment.seed, "proxy"))
    shards = make_partition(
        labels[private],
        num_classes=dataset.num_classes,
        experiment=experiment,
        sites=_sites(dataset, private),
        lots=_lots(dataset, private, experiment),
    )
    return FederatedData(
        dataset=dataset,
        shards=tuple(_in_whole(shard, private) for shard in shards),
        proxy=proxy,
        preprocessor=dataset.kind_of_data.preprocessor(dataset, is_augmented=experiment.augment, device=device),
        is_natural=experiment.partition == "natural",
    )


def _lots(dataset: Dataset, private: NDArray[np.int64], experiment: Experiment) -> NDArray[np.float64] | None:
    if experiment.private_training is None:
        return None
    return record_lots(dataset.train_samples[private], dataset.train_labels[private], secret=experiment.seed)


def _sites(dataset: Dataset, private: NDArray[np.int64]) -> Sites | None:
    if dataset.train_sites is None:
        return None
    return Sites(dataset.train_sites[private], dataset.site_names)


def build_own_data(own: OwnData, *, client: int, clients: int, preprocessor: Preprocessor) -> FederatedData:
    """Return the data as one organisation sees it: its own as the shard of its client, nothing of the others."""
    nothing = np.empty(0, dtype=np.int64)
    nobody = Shard(train=nothing, validation=nothing, test=nothing)
    return FederatedData(
        dataset=own.dataset,
        shards=tuple(own.shard if index == client else nobody for index in range(clients)),
        proxy=nothing,
        preprocessor=preprocessor,
    )


def _spread(indices: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return indices if len(indices) <= most else indices[np.linspace(0, len(indices) - 1, most).astype(np.int64)]


def _difference(values: NDArray[np.float64], is_own: NDArray[np.bool_]) -> float | None:
    """Return how far the mean of some values is from that of the others, in deviations of all; None: there are none."""
    is_known = np.isfinite(values)
    own, others = values[is_known & is_own], values[is_known & ~is_own]
    if not len(own) or not len(others):
        return None
    deviation = float(values[is_known].std())
    return round(float(own.mean() - others.mean()) / deviation, 2) if deviation else 0.0


def _in_whole(shard: Shard, private: NDArray[np.int64]) -> Shard:
    """Return a shard of the private samples, which the partition saw, as indices into all training images."""
    return Shard(train=private[shard.train], validation=private[shard.validation], test=private[shard.test])
