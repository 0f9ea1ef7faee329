"""A place of work on a Ray cluster: an actor with one thread that does one client's task at a time, for any client.

It runs on any node, so it reads no files: the data, states and messages come as arrays in the node's shared memory.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

import crad
from crad.config import Experiment
from crad.device import gpu_names, tune_malloc
from crad.engines.shared_arrays import assemble_dataset
from crad.errors import ConfigError
from crad.federation.context import build_run_context
from crad.federation.message import Message
from crad.federation.tasks import Task, TaskOutcome, TaskRunner, with_peaks
from crad.methods import resolve_method

Reference = Any  # ray.ObjectRef; Ray's own types are not read by mypy
Raw = NDArray[np.uint8]
Letters = Mapping[int, tuple[bytes, Reference]]  # by sender: the manifest, and where the body is


@dataclass(frozen=True)
class Order:
    """What a host is told once, beside the data set's arrays."""

    experiment: dict[str, Any]
    dataset: dict[str, Any]  # without its arrays
    arrays: tuple[str, ...]  # their names
    path: tuple[str, ...]  # where the driver imports from
    versions: dict[str, str]


@dataclass(frozen=True)
class Place:
    """What an actor computes on."""

    device: str
    gpus: tuple[str, ...]


class Host:
    """The actor. Nothing is done on creation, so that every error comes out of a call."""

    def set_up(self, order: Order, *arrays: NDArray[Any]) -> Place:
        """Take up the data, which all hosts of a node share, and divide it as the driver did; return on what it works.

        Which device that is, of the kind that the driver has asked the cluster for, is decided here.
        """
        check_same_versions(order.versions)
        tune_malloc()
        torch.set_num_threads(1)
        sys.path.extend(entry for entry in order.path if entry not in sys.path)
        experiment = Experiment(**order.experiment)
        dataset = assemble_dataset(order.dataset, dict(zip(order.arrays, arrays, strict=True)))
        method = resolve_method(experiment.method, experiment.method_settings)
        self._runner = TaskRunner(build_run_context(experiment, dataset, is_worker=True), method)
        self._messages: dict[Reference, Message] = {}
        self._batch: tuple[int, int] = (0, 0)
        device = self._runner.device
        return Place(device, tuple(gpu_names(device)[:1]))

    def do(self, task: Task, state: Raw | None, letters: Letters) -> TaskOutcome:
        """Do a task whose state and messages were taken out of it to travel on their own."""
        if self._batch != (task.round_index, task.phase):
            # What is no longer looked into can leave the node's shared memory.
            self._batch = (task.round_index, task.phase)
            self._messages.clear()
            self._runner.teachers.forget_other_rounds(task.round_index)
        self._fetch(letters)
        outcome = self._runner.do(
            replace(
                task,
                state=None if state is None else state.data,
                messages={sender: self._messages[body] for sender, (_, body) in letters.items()},
            )
        )
        return with_peaks(outcome, self._runner.device)

    def _fetch(self, letters: Letters) -> None:
        """Fetch every body once per round: the same object is decoded once, whoever learns from it here."""
        new = {body: manifest for manifest, body in letters.values() if body not in self._messages}
        for (body, manifest), content in zip(new.items(), ray.get(list(new)), strict=True):
            self._messages[body] = Message(manifest, content.data)


def own_versions() -> dict[str, str]:
    """Return the versions that decide what comes out of a task, without the kind of build."""
    return {"crad": crad.__version__, "numpy": np.__version__, "torch": torch.__version__.split("+")[0]}


def check_same_versions(wanted: Mapping[str, str]) -> None:
    """Refuse to work on a node that would compute something else."""
    own = own_versions()
    wrong = [f"{name} {own[name]} instead of {version}" for name, version in wanted.items() if own[name] != version]
    if wrong:
        raise ConfigError(
            f"the cluster's node {platform.node()} has {', '.join(wrong)}: install the same versions on every node"
        )
