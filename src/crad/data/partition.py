"""How the training samples are divided among the clients, and each shard into training, validation and test.

Every function takes labels and returns indices into them; samples are never touched.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crad.config import Experiment
from crad.errors import PartitionError
from crad.randomness import stream

Indices = NDArray[np.int64]

MIN_SAMPLES = 10  # per client, METHOD section 3
SHOWN_SITES = 6  # of many in one line
MAX_DRAWS = 1000  # of a whole Dirichlet partition before giving up


@dataclass(frozen=True)
class Shard:
    """One client's private data: indices into the training images."""

    train: Indices
    validation: Indices
    test: Indices

    @property
    def indices(self) -> Indices:
        """Return all samples of the shard, in ascending order."""
        return np.sort(np.concatenate([self.train, self.validation, self.test]))


@dataclass(frozen=True)
class Sites:
    """Whose sample each one is: places in a list of names."""

    of_sample: Indices
    names: tuple[str, ...]


def make_partition(
    labels: Indices,
    *,
    num_classes: int,
    experiment: Experiment,
    sites: Sites | None = None,
    lots: NDArray[np.float64] | None = None,
) -> tuple[Shard, ...]:
    """Divide the labelled samples among the clients as the experiment says, then hold out a part of each shard.

    With a lot for every sample, that alone decides where in its shard it is.
    """
    if experiment.partition == "natural":
        parts = natural_partition(sites, num_clients=experiment.clients)
    else:
        rng = stream(experiment.seed, "partition")
        _check_enough(labels, num_clients=experiment.clients)
        parts = PARTITIONS[experiment.partition](labels, num_classes, experiment, rng)
    if lots is not None:
        return tuple(split_by_lots(part, lots[part], held_out=experiment.held_out) for part in parts)
    return tuple(
        split_shard(part, held_out=experiment.held_out, rng=stream(experiment.seed, "peer", i, "held-out"))
        for i, part in enumerate(parts)
    )


def dirichlet_partition(
    labels: Indices, *, num_classes: int, num_clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Draw shares over the clients per class from Dirichlet(alpha), again until everybody has enough samples."""
    class_sizes = np.bincount(labels, minlength=num_classes)
    for _ in range(MAX_DRAWS):
        shares_CN = rng.dirichlet(np.full(num_clients, alpha), size=num_classes)
        ends_CN = np.rint(np.cumsum(shares_CN, axis=1) * class_sizes[:, None]).astype(np.int64)
        ends_CN[:, -1] = class_sizes
        sizes_CN = np.diff(ends_CN, axis=1, prepend=0)
        if sizes_CN.sum(axis=0).min() >= MIN_SAMPLES:
            return _deal(labels, sizes_CN, rng)
    raise PartitionError(
        f"no Dirichlet({alpha:g}) partition of {len(labels)} samples gave all {num_clients} clients at least "
        f"{MIN_SAMPLES} in {MAX_DRAWS} draws: use fewer clients, more data or a larger alpha"
    )


def iid_partition(labels: Indices, *, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Cut a random permutation into parts of equal size."""
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), num_clients)]


