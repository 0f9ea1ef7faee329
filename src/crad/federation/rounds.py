"""One round after the other: draw who is active, let everybody publish, then learn, then measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from crad.device import MemoryPeaks
from crad.federation.committee_score import CommitteeScore, has_committee, is_heard, members_of, score_committee
from crad.federation.exchange import Exchange, OvertakenError
from crad.federation.message import message_in_file
from crad.federation.method import Learned, Method, Phase
from crad.federation.roster import PeerSlot, Roster
from crad.federation.tasks import Engine, Task, TaskOutcome, Verb
from crad.federation.topology import RoundParticipants, Routes
from crad.randomness import stream
from crad.training.clipping import added

Stage = Literal["measuring", "learning", "testing"]


@dataclass(frozen=True)
class Step:
    """One peer has been measured, has learned or has been tested: what a progress display needs."""

    stage: Stage
    round_index: int
    rounds: int
    position: int  # how many peers of this stage are done
    total: int
    client: int
    loss: float = float("nan")
    validation_accuracy: float = float("nan")


@dataclass(frozen=True)
class Traffic:
    """The bytes of one round by member. What clients exchange with a helper is kept apart."""

    sent: dict[int, int]  # between clients
    received: dict[int, int]
    published: dict[int, int]  # every message to clients once, however many of them received it
    helper_sent: dict[int, int]  # from clients to helpers; a helper's own to the clients
    helper_received: dict[int, int]


@dataclass(frozen=True)
class Round:
    """One finished round: who took part, what they reported, what it cost."""

    index: int
    active: tuple[int, ...]
    learned: dict[int, Learned]
    missing: dict[int, list[int]]
    traffic: Traffic
    payload_bytes: int  # of all clients together, as the method's tables count it
    is_tested: bool
    is_preparation: bool  # its models are not yet what the method is about
    measured: tuple[int, ...]  # whose figures are new since the round before
    seconds: float
    memory: MemoryPeaks
    committee: CommitteeScore | None = None  # how all do together, where the round was tested and that is measured


OnStep = Callable[[Step], None]


class RoundRunner:
    """All rounds of one experiment over one roster."""

    def __init__(self, method: Method, roster: Roster, *, exchange: Exchange, engine: Engine) -> None:
        self._method = method
        self._roster = roster
        self._exchange = exchange
        self._engine = engine
        self._experiment = roster.context.experiment
        self._has_committee = has_committee(roster)
        self._pace: dict[tuple[str, int, str], float] = {}  # seconds per unit of work: verb, phase, architecture

    def run(self, *, after: int = 0, on_step: OnStep = lambda step: None) -> Iterator[Round]:
        """Run the rounds after a given one, in order; the roster is up to date whenever a round is yielded."""
        self._measure(on_step)
        round_index = after
        while (round_index := next_round(round_index, self._exchange)) <= self._experiment.rounds:
            try:
                done = self._run_one(round_index, on_step)
            except OvertakenError:
                continue
            yield done

    def _run_one(self, round_index: int, on_step: OnStep) -> Round:
        started = time.perf_counter()
        participants = self._participants(round_index)
        before, published = dict(self._exchange.traffic.between), dict.fromkeys(participants.clients, 0)
        learned: dict[int, Learned] = {}
        missing: dict[int, list[int]] = {}
        plan = [phase.routes(participants) for phase in self._method.phases]
        total, position = sum(len(self._roster.here & set(routes)) for routes in plan), 0
        for number, phase in enumerate(self._method.phases):
            for sender, size in self._publish(number, phase, plan[number], round_index):
                published[sender] = published.get(sender, 0) + size
            tasks, absent = self._learning(number, phase, plan, round_index)
            missing |= {index: sorted({*missing.get(index, []), *those}) for index, those in absent.items()}
            for outcome in self._engine.each(tasks):
                position += 1
                self._store_outcome(outcome, number, round_index)
                assert outcome.learned is not None, "learning reports"
                learned[outcome.peer] = _merge(learned.get(outcome.peer), outcome.learned)
                on_step(self._step("learning", round_index, position, total, outcome))
        self._roster.forget_messages(before=round_index)
        is_tested = round_index % self._experiment.eval_every == 0 or round_index == self._experiment.rounds
        tested = self._test(round_index, on_step) if is_tested else []
        committee = self._score_committee(round_index) if is_tested and self._has_committee else None
        first = [slot.index for slot in self._roster.own()] if round_index == 1 else []
        traffic = self._traffic(before, published)
        counted = [traffic.sent] if self._method.payload == "sent" else [traffic.sent, traffic.received]
        return Round(
            index=round_index,
            active=participants.clients,
            learned={member.index: learned[member.index] for member in participants.members if member.index in learned},
            missing={index: missing[index] for index in sorted(missing)},
            traffic=traffic,
            payload_bytes=sum(sum(column.values()) for column in counted),
            is_tested=is_tested,
            is_preparation=round_index <= self._method.preparation(self._experiment),
            measured=tuple(sorted({*participants.clients, *tested, *first} & self._roster.here)),
            seconds=time.perf_counter() - started,
            memory=self._engine.memory_peaks(),
            committee=committee,
        )

    def _participants(self, round_index: int) -> RoundParticipants:
        """Return the drawn clients, and every member that owns no data."""
        members = [slot.member for slot in self._roster]
        clients = [member for member in members if member.clients]
        drawn = draw_active(len(clients), self._experiment.active, self._experiment.seed, round_index)
        helpers = [member for member in members if not member.clients]
        return RoundParticipants(self._roster.context, (*(clients[i] for i in drawn), *helpers), round_index)

    def _traffic(self, before: Mapping[tuple[int, int], int], published: dict[int, int]) -> Traffic:
        """Return what was exchanged since these totals between two members each."""
        members = {slot.index: slot.member for slot in self._roster}
        columns: list[dict[int, int]] = [dict.fromkeys(members, 0) for _ in range(4)]
        sent, received, helper_sent, helper_received = columns
        for (sender, receiver), count in self._exchange.traffic.between.items():
            new = count - before.get((sender, receiver), 0)
            is_among_clients = bool(members[sender].clients and members[receiver].clients)
            (sent if is_among_clients else helper_sent)[sender] += new
            (received if is_among_clients else helper_received)[receiver] += new
        return Traffic(sent, received, published, helper_sent, helper_received)

    def _measure(self, on_step: OnStep) -> None:
        """Measure everybody first: the metrics average over all clients, also those that are never drawn."""
        new = [slot for slot in self._roster.own() if slot.evaluation is None]
        tasks = [self._task("begin", slot) for slot in new]
        for position, outcome in enumerate(self._engine.each(tasks), start=1):
            self._roster.update(outcome.peer, evaluation=outcome.evaluation)
            on_step(self._step("measuring", 0, position, len(tasks), outcome))

    def _publish(self, number: int, phase: Phase, routes: Routes, round_index: int) -> list[tuple[int, int]]:
        """Have the phase's messages made and put on the exchange; by sender the bytes of those that clients get."""
        # Everybody publishes before anybody learns: round r-1 snapshots hold by construction.
        if phase.publish is None:
            return []
        folder = self._roster.messages_of(round_index)
        folder.mkdir(exist_ok=True)
        addresses = [address for address in _addresses(phase, routes) if address[0] in self._roster.here]
        files = {address: folder / _file_name(number, *address) for address in addresses}
        tasks = [
            replace(self._task("publish", self._roster[sender], round_index, number), save_to=file, receiver=receiver)
            for (sender, receiver), file in files.items()
        ]
        manifests = {(outcome.peer, outcome.receiver): outcome.manifest for outcome in self._engine.each(tasks)}
        sizes = []
        for (sender, receiver), file in files.items():
            manifest = manifests[sender, receiver]
            if manifest is None:
                continue
            message = message_in_file(manifest, file)
            self._exchange.publish(round_index, sender=sender, kind=_kind(phase, receiver), message=message)
            receivers = [receiver] if receiver is not None else [one for one in routes if sender in routes[one]]
            if any(self._roster[one].member.clients for one in receivers):
                sizes.append((sender, message.payload_bytes))
        return sizes

    def _learning(
        self, number: int, phase: Phase, plan: Sequence[Routes], round_index: int
    ) -> tuple[list[Task], dict[int, list[int]]]:
        tasks, missing = [], {}
        for index, senders in plan[number].items():
            if index not in self._roster.here:
                continue
            kind = _kind(phase, index if phase.is_addressed else None)
            others = senders if phase.publish else ()
            # The last round needs no quorum: nothing is built on it, and the others may have ended already.
            quorum = 0 if round_index == self._experiment.rounds else None
            try:
                got, absent = self._exchange.collect(
                    round_index, receiver=index, peers=others, kind=kind, quorum=quorum
                )
            except OvertakenError:
                if number == 0:
                    raise
                got, absent = {}, list(others)  # a round that has begun to change the model is brought to its end
            save_to = self._roster.new_state(index, round_index=round_index, phase=number)
            task = self._task("learn", self._roster[index], round_index, number, save_to=save_to)
            tasks.append(replace(task, messages=got, is_measured=self._is_measured(index, plan, number)))
            if absent:
                missing[index] = absent
        return tasks, missing

    def _is_measured(self, index: int, plan: Sequence[Routes], number: int) -> bool:
        """Tell whether to measure: statistics belong to the weights they are published with, and the last count."""
        for phase, routes in list(zip(self._method.phases, plan, strict=True))[number + 1 :]:
            is_sender = phase.publish is not None and any(index in senders for senders in routes.values())
            if is_sender and phase.has_statistics:
                return True
            if index in routes:
                return False
        return True

    def _test(self, round_index: int, on_step: OnStep) -> list[int]:
        """Measure both metrics of everybody whose model has moved since they were last measured."""
        clients = [slot for slot in self._roster.own() if slot.member.clients]
        stale = [slot for slot in clients if slot.measured.local is None]
        tasks = [self._task("test", slot, round_index) for slot in stale]
        if self._has_committee:
            self._roster.logits.mkdir(exist_ok=True)
            members = members_of(self._roster)
            files = {slot.index: self._roster.logits_of(slot) for slot in members}
            unheard = [slot for slot in members if slot not in stale and not is_heard(self._roster, slot)]
            tasks += [self._task("test", slot, round_index) for slot in unheard]
            tasks = [
                replace(task, save_to=files[task.peer], has_logits=True) if task.peer in files else task
                for task in tasks
            ]
        for position, outcome in enumerate(self._engine.each(tasks), start=1):
            self._roster.update(outcome.peer, evaluation=outcome.evaluation)
            self._note_pace(outcome)
            on_step(self._step("testing", round_index, position, len(tasks), outcome))
        return [slot.index for slot in stale]

    def _score_committee(self, round_index: int) -> CommitteeScore:
        """Measure how all do together, from what each said in its test."""
        self._roster.forget_logits(keep={self._roster.logits_of(slot) for slot in self._roster})
        return score_committee(self._roster, round_index=round_index)

    def _task(
        self, verb: Verb, slot: PeerSlot, round_index: int = 0, phase: int = 0, *, save_to: Path | None = None
    ) -> Task:
        return Task(
            verb,
            slot.index,
            slot.evaluation,
            slot.state,
            round_index=round_index,
            phase=phase,
            save_to=save_to,
            cost=self._expected_seconds(verb, phase, slot),
        )

    def _store_outcome(self, outcome: TaskOutcome, phase: int, round_index: int) -> None:
        state = self._roster.new_state(outcome.peer, round_index=round_index, phase=phase)
        self._roster.update(outcome.peer, evaluation=outcome.evaluation, state=state)
        self._note_pace(outcome, phase)

    def _size(self, verb: Verb, slot: PeerSlot) -> int:
        """Return how much there is to do: learning grows with the shard, the test images are the same for everybody."""
        if verb != "learn":
            return 1
        return max(1, sum(len(self._roster.context.data.shards[client].train) for client in slot.member.clients))

    def _note_pace(self, outcome: TaskOutcome, phase: int = 0) -> None:
        slot = self._roster[outcome.peer]
        key = (outcome.verb, phase, slot.member.architecture.id)
        self._pace[key] = outcome.seconds / self._size(outcome.verb, slot)

    def _expected_seconds(self, verb: Verb, phase: int, slot: PeerSlot) -> float:
        # An architecture that has not been timed yet counts as slow as the slowest: better begun early than late.
        known = [pace for (*what, _), pace in self._pace.items() if what == [verb, phase]]
        pace = self._pace.get((verb, phase, slot.member.architecture.id), max(known, default=1.0))
        return pace * self._size(verb, slot)

    def _step(self, stage: Stage, round_index: int, position: int, total: int, outcome: TaskOutcome) -> Step:
        accuracies = [score.accuracy for score in outcome.evaluation.validation]
        losses = {} if outcome.learned is None else outcome.learned.losses
        return Step(
            stage=stage,
            round_index=round_index,
            rounds=self._experiment.rounds,
            position=position,
            total=total,
            client=outcome.peer,
            loss=losses.get("total", float("nan")),
            validation_accuracy=sum(accuracies) / len(accuracies) if accuracies else float("nan"),
        )


