"""Experts and students: experts keep to their own labels and are what is exchanged; students learn from them.

Not in the paper; see docs/methods/experts.md. Models that distil from each other become alike, and what they know
together shrinks. Here every client trains an expert as `local` does, bit for bit, then a student that begins as its
expert and learns from all experts, its own among them. The student is what the client uses and what is measured.
Exchanged: every active client's expert, to every other active one, once, or every `exchange_every` rounds from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from crad.aggregation import Rule, resolve_rule
from crad.config import Experiment
from crad.federation.context import RunContext
from crad.federation.message import SNAPSHOT, Message, Statistics
from crad.federation.method import Learned, Method, Phase, RoundContext, Teachers
from crad.federation.peer import PRIOR_IN, Peer
from crad.federation.teachers import Snapshot
from crad.federation.topology import RoundParticipants, Routes, all_to_all
from crad.methods.alone import ALONE, own_labels
from crad.methods.distillation import decode_all, without_overflowing
from crad.methods.local_training import train_epochs
from crad.methods.students import StudentSpec
from crad.training.optimizer import load_optimizer_tensors, optimizer_tensors

# In a peer's memory. Experts that it has are kept there with their figures: they are not sent again, and whatever keeps
# a peer (a checkpoint, a worker, another machine) keeps them too.
TEACHER = "teacher"  # teacher/3/weights/..., teacher/3/figures, teacher/3/round
EXPERT = "expert"  # its own, where it goes on training: expert/model/..., expert/optimizer/...
STUDENT = "student"  # its model is the student by now


class Experts(StudentSpec):
    """By which rule students learn, how long experts train before they are exchanged, and whether they go on.

    How students learn from them is said by the settings of `StudentSpec`.
    """

    teachers: ClassVar[Teachers] = "experts"

    rule: str = "support-all"
    expert_rounds: Annotated[int, Field(ge=0)] = 0  # 0: half of the rounds
    exchange_every: Annotated[int, Field(ge=0)] = 0  # rounds; 0: once, and experts stay as they are

    def phases(self) -> Sequence[Phase]:
        """Train the expert; in some rounds exchange experts; let the student learn from those at hand."""
        return [
            Phase(ALONE.kind, learn=self._train_expert, routes=self._experts_train),
            Phase(SNAPSHOT, publish=self._publish, learn=self._keep, routes=self._exchange, has_statistics=False),
            Phase(STUDENT, learn=self._learn, routes=self._students_learn),
        ]

    def build(self, name: str) -> Method:
        """Return the method with these settings."""
        return replace(
            super().build(name),
            preparation=self.preparation,
            refusal=partial(self._refusal, name),
        )

    def preparation(self, experiment: Experiment) -> int:
        """Return how many rounds come before the first one with students."""
        return self.expert_rounds or experiment.rounds // 2

    def teaching_rule(self) -> Rule:
        """Return the rule by which students combine the experts that they keep."""
        return resolve_rule(self.rule)

    def _refusal(self, name: str, experiment: Experiment) -> str | None:
        if not 0 < self.preparation(experiment) < experiment.rounds:
            said = f"expert_rounds is {self.expert_rounds}" if self.expert_rounds else "experts train in half of them"
            return (
                f"method {name!r} has {experiment.rounds} rounds and {said}: there must be at least one of experts and "
                "one of students; set rounds or expert_rounds"
            )
        if experiment.recipe.evidence != "reported":
            return (
                f"evidence = {experiment.recipe.evidence!r}: a student of {name!r} would judge its own expert on the "
                "samples that it was trained on; leave evidence out"
            )
        own, of_run = self.missing_weight, experiment.recipe.missing_weight
        if own and of_run and own != of_run:
            return f"missing_weight is {of_run:g} for the run and {own:g} among the settings of {name!r}: say it once"
        return None

    # --- who does what in a round

    def _experts_train(self, participants: RoundParticipants) -> Routes:
        is_over = participants.round_index > self._last(participants) and not self.exchange_every
        return {} if is_over else all_to_all(participants)

    def _exchange(self, participants: RoundParticipants) -> Routes:
        since = participants.round_index - self._last(participants)
        is_due = since == 0 or (since > 0 and self.exchange_every > 0 and since % self.exchange_every == 0)
        return all_to_all(participants) if is_due else {}

    def _students_learn(self, participants: RoundParticipants) -> Routes:
        return all_to_all(participants) if participants.round_index > self._last(participants) else {}

    def _last(self, participants: RoundParticipants) -> int:
        return self.preparation(participants.context.experiment)

    # --- what they do

    def _train_expert(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        if context.round_index <= self.preparation(peer.experiment):
            return _train_on_own_labels(peer, context)
        self._begin_student(peer)
        with _expert_at_work(peer):
            losses = _train_on_own_labels(peer, context).losses
            peer.memory.pop(PRIOR_IN, None)  # it is the student that is measured
        return Learned({EXPERT: losses["total"]})

    def _publish(self, peer: Peer, context: RoundContext) -> Message:
        with _expert_at_work(peer):
            peer.revalidate()
            return peer.snapshot(context.round_index, with_cross_entropy=self.teaching_rule().needs_cross_entropy)

    def _keep(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        """Keep the experts that pass every check, in place of older ones of the same clients, and the own one."""
        snapshots, refused = decode_all(messages, context)
        sound = without_overflowing(peer, snapshots, context, refused)
        with _expert_at_work(peer):
            peer.revalidate()
            own = _own_snapshot(peer, context.round_index, with_cross_entropy=self.teaching_rule().needs_cross_entropy)
        for snapshot in (own, *sound):
            _keep_teacher(peer, snapshot)
        return Learned(notes={"refused": refused} if refused else {})

    def _learn(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        self._begin_student(peer)
        experts = kept_teachers(peer) if peer.listens else []
        after = self.preparation(peer.experiment)
        return self.learn_from_experts(peer, experts, context, rule=self.teaching_rule(), after=after)

    def _begin_student(self, peer: Peer) -> None:
        """Let the student begin as the expert is now, with an optimiser that has learned nothing yet."""
        if STUDENT in peer.memory:
            return
        peer.memory[STUDENT] = torch.ones(1)
        peer.memory.pop(PRIOR_IN, None)
        if self.exchange_every:
            peer.memory |= {name: tensor.clone() for name, tensor in _expert_tensors(peer).items()}
        peer.optimizer.state.clear()


def kept_teachers(peer: Peer) -> list[Snapshot]:
    """Return the experts that a peer keeps, its own among them, in the order of their owners."""
    return teachers_in(peer.memory, peer.context, peer=peer.index)


def teachers_in(memory: Mapping[str, Tensor], context: RunContext, *, peer: int) -> list[Snapshot]:
    """Return the experts that are kept in a peer's memory, in the order of their owners."""
    weights: dict[int, dict[str, Tensor]] = {}
    for name, tensor in memory.items():
        kind, _, rest = name.partition("/")
        owner, _, what = rest.partition("/weights/")
        if kind == TEACHER and what:
            weights.setdefault(int(owner), {})[what] = tensor
    # Its own a client has as it is, and an attacker's is not what the others got of it.
    is_attacker = peer in context.adversary.attackers
    return [
        _kept_teacher(memory, context, owner, weights[owner], is_kept=owner != peer or not is_attacker)
        for owner in sorted(weights)
    ]