def shards_partition(
    labels: Indices, *, num_classes: int, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> list[Indices]:
    """Give every client exactly k classes; the samples of a class are shared equally by its holders."""
    if classes_per_client > num_classes:
        raise PartitionError(f"classes_per_client is {classes_per_client}, but the data has only {num_classes} classes")
    if num_clients * classes_per_client < num_classes:
        raise PartitionError(
            f"{num_clients} clients with {classes_per_client} classes each cannot hold all {num_classes} classes: "
            f"use at least {math.ceil(num_classes / classes_per_client)} clients or more classes_per_client"
        )
    # Dealt from an endless repetition of one shuffled deck: k consecutive cards are always different classes.
    deck = rng.permutation(num_classes)
    holds_CN = np.zeros((num_classes, num_clients), dtype=np.int64)
    for card in range(num_clients * classes_per_client):
        holds_CN[deck[card % num_classes], card // classes_per_client] = 1
    class_sizes = np.bincount(labels, minlength=num_classes)
    rank_CN = np.cumsum(holds_CN, axis=1) - 1
    num_holders_C1 = holds_CN.sum(axis=1, keepdims=True)
    extra_CN = rank_CN < (class_sizes[:, None] % num_holders_C1)
    sizes_CN = holds_CN * (class_sizes[:, None] // num_holders_C1 + extra_CN)
    _check_holders(holds_CN, sizes_CN)
    _check_sizes(sizes_CN.sum(axis=0))
    return _deal(labels, sizes_CN, rng)


def natural_partition(sites: Sites | None, *, num_clients: int) -> list[Indices]:
    """Give every client the samples of one site, in the order of the sites' names."""
    check_sites(sites, num_clients=num_clients)
    assert sites is not None, "checked"
    parts = [np.flatnonzero(sites.of_sample == place) for place in range(len(sites.names))]
    for name, part in zip(sites.names, parts, strict=True):
        if len(part) < MIN_SAMPLES:
            raise PartitionError(
                f"site {name!r} holds {len(part)} samples to divide, fewer than {MIN_SAMPLES}: join it with another "
                "site, or take its rows out"
            )
    return parts


def check_sites(sites: Sites | None, *, num_clients: int) -> None:
    """Refuse a natural partition of data that does not say whose sample it is, or says it of other clients."""
    if sites is None:
        raise PartitionError(
            "partition is 'natural', but the data does not say whose sample it is: name the column with site (of class "
            "folders site=folder or site=filename), or give Dataset.from_arrays its sites"
        )
    if len(sites.names) != num_clients:
        raise PartitionError(
            f"clients is {num_clients}, but there are {len(sites.names)} sites ({_listed(sites.names)}): leave clients "
            "out, and each site is one"
        )


def quantity_partition(labels: Indices, *, num_clients: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Draw the clients' sizes from Dirichlet(alpha), the samples themselves by lot: much and little of the same."""
    for _ in range(MAX_DRAWS):
        ends = np.rint(np.cumsum(rng.dirichlet(np.full(num_clients, alpha))) * len(labels)).astype(np.int64)
        ends[-1] = len(labels)
        if np.diff(ends, prepend=0).min() >= MIN_SAMPLES:
            return [np.sort(part) for part in np.split(rng.permutation(len(labels)), ends[:-1])]
    raise PartitionError(
        f"no quantity partition of {len(labels)} samples with alpha {alpha:g} gave all {num_clients} clients at least "
        f"{MIN_SAMPLES} in {MAX_DRAWS} draws: use fewer clients, more data or a larger alpha"
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:SHOWN_SITES]) + (f" and {len(names) - SHOWN_SITES} more" if names[SHOWN_SITES:] else "")


def split_shard(indices: Indices, *, held_out: float, rng: np.random.Generator) -> Shard:
    """Hold out a share of a shard: the first half for validation, the second for testing; at least one each."""
    num_held_out = max(2, round(held_out * len(indices)))
    num_validation = (num_held_out + 1) // 2
    if len(indices) - num_held_out < 2:
        raise PartitionError(
            f"a shard of {len(indices)} samples with held_out = {held_out:g} leaves under 2 to train on"
        )
    shuffled = rng.permutation(indices)
    return Shard(
        train=np.sort(shuffled[num_held_out:]),
        validation=np.sort(shuffled[:num_validation]),
        test=np.sort(shuffled[num_validation:num_held_out]),
    )


def record_lots(samples: NDArray[Any], labels: Indices, *, secret: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) for every record that depends on it and the secret alone, not on the others.

    A permutation would move other records between training and validation when one is added, and what is spent on the
    two parts would add up. Equal records have equal lots.
    """
    key = hashlib.sha256(f"held-out {secret}".encode()).digest()
    lots = np.empty(len(labels))
    for place, (sample, label) in enumerate(zip(samples, labels, strict=True)):
        content = np.ascontiguousarray(sample).tobytes() + int(label).to_bytes(8, "little", signed=True)
        lots[place] = int.from_bytes(hashlib.blake2b(content, key=key, digest_size=8).digest(), "little") / 2**64
    return lots


def split_by_lots(indices: Indices, lots: NDArray[np.float64], *, held_out: float) -> Shard:
    """Hold out the records whose lot is below the share, the lower half of them for validation, by nothing else."""
    shard = Shard(
        train=np.sort(indices[lots >= held_out]),
        validation=np.sort(indices[lots < held_out / 2]),
        test=np.sort(indices[(lots >= held_out / 2) & (lots < held_out)]),
    )
    if len(shard.train) < 2 or not len(shard.validation) or not len(shard.test):
        raise PartitionError(
            f"private training decides by each record alone what is held out, and of {len(indices)} samples "
            f"{len(shard.train)} were left for training, {len(shard.validation)} for validation and {len(shard.test)} "
            "for the test: use more samples, fewer clients or another held_out"
        )
    return shard


def class_counts(labels: Indices, *, num_classes: int, parts: list[Indices]) -> NDArray[np.int64]:
    """Return how many samples of each class every part holds, [parts, classes]."""
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


Divide = Callable[[Indices, int, Experiment, np.random.Generator], list[Indices]]

PARTITIONS: dict[str, Divide] = {
    "dirichlet": lambda labels, num_classes, experiment, rng: dirichlet_partition(
        labels, num_classes=num_classes, num_clients=experiment.clients, alpha=experiment.alpha, rng=rng
    ),
    "iid": lambda labels, num_classes, experiment, rng: iid_partition(labels, num_clients=experiment.clients, rng=rng),
    "shards": lambda labels, num_classes, experiment, rng: shards_partition(
        labels,
        num_classes=num_classes,
        num_clients=experiment.clients,
        classes_per_client=experiment.classes_per_client,
        rng=rng,
    ),
    "quantity": lambda labels, num_classes, experiment, rng: quantity_partition(
        labels, num_clients=experiment.clients, alpha=experiment.alpha, rng=rng
    ),
}


def _check_enough(labels: Indices, *, num_clients: int) -> None:
    if len(labels) < num_clients * MIN_SAMPLES:
        raise PartitionError(
            f"{num_clients} clients need at least {MIN_SAMPLES} samples each, {num_clients * MIN_SAMPLES} in all, but "
            f"there are {len(labels)}: use at most {len(labels) // MIN_SAMPLES} clients or more data"
        )


def _check_holders(holds_CN: NDArray[np.int64], sizes_CN: NDArray[np.int64]) -> None:
    short_C = ((holds_CN > 0) & (sizes_CN == 0)).any(axis=1)
    if short_C.any():
        label = int(short_C.argmax())
        raise PartitionError(
            f"class {label} has {int(sizes_CN[label].sum())} samples for {int(holds_CN[label].sum())} holders: "
            "use fewer clients, more data or fewer classes_per_client"
        )


def _check_sizes(sizes_N: NDArray[np.int64]) -> None:
    if sizes_N.min() < MIN_SAMPLES:
        raise PartitionError(
            f"client {int(sizes_N.argmin())} would hold {int(sizes_N.min())} samples, fewer than {MIN_SAMPLES}: "
            "use fewer clients, more data or more classes_per_client"
        )


def _deal(labels: Indices, sizes_CN: NDArray[np.int64], rng: np.random.Generator) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(sizes_CN.shape[1])]
    for label, sizes_N in enumerate(sizes_CN):
        members = rng.permutation(np.flatnonzero(labels == label))
        for part, piece in zip(parts, np.split(members, np.cumsum(sizes_N)[:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)).astype(np.int64) for part in parts]