def next_round(after: int, exchange: Exchange) -> int:
    """Return the round to go on with: who was away goes on where the others are. In a simulation nobody is ahead."""
    return max(after + 1, exchange.latest() or 0)


def draw_active(members: int, active: int | None, seed: int, round_index: int) -> list[int]:
    """Draw the members of a round without replacement; everybody when no number is set."""
    if active is None or active >= members:
        return list(range(members))
    chosen = stream(seed, "round", round_index, "participation").choice(members, size=active, replace=False)
    return sorted(chosen.tolist())


def _merge(before: Learned | None, now: Learned) -> Learned:
    if before is None:
        return now
    notes: dict[str, Any] = {**before.notes, **now.notes}
    losses, trust = {**before.losses, **now.losses}, {**before.trust, **now.trust}
    clipped = added(before.clipped, now.clipped)
    return Learned(losses, trust, notes, {**before.artifacts, **now.artifacts}, clipped)


def _addresses(phase: Phase, routes: Routes) -> list[tuple[int, int | None]]:
    """Return sender and receiver of every message; no receiver where all get the same."""
    if phase.is_addressed:
        return [(sender, receiver) for receiver, senders in routes.items() for sender in senders]
    return [(sender, None) for sender in sorted({sender for senders in routes.values() for sender in senders})]


def _file_name(phase: int, sender: int, receiver: int | None) -> str:
    address = "" if receiver is None else f"-to-{receiver:04d}"
    return f"peer-{sender:04d}-phase-{phase}{address}.safetensors"


def _kind(phase: Phase, receiver: int | None) -> str:
    return phase.kind if receiver is None else f"{phase.kind}-to-{receiver}"
