"""One schedule: drawn from its seed, run to its end, and looked at after every step."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from unittest import mock

import torch

from crad.errors import ExchangeError
from crad.federation.exchange import OvertakenError
from crad.federation.message import Message, pack
from crad.federation.rounds import next_round
from crad.network import arrivals
from crad.network.agreement import Agreement
from crad.network.envelope import open_envelope, seal
from crad.network.equivocation.proof import verify_proof
from crad.network.https.https_exchange import HttpsExchange
from crad.network.https.outbox import Outbox
from crad.network.identity import Identity
from crad.network.ledger import OutgoingLedger
from crad.network.member_exchange import ExchangePolicy, MemberExchange
from crad.network.store.bucket import STATE, Bucket
from crad.network.store.bucket_exchange import BucketExchange
from tests.organisations import agreed, make_identities
from tests.simulation.clock import VirtualClock
from tests.simulation.hostile import BEHAVIOURS, KIND, Hostile
from tests.simulation.network import Network, SimulatedLine, SimulatedServer, SimulatedStore

MOST_MEMBERS = 7
DEADLINE_S, GIVE_UP_S = 60.0, 5000.0
END_S = 40_000.0
SLACK_S = 60.0  # for everything that is neither training nor a deadline


class BrokenError(AssertionError):
    """The promise does not hold; says for which seed."""


@dataclass
class Plan:
    """What happens in a schedule, drawn before it begins."""

    seed: int
    members: int
    rounds: int
    exchange: str
    hostile: dict[int, str]
    training_s: dict[int, float]
    starts_s: dict[int, float]
    kills: list[tuple[float, int, float]]  # when, whom, and for how long
    cuts: list[tuple[float, int, int, float]]  # when, between whom, for how long
    outages: list[tuple[float, float]]  # of the store
    is_reproducible: bool  # whether training after a restart gives the same bits

    @property
    def undisturbed(self) -> set[int]:
        """The honest ones that start with the first, and are never killed nor cut off."""
        touched = {number for _, number, _ in self.kills} | {n for _, a, b, _ in self.cuts for n in (a, b)}
        return {n for n in range(self.members) if n not in self.hostile and n not in touched and not self.starts_s[n]}


def draw_plan(seed: int) -> Plan:
    """The schedule of this number."""
    rng = random.Random(seed)
    members = rng.randint(3, MOST_MEMBERS)
    hostile = {}
    for number in rng.sample(range(members), rng.randint(0, (members - 1) // 2)):
        hostile[number] = rng.choice(list(BEHAVIOURS))
    honest = [number for number in range(members) if number not in hostile]
    rounds = rng.randint(3, 8)
    span_s = rounds * 40.0
    is_calm = rng.random() < 0.4  # then everything that goes wrong is the hostile ones' doing
    starts = {n: 0.0 if is_calm or rng.random() < 0.7 else rng.uniform(0, span_s / 2) for n in honest}
    starts[rng.choice(honest)] = 0.0
    kills = [
        (rng.uniform(0, span_s), rng.choice(honest), rng.choice((0.5, 20.0, 150.0)))
        for _ in range(0 if is_calm else rng.choice((0, 1, 3, 6)))
    ]
    cuts = []
    for _ in range(0 if is_calm else rng.choice((0, 2, 8))):
        at, (one, other), for_s = rng.uniform(0, span_s), rng.sample(range(members), 2), rng.choice((2.0, 30.0, 200.0))
        cuts.append((at, one, other, for_s))
    outages = [(rng.uniform(0, span_s), rng.choice((1.0, 25.0))) for _ in range(0 if is_calm else rng.choice((0, 2)))]
    return Plan(
        seed=seed,
        members=members,
        rounds=rounds,
        exchange=rng.choice(("https", "https", "bucket")),
        hostile=hostile,
        training_s={n: rng.uniform(1, 15) for n in honest},
        starts_s={**starts, **dict.fromkeys(hostile, 0.0)},
        kills=sorted(kills),
        cuts=sorted(cuts),
        outages=sorted(outages),
        is_reproducible=rng.random() < 0.8,
    )


@dataclass
class Honest:
    """An honest member: what is on its disk, and how its lives went."""

    number: int
    folder: Path
    saved: int = 0  # the last complete round
    records: list[int] = field(default_factory=list)
    lives: int = 0
    is_alive: bool = False
    done_at: float | None = None
    gave_up_at: float | None = None


class World:
    """Everything in one schedule."""

    def __init__(self, plan: Plan, folder: Path, tell: Callable[[str], None]) -> None:
        self.plan, self.seed, self._tell = plan, plan.seed, tell
        self.rng = random.Random(f"world {plan.seed}")
        self.identities, self.agreement = federation(plan.members, plan.rounds, plan.exchange)
        self.clock = VirtualClock(plan.seed)
        self.network = Network(self.clock, self.agreement, self.rng)
        self.store = SimulatedStore(self.clock, self.rng)
        self.published: dict[tuple[int, int], bytes] = {}  # the envelopes of the honest, by member and round
        self.hostile = {n: Hostile(self, n, name, self.rng) for n, name in plan.hostile.items()}
        self.honest = {n: Honest(n, folder / f"member-{n}") for n in range(plan.members) if n not in plan.hostile}
        self.exchanges: dict[int, MemberExchange] = {}
        self._first_done: float | None = None

    # --- what happens

    def run(self) -> None:
        """Let the schedule happen; `BrokenError` if the promise does not hold."""
        for number, member in self.honest.items():
            self._begin(member, after_s=self.plan.starts_s[number])
        if self.plan.exchange == "https":
            self.network.hosts |= self.hostile
        else:
            for one in self.hostile.values():
                self.clock.start(partial(self._haunt, one), name=f"hostile-{one.number}", owner=one)
        self.clock.start(self._fate, name="fate", owner="fate")
        self.clock.run(
            until=lambda: all(one.done_at is not None or one.gave_up_at is not None for one in self.honest.values()),
            after_step=self._look,
            end=END_S,
        )
        self._look_at_the_end()

    def _begin(self, member: Honest, *, after_s: float) -> None:
        def live() -> None:
            self.clock.sleep(after_s)
            self._live(member)

        self.clock.start(live, name=f"member-{member.number}", owner=member)

    def _live(self, member: Honest) -> None:
        """One life of an honest member's process: what `crad peer join` does, without a model."""
        member.lives, member.is_alive = member.lives + 1, True
        exchange = self._open(member)
        exchange.begin(member.saved + 1)
        others = [number for number in range(self.plan.members) if number != member.number]
        index = member.saved
        try:
            while (index := next_round(index, exchange)) <= self.plan.rounds:
                self._check_not_pushed(member, index)
                life = 0 if self.plan.is_reproducible else member.lives
                message = self.message(member.number, index, life)
                exchange.publish(index, sender=member.number, kind=KIND, message=message)
                self._tell(f"{self.clock.now():8.2f} {member.number} is in round {index}")
                quorum = 0 if index == self.plan.rounds else None
                try:
                    got, _ = exchange.collect(index, receiver=member.number, peers=others, kind=KIND, quorum=quorum)
                except OvertakenError:
                    continue
                self.clock.sleep(self.plan.training_s[member.number])
                member.saved = index
                member.records.append(index)
                self._tell(f"{self.clock.now():8.2f} {member.number} ended round {index} with {sorted(got)}")
        except ExchangeError as error:
            self._tell(f"{self.clock.now():8.2f} {member.number} gives up: {error}")
            member.gave_up_at = self.clock.now()
        until = self.clock.now() + DEADLINE_S
        while exchange.readers_to_come() and self.clock.now() < until:
            self.clock.sleep(1.0)
        exchange.close()
        self._go_down(member)
        if member.gave_up_at is None:
            member.done_at = self.clock.now()

    def _open(self, member: Honest) -> MemberExchange:
        policy = ExchangePolicy(
            clock=self.clock,
            notice=lambda text: self._tell(f"{self.clock.now():8.2f} {member.number}: {text}"),
            on_refused=lambda name, reason: self._tell(f"{self.clock.now():8.2f} {member.number} refuses {reason}"),
        )
        identity, number = self.identities[member.number], member.number
        if self.plan.exchange == "https":
            server = SimulatedServer(Outbox(member.folder / "out", federation=self.agreement.hash))
            self.network.hosts[number] = server
            self.exchanges[number] = WatchedHttps(
                self.agreement,
                identity,
                member.folder,
                server,
                own=number,
                policy=policy,
                connect=lambda other: SimulatedLine(self.network, number, other),
            )
        else:
            self.exchanges[number] = WatchedBucket(
                self.agreement, identity, member.folder, own=number, outgoing=Nowhere(), policy=policy, store=self.store
            )
        self.exchanges[number].world = self  # type: ignore[attr-defined]
        return self.exchanges[number]

    def _go_down(self, member: Honest) -> None:
        member.is_alive = False
        host = self.network.hosts.get(member.number)
        if host is not None:
            host.is_up = False

    def _fate(self) -> None:
        """Kills, cuts and outages, each in its time."""
        events: list[tuple[float, Callable[[], None]]] = []
        for at, number, away_s in self.plan.kills:
            events.append((at, partial(self._kill, self.honest[number], away_s)))
        for at, one, other, for_s in self.plan.cuts:
            events.append((at, partial(self.network.cut, one, other, until=at + for_s)))
        for at, for_s in self.plan.outages:
            events.append((at, partial(setattr, self.store, "away_until", at + for_s)))
        for at, happen in sorted(events, key=lambda event: event[0]):
            self.clock.sleep(at - self.clock.now())
            happen()

    def _kill(self, member: Honest, away_s: float) -> None:
        if not member.is_alive or member.done_at is not None or member.gave_up_at is not None:
            return
        self._tell(f"{self.clock.now():8.2f} {member.number} is killed for {away_s} s")
        self.clock.kill(member)
        self._go_down(member)
        self._begin(member, after_s=away_s)

    def _haunt(self, one: Hostile) -> None:
        """A hostile member of a store: puts there what it would have answered, again and again."""
        bucket = Bucket(self.store, self.agreement, one.identity, Nowhere())
        folder = f"{self.agreement.hash[:16]}/{one.identity.name}"
        asker = 0
        while True:
            asker += 1
            reached = max([1, *(index for _, index in self.published)])
            for index in {reached, min(reached + 1, one.last), one.last}:
                with suppress(Exception):
                    self._plant(one, bucket, folder, index, asker)
            self.clock.sleep(3.0)

    def _plant(self, one: Hostile, bucket: Bucket, folder: str, index: int, asker: int) -> None:
        if one.behaviour == "says nothing":
            return
        answer = one.look(asker, index, KIND)
        if answer is None:
            return
        if answer.status == 410:
            state = f'{{"first_round": {one.last}, "latest_round": {one.last}}}'.encode()
            envelope = seal(state, kind=STATE, identity=one.identity, agreement=self.agreement)
            self.store.objects[f"{folder}/state"] = envelope
            return
        variant = asker % 2 if one.behaviour == "signs two" else 0
        message = one.message(index, variant)
        bucket.put_message(index, KIND, message, answer.body)
        self.store.objects[f"{folder}/receipts.json"] = b'{"receipts": [], "proofs": {"x": "{}"}}'

    # --- what must hold

    def message(self, number: int, round_index: int, variant: int) -> Message:
        return make_message(number, round_index, variant)

    def note_published(self, number: int, round_index: int, envelope: bytes) -> None:
        """An honest member has signed: never anything else for the same round."""
        before = self.published.setdefault((number, round_index), envelope)
        if before != envelope:
            self._fail(f"member {number} signed two different messages for round {round_index}")

    def _check_not_pushed(self, member: Honest, index: int) -> None:
        """Nobody goes beyond where an honest member is, but by a step."""
        if index == member.saved + 1 or index == max([0, *member.records]) + 1:
            return
        reached = max([0, *(r for n, r in self.published if n != member.number), *self._lying_in_the_store(member)])
        if index > reached:
            self._fail(f"member {member.number} was pushed to round {index}; no honest one is beyond {reached}")

    def _lying_in_the_store(self, member: Honest) -> list[int]:
        """The rounds of other honest members there; who was killed in that moment has not told us of it."""
        names = {self.agreement.members[number].name for number in self.honest if number != member.number}
        paths = [path.split("/") for path in self.store.objects if path.endswith(".manifest")]
        return [int(folder.removeprefix("round-")) for _, name, folder, _ in paths if name in names]

    def _look(self) -> None:
        for number, exchange in self.exchanges.items():
            for name in exchange.witness.proven():
                if self.agreement.number(name) not in self.hostile:
                    self._fail(f"member {number} holds a proof against {name}, who is honest")

    def _look_at_the_end(self) -> None:
        honest = self.honest.values()
        done = [one.done_at for one in honest if one.done_at is not None]
        for member in honest:
            if member.gave_up_at is not None:
                there = [o.number for o in honest if o is not member and (o.done_at or END_S) > member.gave_up_at]
                if there:
                    self._fail(f"member {member.number} gave up while {there} were still there")
                continue
            if member.records[-1:] != [self.plan.rounds]:
                self._fail(f"member {member.number} ended after round {member.records[-1:]}")
        for number in self.plan.undisturbed:
            records = self.honest[number].records
            if len(self.plan.undisturbed) == len(self.honest) and records != [*range(1, self.plan.rounds + 1)]:
                self._fail(f"member {number} was there all the time and took part in rounds {records} alone")
        if len(self.plan.undisturbed) == len(self.honest):
            slowest = max(self.plan.training_s.values())
            most = self.plan.rounds * (slowest + DEADLINE_S) + DEADLINE_S + SLACK_S
            if max(done) > most:
                self._fail(f"it took {max(done):g} s, at most {most:g} s are due")
        for exchange in self.exchanges.values():
            for name in exchange.witness.proven():
                verify_proof(exchange.witness.proof(name) or b"")

    def _fail(self, text: str) -> None:
        raise BrokenError(f"seed {self.seed}: {text}; {self.plan}")


