"""What everything that is done for a peer needs beside the peer itself: the data, the settings, and where to compute.

A `RunContext` is the same for every process of a run; a simulation builds it from the settings, an organisation from
its own files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crad.aggregation import Rule, resolve_rule
from crad.config import Experiment, Recipe
from crad.data.columns import check_standardize
from crad.data.dataset import Dataset
from crad.data.federated_data import FederatedData, build_federated_data, build_own_data
from crad.data.preprocessing import Preprocessor
from crad.device import choose_device
from crad.federation.attacks import Adversary, make_adversary
from crad.inference.engine import Plans, check_precision
from crad.models import ARCHITECTURES, Allowance, Architecture, InputShape
from crad.models.group_norm import SUFFIX
from crad.privacy.accountant import PrivacyPlan, check_delta, plan_of
from crad.randomness import stream, torch_stream
from crad.training.losses import log_count_shares
from crad.training.private_step import Draws

if TYPE_CHECKING:
    from crad.data.agreed.own_data import OwnData


@dataclass(frozen=True)
class RunContext:
    """One run's data and settings, the device, and what may be built on it."""

    data: FederatedData
    experiment: Experiment
    device: str
    secret: int | None = None  # seed of what others must not be able to draw again; None in a simulation
    allowance: Allowance | None = None  # whose networks may be built here; None, in a simulation: everybody's

    def architecture_of(self, client: int) -> Architecture:
        """Return a client's network, dealt out in turn: POOL[i mod 3]; a name may carry a width, `cnn6@0.5`."""
        return self._architectures[client % len(self._architectures)]

    @cached_property
    def _architectures(self) -> tuple[Architecture, ...]:
        return tuple(chosen_architecture(entry, self.experiment) for entry in self.experiment.models)

    @property
    def word_about_norms(self) -> str | None:
        """Return what to say where private training has chosen other networks than were named; None: it has not."""
        if self.experiment.norm is not None or self.privacy is None:
            return None
        normed = [name for name in dict.fromkeys(one.name for one in self._architectures) if name.endswith(SUFFIX)]
        if not normed:
            return None
        return (
            f"private training: networks are built with group norm in place of batch norm ({', '.join(normed)}), since "
            "a batch's statistics would mix records"
        )

    @cached_property
    def privacy(self) -> PrivacyPlan | None:
        """Return what private training releases here; None: training is not private."""
        return plan_of(self.experiment)

    @property
    def noise_seed(self) -> int:
        """Return the seed of noise and of private samples: the member's secret, or in a simulation the run's seed.

        Between organisations the run's seed is known to all, and noise that anybody can draw again hides nothing.
        """
        return self.experiment.seed if self.secret is None else self.secret

    @property
    def draws(self) -> Callable[..., Draws]:
        """Return what makes the generators of noise and of private samples, from `noise_seed` and a purpose.

        torch's own looks at 32 bits of its seed, and whoever sees the weights can try them all: it is for a simulation.
        """
        return torch_stream if self.secret is None else stream

    @cached_property
    def plans(self) -> Plans:
        """Return how networks run frozen, by architecture: made once, for all engines of the run in this process."""
        return {}

    @cached_property
    def input_shape(self) -> InputShape:
        """Return what every network of this federation is built for."""
        return input_shape_of(self.data.dataset)

    @property
    def agreed_ranges(self) -> list[tuple[float, float] | None]:
        """Return the range of every column of a table that all have agreed on; None where there is none."""
        return [column.range for column in self.data.dataset.columns]

    @cached_property
    def recipe(self) -> Recipe:
        """Return how students learn here: what was set, over what the method stands for."""
        return self.experiment.recipe

    @cached_property
    def committee_rule(self) -> Rule:
        """Return the rule by which all models are asked together."""
        return resolve_rule(self.experiment.committee_rule)

    @cached_property
    def client_log_priors(self) -> Tensor:
        """Return the logarithms of every client's own class shares, [clients, classes]."""
        return log_count_shares(torch.from_numpy(self.data.training_counts()))

    @cached_property
    def adversary(self) -> Adversary:
        """Return who attacks in this simulation, usually nobody: the one place where attacks come in."""
        return make_adversary(self.experiment, self.data)


def chosen_architecture(entry: str, experiment: Experiment) -> Architecture:
    """Return a network as the settings have it: with group norm where that is said, or training is private."""
    found = Architecture.parse(entry, width=experiment.width)
    is_group = experiment.norm == "group" or (experiment.norm is None and experiment.private_training is not None)
    normed = f"{found.name}{SUFFIX}"
    return replace(found, name=normed) if is_group and normed in ARCHITECTURES else found


def input_shape_of(dataset: Dataset) -> InputShape:
    """Return what a network for such samples is built for; there need be none of them."""
    return InputShape(
        dataset.num_classes,
        dataset.in_channels,
        dataset.image_size,
        dataset.kind,
        tuple(column.size for column in dataset.columns),
        dataset.details.get("vocabulary", 0),
        rate=dataset.rate,
    )


def build_run_context(experiment: Experiment, dataset: Dataset | None = None, *, is_worker: bool = False) -> RunContext:
    """Build a simulation's context. Everything that can be refused is refused here.

    Another process of the same run hands over the data set as it was loaded and limited there. What computes on a Ray
    cluster is for its actors to say (`is_worker`): a GPU of this machine says nothing about its nodes.
    """
    is_elsewhere = experiment.engine == "ray" and not is_worker
    device = choose_device("cpu" if is_elsewhere else experiment.device)
    if not is_elsewhere:
        check_precision(experiment.teacher_precision, device)
    context = RunContext(build_federated_data(experiment, dataset, device=device), experiment, device)
    if experiment.private_training is not None:
        for client, shard in enumerate(context.data.shards):
            check_delta(experiment.delta, len(shard.indices), whose=f"client {client} holds")
    _ = context.committee_rule  # refused now, if it is none
    return context


def build_site_context(
    experiment: Experiment,
    own: OwnData,
    *,
    client: int,
    preprocessor: Preprocessor,
    device: str,
    secret: int,
    allowance: Allowance | None = None,
) -> RunContext:
    """Build the context of one organisation, which knows nothing of the others' data.

    Without an allowance only built-in networks are built.
    """
    check_precision(experiment.teacher_precision, device)
    check_standardize(experiment.standardize, own.dataset.columns, is_private=experiment.private_training is not None)
    data = build_own_data(own, client=client, clients=experiment.clients, preprocessor=preprocessor)
    return RunContext(data, experiment, device, secret=secret, allowance=allowance or Allowance())
