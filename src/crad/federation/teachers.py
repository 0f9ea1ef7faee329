"""From a peer's bytes to a running teacher: checked, decoded once per process and round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from crad.device import resident_bytes
from crad.errors import SnapshotError, printable
from crad.federation.context import RunContext
from crad.federation.message import SNAPSHOT, Message, Statistics, read_body, read_manifest
from crad.federation.peer import new_model
from crad.inference.engine import TEACHER_BATCH, PreparedTeacher, TeacherEngine
from crad.models import ARCHITECTURES, Architecture, other_than_agreed

# Of prepared teachers kept for the next student of the round: the smaller six of ten full-width ones. On a GPU with
# room all of them stay.
PREPARED_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Snapshot:
    """A peer's frozen model as received: safe to load, not yet loaded."""

    peer: int
    round_index: int
    architecture: str
    statistics: Statistics
    tensors: dict[str, Tensor]
    is_kept: bool = False  # since its round, and the same for whoever kept it


class TeacherCache:
    """Decodes snapshots and lends out teachers. The model of an architecture is reused by the next teacher."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._models: dict[str, nn.Module] = {}
        self._ours: set[str] = set()  # of these architectures, those that are built in
        self._decoded: dict[int, tuple[Message, Snapshot]] = {}
        self._prepared: dict[int, tuple[Snapshot, PreparedTeacher]] = {}
        self._room = resident_bytes(context.device)  # as it is before anything was prepared
        self._engine = TeacherEngine(
            device=context.device,
            precision=context.experiment.teacher_precision,
            expected_samples=_expected_samples(context),
            plans=context.plans,
        )

    def decode(self, message: Message, *, sender: int, round_index: int) -> Snapshot:
        """Decode the snapshot in a message.

        Refuse it unless sender, round, architecture, shapes and values are right.
        """
        known = self._decoded.get(sender)
        if known is not None and known[1].round_index == round_index and _is_same(known[0], message):
            return known[1]
        manifest = read_manifest(message, sender=sender, round_index=round_index, kind=SNAPSHOT)
        agreed = self._context.architecture_of(sender).id
        if manifest.architecture != agreed:
            # What a peer names is never looked up: resolving a name may import code.
            raise SnapshotError(
                f"peer {sender} sent architecture {_quoted(manifest.architecture)}, its own in this federation is "
                f"{agreed}"
            )
        statistics = _check_statistics(manifest.statistics, sender=sender, num_classes=self._context.data.num_classes)
        expected = self._model(agreed, sender=sender).state_dict()
        tensors = read_body(message, sender=sender, expected=expected)
        self._check_preparation(agreed, tensors, sender=sender)
        self.forget_other_rounds(round_index)
        snapshot = Snapshot(sender, round_index, agreed, statistics, tensors)
        self._decoded[sender] = (message, snapshot)
        return snapshot

    def decode_all(self, messages: Mapping[int, Message], *, round_index: int) -> tuple[list[Snapshot], dict[str, str]]:
        """Return the snapshots that pass every check, and the reasons why the others do not."""
        snapshots, refused = [], {}
        for sender, message in sorted(messages.items()):
            try:
                snapshots.append(self.decode(message, sender=sender, round_index=round_index))
            except SnapshotError as error:
                refused[str(sender)] = str(error)
        return snapshots, refused

    def get(self, snapshot: Snapshot) -> PreparedTeacher:
        """Return the teacher, ready to run. Small ones stay prepared for the next student; large ones come singly."""
        known = self._prepared.get(snapshot.peer)
        if known is not None and (known[0] is snapshot or _is_same_kept(known[0], snapshot)):
            return known[1]
        model = self._model(snapshot.architecture, sender=snapshot.peer)
        # Our own modules may look into the message's memory, because preparing copies; a user's may load as it likes.
        is_ours = snapshot.architecture in self._ours
        model.load_state_dict(snapshot.tensors, assign=is_ours and self._context.device == "cpu")
        prepared = self._engine.prepare(model, key=snapshot.architecture)
        held = sum(other.nbytes for _, other in self._prepared.values())
        if held + prepared.nbytes <= max(PREPARED_BYTES, self._room):
            self._prepared[snapshot.peer] = (snapshot, prepared)
        return prepared

    def freeze(self, model: nn.Module, architecture: str) -> PreparedTeacher:
        """Return the student's own model as it is now, as a teacher that does not move with it."""
        return self._engine.prepare(model, key=architecture)

    def forget_other_rounds(self, round_index: int) -> None:
        """Let go of last round's teachers, also of peers that are not active now."""
        if any(snapshot.round_index != round_index for _, snapshot in self._decoded.values()):
            self._decoded.clear()
            self._prepared.clear()

    def _check_preparation(self, architecture: str, tensors: Mapping[str, Tensor], *, sender: int) -> None:
        """Refuse a network that prepares rows otherwise than agreed; by own statistics it may, and they are bounded."""
        if self._context.experiment.standardize == "own":
            return
        model = self._model(architecture, sender=sender)
        other = other_than_agreed(model, tensors, self._context.agreed_ranges)
        if other is not None:
            raise SnapshotError(f"peer {sender} sent {other!r} that is not by the agreed ranges (standardize = schema)")

    def _model(self, architecture: str, *, sender: int) -> nn.Module:
        if architecture not in self._models:
            allowance, parsed = self._context.allowance, Architecture.parse(architecture)
            shape, batch_size = self._context.input_shape, max(TEACHER_BATCH, self._context.experiment.batch_size)
            refusal = None if allowance is None else allowance.refusal(parsed, shape, batch_size=batch_size)
            if refusal is not None:
                raise SnapshotError(f"peer {sender} is not learned from: {refusal}")
            model = new_model(self._context, parsed, seed=0)
            self._models[architecture] = model.eval().requires_grad_(False)
            if parsed.name in ARCHITECTURES:
                self._ours.add(architecture)
        return self._models[architecture]


