"""The loop: draw who is active, let everybody publish, then learn, then measure. One loop for every world."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from crad.errors import RunError
from crad.federation.exchange import Exchange
from crad.federation.memory import peak_memory_bytes
from crad.federation.method import Learned, Method, Phase, RoundContext
from crad.federation.peer import Peer
from crad.federation.teachers import TeacherShelf
from crad.learning.device import repeatable
from crad.randomness import stream, torch_seed

T = TypeVar("T")


class Engine(Protocol):
    """Runs the same work for several peers; the order and the place must not matter."""

    def each(self, work: Callable[[Peer], T], peers: Sequence[Peer]) -> Iterator[T]:
        """Results in the order of the peers."""
        ...


@dataclass(frozen=True)
class Step:
    """One peer has finished learning and been validated: what a progress display needs."""

    round_index: int
    rounds: int
    position: int  # of this peer among the active, from 1
    active: int
    client: int
    loss: float
    validation_accuracy: float


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
    seconds: float
    peak_memory_bytes: int


class Rounds:
    """All rounds of one experiment over one roster."""

    def __init__(self, method: Method, peers: Sequence[Peer], *, exchange: Exchange, engine: Engine) -> None:
        self._method = method
        self._peers = peers
        self._exchange = exchange
        self._engine = engine
        self._experiment = peers[0].world.experiment
        self._shelf = TeacherShelf(peers[0].world)

    def run(self, *, after: int = 0, on_step: Callable[[Step], None] | None = None) -> Iterator[Round]:
        """The rounds after a given one, in order; the peers are up to date whenever a round is yielded."""
        for round_index in range(after + 1, self._experiment.rounds + 1):
            yield self._run_one(round_index, on_step or (lambda step: None))

    def _run_one(self, round_index: int, on_step: Callable[[Step], None]) -> Round:
        started = time.perf_counter()
        active = draw_active(self._peers, self._experiment.active, seed=self._experiment.seed, round_index=round_index)
        sent_before, received_before = dict(self._exchange.ledger.sent), dict(self._exchange.ledger.received)
        learned: dict[int, Learned] = {}
        missing: dict[int, list[int]] = {}
        following = [*self._method.phases[1:], None]
        for phase, after in zip(self._method.phases, following, strict=True):
            # Statistics are published with the weights they were measured on.
            is_measured = after is None or after.publish is not None
            self._publish(phase, active, round_index)
            for peer, report, absent in self._learn(phase, active, round_index, is_measured=is_measured):
                learned[peer.index] = _merge(learned.get(peer.index), report)
                if absent:
                    missing[peer.index] = sorted({*missing.get(peer.index, []), *absent})
                if after is None:
                    on_step(self._step(peer, learned[peer.index], round_index, active))
        is_tested = round_index % self._experiment.eval_every == 0 or round_index == self._experiment.rounds
        if is_tested:
            self._test(round_index)
        ledger = self._exchange.ledger
        return Round(
            index=round_index,
            active=tuple(peer.index for peer in active),
            learned=learned,
            missing=missing,
            sent_bytes={p.index: ledger.sent[p.index] - sent_before.get(p.index, 0) for p in self._peers},
            received_bytes={p.index: ledger.received[p.index] - received_before.get(p.index, 0) for p in self._peers},
            is_tested=is_tested,
            seconds=time.perf_counter() - started,
            peak_memory_bytes=peak_memory_bytes(self._peers[0].world.device),
        )

    def _publish(self, phase: Phase, active: Sequence[Peer], round_index: int) -> None:
        # Everybody publishes before anybody learns: round r-1 snapshots hold by construction.
        if phase.publish is None:
            return
        context = RoundContext(round_index, self._shelf)
        for peer in active:
            message = phase.publish(peer, context)
            self._exchange.publish(round_index, sender=peer.index, kind=phase.kind, message=message)

    def _learn(
        self, phase: Phase, active: Sequence[Peer], round_index: int, *, is_measured: bool
    ) -> Iterator[tuple[Peer, Learned, list[int]]]:
        context = RoundContext(round_index, self._shelf)

        def work(peer: Peer) -> tuple[Peer, Learned, list[int]]:
            others = [other.index for other in active if other is not peer] if phase.publish else []
            got, absent = self._exchange.collect(round_index, receiver=peer.index, peers=others, kind=phase.kind)
            seed = torch_seed(self._experiment.seed, *context.purpose(peer, phase.kind, "torch"))
            with repeatable(seed, peer.world.device):
                report = phase.learn(peer, got, context)
                _check_converging(peer, report.losses, round_index)
                if is_measured:
                    peer.revalidate()
                    sums = [total for one in peer.standing.validation for total in one.cross_entropy_sums]
                    _check_converging(peer, {"validation": sum(sums)}, round_index)
            return peer, report, absent

        return self._engine.each(work, active)

    def _test(self, round_index: int) -> None:
        def work(peer: Peer) -> None:
            with repeatable(torch_seed(self._experiment.seed, "test", round_index), peer.world.device):
                peer.test()

        for _ in self._engine.each(work, self._peers):
            pass

    def _step(self, peer: Peer, learned: Learned, round_index: int, active: Sequence[Peer]) -> Step:
        return Step(
            round_index=round_index,
            rounds=self._experiment.rounds,
            position=1 + [other.index for other in active].index(peer.index),
            active=len(active),
            client=peer.index,
            loss=learned.losses.get("total", float("nan")),
            validation_accuracy=_mean([score.accuracy for score in peer.standing.validation]),
        )


def draw_active(peers: Sequence[Peer], active: int | None, *, seed: int, round_index: int) -> list[Peer]:
    """The clients of a round, drawn without replacement; everybody when no number is set."""
    if active is None or active >= len(peers):
        return list(peers)
    chosen = stream(seed, "round", round_index, "participation").choice(len(peers), size=active, replace=False)
    return [peers[i] for i in sorted(chosen.tolist())]


def _check_converging(peer: Peer, losses: Mapping[str, float], round_index: int) -> None:
    wrong = {name: value for name, value in losses.items() if not abs(value) < float("inf")}
    if wrong:
        name, value = next(iter(wrong.items()))
        raise RunError(
            f"client {peer.index} ({peer.architecture}) diverged in round {round_index}: its {name} loss is {value}; "
            f"lower lr (now {peer.world.experiment.lr:g}) or clip_norm (now {peer.world.experiment.clip_norm:g})"
        )


def _merge(before: Learned | None, now: Learned) -> Learned:
    if before is None:
        return now
    notes: dict[str, Any] = {**before.notes, **now.notes}
    return Learned({**before.losses, **now.losses}, {**before.trust, **now.trust}, notes)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
