"""The clients' metrics at the selected round: what each model says on the test samples is asked for once more.

Figures and intervals are of the common test samples and of every client's own test half, of its model and of its
committee. The common samples are drawn again in the same way for everybody, so that models can be compared there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crad.federation.committee_score import committee_predictions, has_committee, members_of
from crad.federation.context import RunContext
from crad.federation.peer import GLOBAL, OWN
from crad.federation.roster import PeerSlot, Roster
from crad.federation.tasks import Engine, Task, load_tensors
from crad.randomness import stream
from crad.training.metrics import ClassificationMetrics, measure_metrics, softmax

POOLED = "pooled"


@dataclass(frozen=True)
class ClientMetrics:
    """How one client's model, or its committee, does on both test sets."""

    common: ClassificationMetrics | None  # on the common test samples; None where there are none
    own: ClassificationMetrics  # on its own test half, with its own class shares


@dataclass(frozen=True)
class GroupMetrics:
    """The metrics of several clients, and of all their own test halves as one: every sample by its owner's model."""

    clients: Mapping[int, ClientMetrics]
    pooled: ClassificationMetrics


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of all clients that do not attack, at one round; of their committees where these are measured."""

    round_index: int
    models: GroupMetrics
    committees: GroupMetrics | None = None


def measure_clients(roster: Roster, engine: Engine, *, round_index: int) -> RunMetrics:
    """Have everybody's model asked as it stands on the roster, which is that of the round."""
    attackers = roster.context.adversary.attackers
    members = {slot.index for slot in members_of(roster)} if has_committee(roster) else set()
    asked = [slot for slot in roster.own() if slot.member.clients]
    asked = [slot for slot in asked if slot.index not in attackers or slot.index in members]
    roster.logits.mkdir(exist_ok=True)
    tasks = [_task(roster, slot, round_index, is_member=slot.index in members) for slot in asked]
    group = _Group(roster.context)
    for outcome in engine.each(tasks):
        roster.update(outcome.peer, evaluation=outcome.evaluation)
        slot = roster[outcome.peer]
        if slot.index not in attackers:
            _add_peer(group, slot, load_tensors(roster.logits_of(slot)))
        if slot.index not in members:
            roster.logits_of(slot).unlink(missing_ok=True)
    committees = _Group(roster.context)
    for said in committee_predictions(roster) if members else ():
        committees.add(said.client, said.common_BC, said.own_BC)
    roster.forget_logits()
    return RunMetrics(round_index, group.metrics(), committees.metrics() if committees.clients else None)


def own_metrics(context: RunContext, client: int, logits_BC: Tensor) -> ClassificationMetrics:
    """Measure what was said on a client's own test half."""
    return _measure(context, logits_BC, _own_labels(context, client), OWN, client)


class _Group:
    """Clients as they come; those that say the same on the common samples are measured there once."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.clients: dict[int, ClientMetrics] = {}
        self._own: dict[int, Tensor] = {}
        self._common: tuple[Tensor, ClassificationMetrics] | None = None

    def add(self, client: int, common_BC: Tensor | None, own_BC: Tensor) -> None:
        """Measure what was said on the common test samples, and on the client's own."""
        common = None if common_BC is None or not len(common_BC) else self._common_metrics(common_BC)
        self.clients[client] = ClientMetrics(common, own_metrics(self.context, client, own_BC))
        self._own[client] = own_BC

    def metrics(self) -> GroupMetrics:
        """Return everybody's metrics in their order, and those of all own test halves together."""
        order = sorted(self.clients)
        labels_B = torch.cat([_own_labels(self.context, client) for client in order])
        pooled = _measure(self.context, torch.cat([self._own[client] for client in order]), labels_B, POOLED)
        return GroupMetrics({client: self.clients[client] for client in order}, pooled)

    def _common_metrics(self, logits_BC: Tensor) -> ClassificationMetrics:
        if self._common is None or self._common[0] is not logits_BC:
            labels_B = self.context.data.global_test.labels
            self._common = logits_BC, _measure(self.context, logits_BC, labels_B, GLOBAL)
        return self._common[1]


def _task(roster: Roster, slot: PeerSlot, round_index: int, *, is_member: bool) -> Task:
    return Task(
        "predict",
        slot.index,
        slot.evaluation,
        slot.state,
        round_index=round_index,
        save_to=roster.logits_of(slot),
        has_logits=is_member,
    )


def _add_peer(group: _Group, slot: PeerSlot, logits: Mapping[str, Tensor]) -> None:
    """Add every client behind a peer."""
    start = 0
    for client in slot.member.clients:
        part = slice(start, start := start + len(group.context.data.shards[client].test))
        group.add(client, logits[GLOBAL], logits[OWN][part].clone())  # the file that it lies in will go


def _own_labels(context: RunContext, client: int) -> Tensor:
    return context.data.samples(context.data.shards[client].test).labels.cpu()


def _measure(context: RunContext, logits_BC: Tensor, labels_B: Tensor, *words: str | int) -> ClassificationMetrics:
    labels: NDArray[np.int64] = labels_B.cpu().numpy()
    rng = stream(context.experiment.seed, "metrics", *words)
    return measure_metrics(softmax(logits_BC.numpy()), labels, rng=rng)