class WatchedHttps(HttpsExchange):
    """The real exchange; the world hears of what is signed."""

    world: World

    def _send(self, round_index: int, kind: str, message: Message, envelope: bytes) -> None:
        self.world.note_published(self._own, round_index, envelope)
        super()._send(round_index, kind, message, envelope)


class WatchedBucket(BucketExchange):
    """The same over a store; what lies there is what was signed for others to see."""

    world: World

    def _send(self, round_index: int, kind: str, message: Message, envelope: bytes) -> None:
        super()._send(round_index, kind, message, envelope)
        folder = f"{self._agreement.hash[:16]}/{self._identity.name}/round-{round_index:05d}"
        lying = self.world.store.objects.get(f"{folder}/{kind}.manifest")
        if lying is not None:
            self.world.note_published(self._own, round_index, lying)


class Nowhere(OutgoingLedger):
    """A ledger that keeps nothing."""

    def __init__(self) -> None:
        self.path = Path()

    def record(self, **about: object) -> None:
        """Nothing leaves this process."""


def run_schedule(seed: int, tell: Callable[[str], None] = lambda text: None) -> World:
    """Run the schedule of this number; `BrokenError`, with the number, if the promise does not hold."""
    return schedule_of(draw_plan(seed), tell)


def try_schedule(seed: int) -> tuple[int, str]:
    """How many steps it took, and what was wrong."""
    try:
        return run_schedule(seed).clock.steps, ""
    except BrokenError as error:
        return 0, str(error)


