"""A run's models at the selected round, and what they say and are worth to each other.

Shapes: N clients that can teach, K teachers of one student, B images, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from crad.aggregation import Tally, TeacherStats, Trace, check_evidence, correct, known_stats, remove_prior, trace
from crad.data.preprocessing import SampleSet
from crad.errors import RunError
from crad.federation.class_statistics import class_statistics, stack_statistics
from crad.federation.context import RunContext, build_run_context
from crad.federation.message import Statistics
from crad.federation.method import Method
from crad.federation.peer import Peer, training_samples, untrained_model
from crad.federation.roster import PeerSlot, Roster
from crad.federation.tasks import load_tensors
from crad.federation.teachers import Snapshot
from crad.federation.topology import RoundParticipants
from crad.inference.engine import PreparedTeacher, TeacherEngine, known_precisions, soft_predictions
from crad.methods import resolve_method
from crad.methods.experts import teachers_in
from crad.randomness import repeatable
from crad.runs.checkpoint import latest_round, load_checkpoint, saved_rounds
from crad.runs.directory import RunDirectory
from crad.runs.records import partition_record
from crad.runs.selection import selected_round

TALLIED_IMAGES, FEWEST_TALLIED = 2000, 50  # of a student's training samples on which its teachers are counted
TALLIED_OUTPUTS = 200_000  # of one sample by one teacher: many clients count on fewer samples each
SEARCHED_IMAGES = 500  # test images looked through for the clearest cases
SEARCHED_OUTPUTS = 10_000  # of one image by one teacher: many clients look through fewer images


class Panel:
    """Every client of a run as a teacher of every other, as they stood at the selected round.

    Where clients keep experts, those are the teachers, also of their own students.
    """

    _experts: Mapping[int, Mapping[int, Snapshot]] | None = None  # by student and owner; None: clients teach

    def __init__(self, run: Path, *, context: RunContext | None = None) -> None:
        """Load a run; `context`: the run's, where the caller has it at hand."""
        directory = RunDirectory(run)
        self.experiment = directory.experiment()
        method = resolve_method(self.experiment.method, self.experiment.method_settings)
        if not is_inspectable(method, self.experiment.clients) or method.rule is None:
            raise RunError(
                f"{run} ran method {self.experiment.method!r} with {self.experiment.clients} clients: no clients' "
                "models were combined by a rule to teach another there, so there is nothing to explain"
            )
        recipe = self.experiment.recipe
        self._rule, self._source = method.rule.with_filter(recipe.filter), recipe.evidence
        self._tallies: dict[int, Tally] = {}
        self.round_index = _selected_round(directory)
        self.context = context or build_run_context(self.experiment)
        directory.check_same_data(partition_record(self.context.data))
        self.roster = Roster(self.context, method.roster(self.context), directory.checkpoint_folder)
        load_checkpoint(self.roster, round_index=self.round_index)
        # After a run on a cluster this machine may have no such numbers.
        wanted, device = self.experiment.teacher_precision, self.context.device
        precision = wanted if wanted in known_precisions(device) else "fp32"
        self._engine = TeacherEngine(device=device, precision=precision, plans=self.context.plans)
        # With partial participation some have never learned; nobody has been taught by them either. An attacker
        # stands here with what it published, not with what it knows.
        if method.teachers == "experts":
            self._experts = _kept_experts(self.roster)
        self._taught_by = _routes_to(method, self.context, self.roster, self.round_index)
        self.teachers = [slot for slot in self.roster if self._is_teacher(slot)] or list(self.roster)
        self.statistics = [self._statistics_of(slot) for slot in self.teachers]
        if not self.students:
            raise RunError(f"{run} has nobody who was taught by round {self.round_index}: continue the run first")

    @property
    def students(self) -> list[int]:
        """Return every client that is taught by others: all, unless only one of them has ever learned."""
        return [slot.index for slot in self.roster if self.of_student(slot.index)]

    @property
    def searched(self) -> list[int]:
        """Return the test images among which cases are looked for."""
        limit = max(50, SEARCHED_OUTPUTS // len(self.teachers))
        return list(range(min(SEARCHED_IMAGES, limit, len(self.context.data.global_test))))

    def outputs(self, images: Sequence[int]) -> Tensor:
        """Return what every client says about these test images, q_NBC."""
        where = torch.tensor(images, device=self.context.data.global_test.samples.device)
        with repeatable(0, device=self.context.device):
            return soft_predictions(
                [partial(self._run_of, slot) for slot in self.teachers],
                self.context.data.preprocessor.inputs(self.context.data.global_test.samples[where]),
                temperature=self.experiment.temperature,
            )

    def of_student(self, student: int) -> list[int]:
        """Return the places among the teachers that teach this student: by the method's routes, or experts it keeps."""
        if self._experts is not None:
            return [k for k, slot in enumerate(self.teachers) if slot.index in self._experts[student]]
        return [k for k, slot in enumerate(self.teachers) if slot.index in self._taught_by.get(student, ())]

    def combine(self, student: int, q_NBC: Tensor) -> Trace:
        """Combine the student's teachers by the rule, and return every step."""
        evidence = check_evidence(
            q_NBC[self.of_student(student)],
            self.stats(student),
            min_support=self.experiment.min_support,
            epsilon=self.experiment.epsilon,
        )
        evidence = correct(
            evidence,
            teacher_prior=self.experiment.recipe.teacher_prior,
            temperature=self.experiment.temperature,
            published_KC=self._published(self.of_student(student)).counts_KC,
        )
        return trace(evidence, self._rule, unsupported=self.experiment.unsupported)

    def corrected(self, q_NBC: Tensor) -> Tensor | None:
        """Return what is heard of every client's word once its own class shares are out; None where they stay in."""
        if self.experiment.recipe.teacher_prior == "keep":
            return None
        counts_NC = self._published(range(len(self.teachers))).counts_KC
        return remove_prior(q_NBC, counts_NC, temperature=self.experiment.temperature)

    def stats(self, student: int) -> TeacherStats:
        """Return what the student knows of its teachers: what they published, and what it counts on its own samples."""
        published = self._published(self.of_student(student))
        return known_stats(published, self._tally_of(student), source=self._source)

    def is_attacker(self, client: int) -> bool:
        """Return whether it attacked the others."""
        return client in self.context.adversary.attackers

    def _published(self, places: Sequence[int]) -> TeacherStats:
        return stack_statistics([self.statistics[k] for k in places])

    def _run_of(self, slot: PeerSlot) -> PreparedTeacher:
        """Prepare a teacher from its resting state; one at a time."""
        if (expert := self._expert_of(slot)) is not None:
            kept = untrained_model(self.context, slot.member)
            kept.load_state_dict(expert.tensors)
            return self._engine.prepare(kept.eval().requires_grad_(False), key=slot.member.architecture.id)
        model = None if slot.state is None else untrained_model(self.context, slot.member)
        peer = Peer(self.context, slot.member, model=model)
        if slot.state is not None:
            peer.load_state(load_tensors(slot.state), slot.measured)
        if self.is_attacker(slot.index):
            peer.model.load_state_dict(peer.published_weights(self.round_index + 1))
        return self._engine.prepare(peer.model.eval().requires_grad_(False), key=slot.member.architecture.id)

    def _is_teacher(self, slot: PeerSlot) -> bool:
        return slot.state is not None if self._experts is None else self._expert_of(slot) is not None

    def _expert_of(self, slot: PeerSlot) -> Snapshot | None:
        """Return a client's expert as the others have it, or as it has it itself if nobody else does."""
        if self._experts is None:
            return None
        whose = sorted(self._experts, key=lambda student: student == slot.index)
        return next((self._experts[one][slot.index] for one in whose if slot.index in self._experts[one]), None)

    def _statistics_of(self, slot: PeerSlot) -> Statistics:
        expert = self._expert_of(slot)
        if expert is not None:
            return expert.statistics
        return class_statistics(
            self.context, slot.index, slot.measured, with_cross_entropy=self._rule.needs_cross_entropy
        )

    def _tally_of(self, student: int) -> Tally | None:
        if self._source == "reported":
            return None
        if not self._tallies:
            self._count()
        return self._tallies[student]

    def _count(self) -> None:
        """Run every teacher once over everybody's training samples, as they are.

        What each student would count of it.
        """
        parts = [self._training_part(slot) for slot in self.roster]
        self._tallies = {
            slot.index: Tally(len(self.of_student(slot.index)), self.context.data.num_classes) for slot in self.roster
        }
        with repeatable(0, device=self.context.device):
            for n, teacher in enumerate(self.teachers):
                run = self._run_of(teacher)
                for slot, part in zip(self.roster, parts, strict=True):
                    chosen = self.of_student(slot.index)
                    if n not in chosen or not len(part):
                        continue
                    said_1BC = run(self.context.data.preprocessor.inputs(part.samples)).unsqueeze(0)
                    mask_K = torch.arange(len(chosen)) == chosen.index(n)
                    self._tallies[slot.index].add(said_1BC, part.labels, mask_K, is_new=n == chosen[0])

    def _training_part(self, slot: PeerSlot) -> SampleSet:
        """Return some of its training samples, spread over the shard: files are often ordered by class."""
        own = training_samples(self.context, slot.index, slot.member.clients)
        limit = TALLIED_OUTPUTS // (len(self.teachers) * len(self.roster))
        step = math.ceil(len(own) / min(TALLIED_IMAGES, max(FEWEST_TALLIED, limit)))
        every = slice(None, None, max(1, step))
        return SampleSet(own.samples[every], own.labels[every])


def is_inspectable(method: Method, clients: int) -> bool:
    """Return whether a run of the method teaches clients by what clients' models say, combined by a rule."""
    return method.rule is not None and clients > 1


def _routes_to(method: Method, context: RunContext, roster: Roster, round_index: int) -> dict[int, set[int]]:
    """Return by whom every client is taught in a round for which everybody was drawn."""
    participants = RoundParticipants(context, tuple(slot.member for slot in roster), round_index)
    found: dict[int, set[int]] = {}
    for phase in method.phases:
        if phase.publish is not None:
            for student, senders in phase.routes(participants).items():
                found.setdefault(student, set()).update(senders)
    return found


def _kept_experts(roster: Roster) -> dict[int, dict[int, Snapshot]]:
    """Return the experts that every client keeps, by client and owner."""
    found = {}
    for slot in roster:
        tensors = {} if slot.state is None else load_tensors(slot.state)
        memory = {name.removeprefix("memory."): one for name, one in tensors.items() if name.startswith("memory.")}
        found[slot.index] = {one.peer: one for one in teachers_in(memory, roster.context, peer=slot.index)}
    return found


def _selected_round(directory: RunDirectory) -> int:
    selected = selected_round(directory.full_rounds())
    saved = saved_rounds(directory.checkpoint_folder)
    if selected is not None and selected["round"] in saved:
        return int(selected["round"])
    latest = latest_round(directory.checkpoint_folder)
    if latest is None:
        raise RunError(
            f"{directory.path} has no complete round yet: continue it with crad run --resume {directory.path}"
        )
    return latest