def _kept_teacher(
    memory: Mapping[str, Tensor], context: RunContext, owner: int, tensors: dict[str, Tensor], *, is_kept: bool
) -> Snapshot:
    counts, accuracies, *more = memory[f"{TEACHER}/{owner}/figures"].tolist()
    return Snapshot(
        owner,
        int(memory[f"{TEACHER}/{owner}/round"]),
        context.architecture_of(owner).id,
        Statistics(counts=counts, accuracies=accuracies, cross_entropies=more[0] if more else None),
        tensors,
        is_kept=is_kept,
    )


def _keep_teacher(peer: Peer, snapshot: Snapshot) -> None:
    figures = snapshot.statistics
    columns = [figures.counts, figures.accuracies, figures.cross_entropies]
    place = f"{TEACHER}/{snapshot.peer}"
    peer.memory |= {f"{place}/weights/{name}": tensor for name, tensor in snapshot.tensors.items()}
    peer.memory[f"{place}/figures"] = torch.tensor([one for one in columns if one is not None], dtype=torch.float64)
    peer.memory[f"{place}/round"] = torch.tensor(snapshot.round_index)


def _own_snapshot(peer: Peer, round_index: int, *, with_cross_entropy: bool) -> Snapshot:
    """Return the peer's model as one of its own teachers: as it is, not as an attacker would publish it."""
    weights = {name: tensor.clone() for name, tensor in peer.model.state_dict().items()}
    figures = peer.statistics(with_cross_entropy=with_cross_entropy)
    return Snapshot(peer.index, round_index, peer.architecture.id, figures, weights)


def _train_on_own_labels(peer: Peer, context: RoundContext) -> Learned:
    """Train as `local` does. Class shares are taken out of an expert's word once: by the rule, or by its own loss."""
    is_plain = peer.context.recipe.teacher_prior == "remove"
    if is_plain and peer.log_prior_C is not None:
        peer.memory[PRIOR_IN] = torch.ones(1)
    loss_for = partial(own_labels, log_prior_C=None if is_plain else peer.log_prior_C)
    return Learned(train_epochs(peer, context, loss_for=loss_for))


@contextmanager
def _expert_at_work(peer: Peer) -> Iterator[None]:
    """Let the peer's model be its expert, which keeps what it learns; afterwards it is the student again.

    Where there is no other expert than the model, that is it.
    """
    if not any(name.startswith(f"{EXPERT}/") for name in peer.memory):
        yield
        return
    student = {name: tensor.clone() for name, tensor in _expert_tensors(peer).items()}
    _load(peer, peer.memory)
    yield
    peer.memory |= {name: tensor.clone() for name, tensor in _expert_tensors(peer).items()}
    _load(peer, student)


def _expert_tensors(peer: Peer) -> dict[str, Tensor]:
    """Return the model and what its optimiser keeps, under the names that an expert has in a memory."""
    kept = optimizer_tensors(peer.model, peer.optimizer, peer.experiment)
    return {f"{EXPERT}/model/{name}": tensor for name, tensor in peer.model.state_dict().items()} | {
        f"{EXPERT}/optimizer/{name}": tensor for name, tensor in kept.items()
    }


def _load(peer: Peer, tensors: Mapping[str, Tensor]) -> None:
    peer.model.load_state_dict(_under(f"{EXPERT}/model/", tensors))
    peer.optimizer.state.clear()
    kept = _under(f"{EXPERT}/optimizer/", tensors)
    load_optimizer_tensors(peer.model, peer.optimizer, peer.experiment, kept)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