def _expected_samples(context: RunContext) -> int:
    """Return how many inputs one architecture's teachers will see in the whole run in one process, about.

    On a CPU those of one client: with a process for each that is all a compiler can earn on; with fewer it earns more.
    On a GPU those of all clients, whom one process serves. The number of workers is no part of it: a serial run and a
    parallel one must choose alike, or their last bits would differ.
    """
    experiment = context.experiment
    active = experiment.active or experiment.clients
    served = max(1, len(context.data.shards)) if context.device == "cpu" else 1
    images = sum(len(shard.train) for shard in context.data.shards) / served
    teachers = (active - 1) / len(experiment.models)
    return int(images * teachers * experiment.local_epochs * experiment.rounds * active / experiment.clients)


def _is_same(known: Message, message: Message) -> bool:
    """Tell two messages without reading the body again: the very bytes, or the same file, which nobody changes."""
    is_same_file = known.file is not None and known.file == message.file
    return known.manifest == message.manifest and (known.body is message.body or is_same_file)


def _is_same_kept(known: Snapshot, snapshot: Snapshot) -> bool:
    return known.is_kept and snapshot.is_kept and known.round_index == snapshot.round_index


def _quoted(architecture: str | None) -> str:
    return "None" if architecture is None else repr(printable(architecture))


def _check_statistics(statistics: Statistics | None, *, sender: int, num_classes: int) -> Statistics:
    if statistics is None:
        raise SnapshotError(f"peer {sender} sent a snapshot without class statistics")
    columns = (statistics.counts, statistics.accuracies, statistics.cross_entropies)
    lengths = {len(column) for column in columns if column is not None}
    if lengths != {num_classes}:
        raise SnapshotError(f"peer {sender} sent statistics for {sorted(lengths)} classes, expected {num_classes}")
    return statistics
