"""The loop: draw who is active, let everybody publish, then learn, then measure. One loop for every world."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from crad.federation.exchange import Exchange
from crad.federation.message import message_in_file
from crad.federation.method import Learned, Method, Phase
from crad.federation.roster import Place, Roster
from crad.federation.work import Engine, Outcome, Task, Verb
from crad.randomness import stream

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
class Round:
    """One finished round: who took part, what they reported, what it cost."""

    index: int
    active: tuple[int, ...]
    learned: dict[int, Learned]
    missing: dict[int, list[int]]
    sent_bytes: dict[int, int]
    received_bytes: dict[int, int]
    is_tested: bool
    measured: tuple[int, ...]  # whose figures are new since the round before
    seconds: float
    peak_memory_bytes: int


OnStep = Callable[[Step], None]


class Rounds:
    """All rounds of one experiment over one roster."""

    def __init__(self, method: Method, roster: Roster, *, exchange: Exchange, engine: Engine) -> None:
        self._method = method
        self._roster = roster
        self._exchange = exchange
        self._engine = engine
        self._experiment = roster.world.experiment
        self._pace: dict[tuple[str, str], float] = {}  # seconds per unit of work, by verb and architecture

    def run(self, *, after: int = 0, on_step: OnStep = lambda step: None) -> Iterator[Round]:
        """The rounds after a given one, in order; the roster is up to date whenever a round is yielded."""
        self._measure(on_step)
        for round_index in range(after + 1, self._experiment.rounds + 1):
            yield self._run_one(round_index, on_step)

    def _run_one(self, round_index: int, on_step: OnStep) -> Round:
        started = time.perf_counter()
        drawn = draw_active(len(self._roster), self._experiment.active, self._experiment.seed, round_index)
        active = tuple(list(self._roster)[i].index for i in drawn)
        sent_before, received_before = dict(self._exchange.ledger.sent), dict(self._exchange.ledger.received)
        learned: dict[int, Learned] = {}
        missing: dict[int, list[int]] = {}
        following = [*self._method.phases[1:], None]
        for number, (phase, after) in enumerate(zip(self._method.phases, following, strict=True)):
            self._publish(number, phase, active, round_index)
            # Statistics are published with the weights they were measured on.
            is_measured = after is None or after.publish is not None
            tasks, absent = self._learning(number, phase, active, round_index, is_measured=is_measured)
            missing |= {index: sorted({*missing.get(index, []), *those}) for index, those in absent.items()}
            for position, outcome in enumerate(self._engine.each(tasks), start=1):
                self._take(outcome, number, round_index)
                assert outcome.learned is not None, "learning reports"
                learned[outcome.peer] = _merge(learned.get(outcome.peer), outcome.learned)
                if after is None:
                    on_step(self._step("learning", round_index, position, len(tasks), outcome))
        self._roster.forget_messages(before=round_index)
        is_tested = round_index % self._experiment.eval_every == 0 or round_index == self._experiment.rounds
        tested = self._test(round_index, on_step) if is_tested else []
        first = [place.index for place in self._roster] if round_index == 1 else []
        ledger = self._exchange.ledger
        return Round(
            index=round_index,
            active=active,
            learned={index: learned[index] for index in active},
            missing={index: missing[index] for index in active if index in missing},
            sent_bytes={p.index: ledger.sent[p.index] - sent_before.get(p.index, 0) for p in self._roster},
            received_bytes={p.index: ledger.received[p.index] - received_before.get(p.index, 0) for p in self._roster},
            is_tested=is_tested,
            measured=tuple(sorted({*active, *tested, *first})),
            seconds=time.perf_counter() - started,
            peak_memory_bytes=self._engine.peak_memory_bytes(),
        )

    def _measure(self, on_step: OnStep) -> None:
        """Everybody's first standing: the metrics average over all clients, also those that are never drawn."""
        new = [place for place in self._roster if place.standing is None]
        tasks = [self._task("begin", place) for place in new]
        for position, outcome in enumerate(self._engine.each(tasks), start=1):
            self._roster.update(outcome.peer, standing=outcome.standing)
            on_step(self._step("measuring", 0, position, len(tasks), outcome))

    def _publish(self, number: int, phase: Phase, active: Sequence[int], round_index: int) -> None:
        # Everybody publishes before anybody learns: round r-1 snapshots hold by construction.
        if phase.publish is None:
            return
        folder = self._roster.messages_of(round_index)
        folder.mkdir(exist_ok=True)
        files = {i: folder / f"peer-{i:04d}-phase-{number}.safetensors" for i in active}
        tasks = [self._task("publish", self._roster[i], round_index, number, save_to=files[i]) for i in active]
        manifests = {outcome.peer: outcome.manifest for outcome in self._engine.each(tasks)}
        for index in active:
            message = message_in_file(manifests[index] or b"", files[index])
            self._exchange.publish(round_index, sender=index, kind=phase.kind, message=message)

    def _learning(
        self, number: int, phase: Phase, active: Sequence[int], round_index: int, *, is_measured: bool
    ) -> tuple[list[Task], dict[int, list[int]]]:
        tasks, missing = [], {}
        for index in active:
            others = [other for other in active if other != index] if phase.publish else []
            got, absent = self._exchange.collect(round_index, receiver=index, peers=others, kind=phase.kind)
            save_to = self._roster.new_state(index, round_index=round_index, phase=number)
            task = self._task("learn", self._roster[index], round_index, number, save_to=save_to)
            tasks.append(replace(task, messages=got, is_measured=is_measured))
            if absent:
                missing[index] = absent
        return tasks, missing

    def _test(self, round_index: int, on_step: OnStep) -> list[int]:
        """Both metrics of everybody whose model has moved since they were last measured."""
        stale = [place for place in self._roster if place.measured.overall is None and place.member.clients]
        tasks = [self._task("test", place, round_index) for place in stale]
        for position, outcome in enumerate(self._engine.each(tasks), start=1):
            self._roster.update(outcome.peer, standing=outcome.standing)
            self._note_pace(outcome)
            on_step(self._step("testing", round_index, position, len(tasks), outcome))
        return [place.index for place in stale]

    def _task(
        self, verb: Verb, place: Place, round_index: int = 0, phase: int = 0, *, save_to: Path | None = None
    ) -> Task:
        return Task(
            verb,
            place.index,
            place.standing,
            place.state,
            round_index=round_index,
            phase=phase,
            save_to=save_to,
            cost=self._expected_seconds(verb, place),
        )

    def _take(self, outcome: Outcome, phase: int, round_index: int) -> None:
        state = self._roster.new_state(outcome.peer, round_index=round_index, phase=phase)
        self._roster.update(outcome.peer, standing=outcome.standing, state=state)
        self._note_pace(outcome)

    def _size(self, verb: Verb, place: Place) -> int:
        """How much there is to do: learning grows with the shard, the test images are the same for everybody."""
        if verb != "learn":
            return 1
        return max(1, sum(len(self._roster.world.shards[client].train) for client in place.member.clients))

    def _note_pace(self, outcome: Outcome) -> None:
        place = self._roster[outcome.peer]
        key = (outcome.verb, place.member.architecture.id)
        self._pace[key] = outcome.seconds / self._size(outcome.verb, place)

    def _expected_seconds(self, verb: Verb, place: Place) -> float:
        # An architecture that has not been timed yet counts as slow as the slowest: better begun early than late.
        known = [pace for (what, _), pace in self._pace.items() if what == verb]
        pace = self._pace.get((verb, place.member.architecture.id), max(known, default=1.0))
        return pace * self._size(verb, place)

    def _step(self, stage: Stage, round_index: int, position: int, total: int, outcome: Outcome) -> Step:
        accuracies = [score.accuracy for score in outcome.standing.validation]
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


def draw_active(members: int, active: int | None, seed: int, round_index: int) -> list[int]:
    """The members of a round, drawn without replacement; everybody when no number is set."""
    if active is None or active >= members:
        return list(range(members))
    chosen = stream(seed, "round", round_index, "participation").choice(members, size=active, replace=False)
    return sorted(chosen.tolist())


def _merge(before: Learned | None, now: Learned) -> Learned:
    if before is None:
        return now
    notes: dict[str, Any] = {**before.notes, **now.notes}
    return Learned({**before.losses, **now.losses}, {**before.trust, **now.trust}, notes)