def schedule_of(plan: Plan, tell: Callable[[str], None] = lambda text: None) -> World:
    """Run one schedule; `BrokenError` if the promise does not hold."""
    tell(str(plan))
    memory = Path("/dev/shm")  # disks are not what is tried here
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        world = World(plan, folder, tell)
        with (
            mock.patch.object(arrivals, "open_envelope", opened_once),
            mock.patch.object(Agreement, "hash", property(hash_of)),
        ):
            world.run()
    except BrokenError:
        raise
    except Exception as error:
        raise BrokenError(f"seed {plan.seed}: {type(error).__name__}: {error}; {plan}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return world


@cache
def federation(members: int, rounds: int, exchange: str) -> tuple[list[Identity], Agreement]:
    """Identities and an agreement of so many, made once."""
    identities = all_identities()[:members]
    url = "https" if exchange == "https" else "memory://simulated"
    agreement = agreed(
        identities,
        exchange=url,
        deadline_s=DEADLINE_S,
        give_up_s=GIVE_UP_S,
        quorum=1,
        settings={"rounds": rounds, "lr": 0.05},
    )
    return identities, agreement


@cache
def all_identities() -> list[Identity]:
    names = tuple(f"clinic-{number}" for number in range(MOST_MEMBERS))
    return make_identities(Path(tempfile.mkdtemp()), names)


@lru_cache(4096)
def make_message(number: int, round_index: int, variant: int) -> Message:
    """Other bytes for every member, round and variant."""
    values = torch.tensor([float(number), float(round_index), float(variant)])
    return pack({"w": values}, kind=KIND, peer=number, round_index=round_index)


# Checking a signature or hashing an agreement gives the same every time: once is enough in ten thousand schedules.
_HASHES: dict[int, str] = {}
_real_hash = vars(Agreement)["hash"].func


def hash_of(agreement: Agreement) -> str:
    """The agreement's hash, computed once for each of the few agreements, which live as long as the process."""
    if id(agreement) not in _HASHES:
        _HASHES[id(agreement)] = _real_hash(agreement)
    return _HASHES[id(agreement)]


_OPENED: dict[tuple[bytes, str, str], bytes | Exception] = {}


def opened_once(raw: bytes, *, sender, kind, agreement, now=None) -> bytes:
    """`open_envelope`, with its answers remembered."""
    key = (raw, f"{sender.name} {kind}", agreement.hash)
    if key not in _OPENED:
        if len(_OPENED) > 100_000:
            _OPENED.clear()
        try:
            _OPENED[key] = open_envelope(raw, sender=sender, kind=kind, agreement=agreement, now=now)
        except Exception as error:
            _OPENED[key] = error
    found = _OPENED[key]
    if isinstance(found, Exception):
        raise found
    return found
