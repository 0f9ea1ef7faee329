"""What is done for one peer, as a function of bytes: the same in this process, in another one, on another machine.

A `Task` says what to do and where the peer's state and its messages lie; a `TaskOutcome` says what came of it. A
`TaskRunner` is a process's place of work: it holds the data and a model per architecture, and does one task at a time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from crad.device import MemoryPeaks, memory_peaks
from crad.errors import RunError
from crad.federation.context import RunContext
from crad.federation.message import Message, encode, map_file, read_state
from crad.federation.method import Learned, Method, RoundContext
from crad.federation.peer import Peer, untrained_model
from crad.federation.peer_evaluation import Evaluation
from crad.federation.teachers import TeacherCache
from crad.files import write_whole
from crad.inference.engine import TeacherEngine
from crad.models import ARCHITECTURES
from crad.randomness import repeatable

Write = Callable[[Path, bytes | memoryview], None]  # has a file written, whole as soon as it has its name
Verb = Literal["begin", "publish", "learn", "test", "predict"]


@dataclass(frozen=True)
class Task:
    """One piece of work for one peer."""

    verb: Verb
    peer: int
    evaluation: Evaluation | None = None  # None before the beginning
    state: Path | memoryview | None = None  # None: the first weights, which follow from the seed
    round_index: int = 0
    phase: int = 0
    messages: Mapping[int, Message] = field(default_factory=dict)
    is_measured: bool = False  # validate after learning
    save_to: Path | None = None  # where the new state or the message's body goes; None: into the outcome
    cost: float = 0.0  # expected, in any unit: the longest are begun first
    receiver: int | None = None  # of the message to publish, where there is one for each
    has_logits: bool = False  # a test or a prediction brings what a committee would hear of the peer


@dataclass(frozen=True)
class TaskOutcome:
    """What came of a task."""

    verb: Verb
    peer: int
    evaluation: Evaluation
    learned: Learned | None = None
    manifest: bytes | None = None  # of the message that was published
    content: bytes | None = None  # the new state or the message's body, where no file was named for it
    seconds: float = 0.0
    peak_memory_bytes: int = 0  # of the other process that did it, so far; where it uses a GPU, there
    peak_host_bytes: int = 0  # and beside that GPU
    receiver: int | None = None  # whom the message is for, if not for all


class Engine(Protocol):
    """Has tasks done somewhere; the order and the place must not matter."""

    @property
    def workers(self) -> int:
        """Return how many processes do tasks at the same time."""
        ...

    def each(self, tasks: Sequence[Task]) -> Iterator[TaskOutcome]:
        """Return the outcomes as they come, in any order."""
        ...

    @property
    def device(self) -> str:
        """Return what tasks are computed on."""
        ...

    @property
    def gpus(self) -> Sequence[str]:
        """Return the names of the GPUs that tasks are computed on."""
        ...

    def memory_peaks(self) -> MemoryPeaks:
        """Return the highest memory of all processes together."""
        ...

    def close(self) -> None:
        """End whatever was started."""
        ...


class TaskRunner:
    """Does tasks, one at a time: only the peer at work has its model in memory."""

    def __init__(self, context: RunContext, method: Method, *, write: Write = write_whole) -> None:
        """Set up; `write` has new states and messages written, by the end of the tasks that are done together."""
        self._context, self._write = context, write
        self._method = method
        self._members = {member.index: member for member in method.roster(context)}
        self._models: dict[str, torch.nn.Module] = {}  # of the last peer of an architecture: the next one overwrites it
        self._measuring = TeacherEngine(device=context.device, plans=context.plans)  # always in full precision
        self.teachers = TeacherCache(context)

    @property
    def device(self) -> str:
        """Return where it computes."""
        return self._context.device

    def do(self, task: Task) -> TaskOutcome:
        """Do a task; the outcome depends on the task alone."""
        started = time.perf_counter()
        kind = self._method.phases[task.phase].kind
        identity = self._context.adversary.acts_as(task.peer)
        words = ("peer", identity, "round", task.round_index, kind if task.verb == "learn" else task.verb, "torch")
        # Dropout is drawn for a batch in a row: under privacy what one record shifts must not be drawn in public.
        is_private = self._context.privacy is not None
        seed = self._context.noise_seed if is_private else self._context.experiment.seed
        with repeatable(seed, *words, device=self._context.device):
            peer = self._load_peer(task)
            match task.verb:
                case "begin":
                    outcome = self._begin(peer, task)
                case "publish":
                    outcome = self._publish(peer, task)
                case "learn":
                    outcome = self._learn(peer, task)
                case "test":
                    outcome = self._test(peer, task)
                case "predict":
                    outcome = self._predict(peer, task)
        return replace(outcome, seconds=time.perf_counter() - started)

    def _load_peer(self, task: Task) -> Peer:
        member = self._members[task.peer]
        # A user's module may keep something outside its state: it is built again each time and measured as it is.
        is_ours = member.architecture.name in ARCHITECTURES
        model = self._models.get(member.architecture.id) if is_ours and task.state is not None else None
        if model is None and task.state is not None:
            model = untrained_model(self._context, member)  # a file of first weights is not needed any more
        engine = self._measuring if is_ours else None
        peer = Peer(self._context, member, model=model, engine=engine, round_index=task.round_index)
        self._models[member.architecture.id] = peer.model
        if task.state is not None:
            assert task.evaluation is not None, "a state comes with its evaluation"
            is_training = task.verb not in ("publish", "test", "predict")
            peer.load_state(load_tensors(task.state), task.evaluation, with_optimizer=is_training)
        elif task.evaluation is not None:
            peer.evaluation = task.evaluation
        return peer

    def _begin(self, peer: Peer, task: Task) -> TaskOutcome:
        peer.revalidate()
        return TaskOutcome(task.verb, peer.index, peer.evaluation)

    def _publish(self, peer: Peer, task: Task) -> TaskOutcome:
        publish = self._method.phases[task.phase].publish
        assert publish is not None, "only phases that publish are asked to"
        message = publish(peer, RoundContext(task.round_index, self.teachers, task.receiver))
        content = None if message is None else _write_or_return(message.body, task.save_to, self._write)
        return TaskOutcome(
            task.verb,
            peer.index,
            peer.evaluation,
            manifest=None if message is None else message.manifest,
            receiver=task.receiver,
            content=content,
        )

    def _learn(self, peer: Peer, task: Task) -> TaskOutcome:
        context = RoundContext(task.round_index, self.teachers)
        if self._context.privacy is not None and self._context.secret is not None:
            peer.learned_from = (_name_of_inputs(peer, task),)
        learned = self._method.phases[task.phase].learn(peer, task.messages, context)
        learned = replace(learned, clipped=peer.clipper.counts())
        _check_converging(peer, learned.losses, task.round_index)
        if task.is_measured:
            peer.revalidate()
            sums = [total for one in peer.evaluation.validation for total in one.cross_entropy_sums]
            # Under privacy one record must not decide whether a member goes on: its weights alone do.
            totals = {"validation": sum(sums)} if self._context.privacy is None else _sums_of_weights(peer)
            _check_converging(peer, totals, task.round_index)
        peer.account_for(is_measured=task.is_measured)
        content = _write_or_return(encode(peer.state()), task.save_to, self._write)
        return TaskOutcome(task.verb, peer.index, peer.evaluation, learned=learned, content=content)

    def _test(self, peer: Peer, task: Task) -> TaskOutcome:
        if not task.has_logits:
            peer.test()
            return TaskOutcome(task.verb, peer.index, peer.evaluation)
        content = _write_or_return(encode(peer.test_as_member(task.round_index)), task.save_to)
        return TaskOutcome(task.verb, peer.index, peer.evaluation, content=content)

    def _predict(self, peer: Peer, task: Task) -> TaskOutcome:
        logits = peer.test_logits(task.round_index, as_member=task.has_logits)
        content = _write_or_return(encode(logits), task.save_to)
        return TaskOutcome(task.verb, peer.index, peer.evaluation, content=content)


def with_peaks(outcome: TaskOutcome, device: str) -> TaskOutcome:
    """Return an outcome with the memory that this process has taken so far."""
    peaks = memory_peaks(device)
    return replace(outcome, peak_memory_bytes=peaks.device_bytes, peak_host_bytes=peaks.host_bytes or 0)


def load_tensors(stored: Path | memoryview) -> dict[str, Tensor]:
    """Return the tensors of a stored state, looking into its bytes."""
    return read_state(map_file(stored) if isinstance(stored, Path) else stored)


def _name_of_inputs(peer: Peer, task: Task) -> str:
    """Return a name for all that learning starts from, by which its noise is drawn.

    The same once more, as after a crash, gets the same noise, and nothing is learned from the mean of both; the same
    round with other messages gets other noise, and nothing is learned from the difference.
    """
    digest = hashlib.sha256(f"{task.round_index} {task.phase}".encode())
    digest.update(encode(peer.state()))
    for sender, message in sorted(task.messages.items()):
        digest.update(f"{sender} {len(message.manifest)}".encode() + message.manifest)
        digest.update(message.body)
    return digest.hexdigest()[:32]


def _sums_of_weights(peer: Peer) -> dict[str, float]:
    return {"weights'": sum(float(one.detach().abs().double().sum()) for one in peer.model.parameters())}


def _write_or_return(content: bytes | memoryview, path: Path | None, write: Write = write_whole) -> bytes | None:
    if path is None:
        return bytes(content)
    write(path, content)
    return None


def _check_converging(peer: Peer, losses: Mapping[str, float], round_index: int) -> None:
    wrong = {name: value for name, value in losses.items() if not abs(value) < float("inf")}
    if wrong:
        name, value = next(iter(wrong.items()))
        clip_norm = peer.experiment.clip_norm
        said = clip_norm if isinstance(clip_norm, str) else f"{clip_norm:g}"
        raise RunError(
            f"client {peer.index} ({peer.architecture}) diverged in round {round_index}: its {name} loss is {value}; "
            f"lower lr (now {peer.experiment.lr:g}) or clip_norm (now {said})"
        )
