"""The clients' metrics at the reported round: what each model says on the test samples is asked for once more.

Figures and intervals are of the common test samples and of every client's own test half, of its model and of its
committee. The common samples are drawn again in the same way for everybody, so that models can be compared there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from crad.federation.committee_score import committee_predictions, has_committee, members_of
from crad.federation.context import RunContext
from crad.federation.peer import GLOBAL, OWN
from crad.federation.roster import PeerSlot, Roster
from crad.federation.tasks import Engine, Task, load_tensors
from crad.randomness import stream
from crad.training.metrics import ClassificationMetrics, measure_metrics, softmax


@dataclass(frozen=True)
class ClientMetrics:
    """How one client's model, or its committee, does on both test sets."""

    common: ClassificationMetrics | None  # on the common test samples; None where there are none
    own: ClassificationMetrics  # on its own test half, with its own class shares


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of all clients that do not attack, at one round; of committees where they are measured."""

    round_index: int
    clients: Mapping[int, ClientMetrics]
    committees: Mapping[int, ClientMetrics] = field(default_factory=dict)


def measure_clients(roster: Roster, engine: Engine, *, round_index: int) -> RunMetrics:
    """Have everybody's model asked as it stands on the roster, which is that of the round."""
    attackers = roster.context.adversary.members
    members = {slot.index for slot in members_of(roster)} if has_committee(roster) else set()
    asked = [slot for slot in roster.own() if slot.member.clients]
    asked = [slot for slot in asked if slot.index not in attackers or slot.index in members]
    roster.logits.mkdir(exist_ok=True)
    tasks = [_task(roster, slot, round_index, is_member=slot.index in members) for slot in asked]
    measured: dict[int, ClientMetrics] = {}
    for outcome in engine.each(tasks):
        roster.update(outcome.peer, evaluation=outcome.evaluation)
        slot = roster[outcome.peer]
        if slot.index not in attackers:
            measured |= _client_metrics(roster.context, slot, load_tensors(roster.logits_of(slot)))
        if slot.index not in members:
            roster.logits_of(slot).unlink(missing_ok=True)
    committees = dict(_committee_metrics(roster)) if members else {}
    roster.forget_logits()
    return RunMetrics(round_index, {client: measured[client] for client in sorted(measured)}, committees)


def common_metrics(context: RunContext, logits_BC: Tensor) -> ClassificationMetrics:
    """Measure what was said on the common test samples."""
    return _measure(context, logits_BC, context.data.global_test.labels, GLOBAL)


def own_metrics(context: RunContext, client: int, logits_BC: Tensor) -> ClassificationMetrics:
    """Measure what was said on a client's own test half."""
    labels = context.data.images(context.data.shards[client].test).labels
    return _measure(context, logits_BC, labels, OWN, client)


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


def _client_metrics(
    context: RunContext, slot: PeerSlot, logits: Mapping[str, Tensor]
) -> Iterator[tuple[int, ClientMetrics]]:
    """Yield the metrics of every client behind a peer; they share its model on the common samples."""
    common = common_metrics(context, logits[GLOBAL]) if len(logits[GLOBAL]) else None
    start = 0
    for client in slot.member.clients:
        part = slice(start, start := start + len(context.data.shards[client].test))
        yield client, ClientMetrics(common, own_metrics(context, client, logits[OWN][part]))


def _committee_metrics(roster: Roster) -> Iterator[tuple[int, ClientMetrics]]:
    context, before, common = roster.context, None, None
    for said in committee_predictions(roster):
        if said.common_BC is not None and said.common_BC is not before:
            before, common = said.common_BC, common_metrics(context, said.common_BC)
        yield said.client, ClientMetrics(common, own_metrics(context, said.client, said.own_BC))


def _measure(context: RunContext, logits_BC: Tensor, labels_B: Tensor, *words: str | int) -> ClassificationMetrics:
    labels: NDArray[np.int64] = labels_B.cpu().numpy()
    rng = stream(context.experiment.seed, "metrics", *words)
    return measure_metrics(softmax(logits_BC.numpy()), labels, rng=rng)
