"""A method is a list of phases, each a publish and a learn. Baselines share the loop and differ only here.

A method without settings is a `Method`; one with settings is a class, a `MethodSpec`, whose fields they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from crad.aggregation import Rule
from crad.config import Experiment
from crad.errors import ConfigError
from crad.federation.context import RunContext
from crad.federation.message import Message
from crad.federation.peer import Peer, PeerSpec
from crad.federation.teachers import TeacherCache
from crad.federation.topology import RoundParticipants, Routes, all_to_all
from crad.training.clipping import ClippedSteps

Payload = Literal["sent", "sent and received"]
# Who teaches: the other clients' models as they stand; experts that clients keep beside their models; nobody, though
# models are exchanged.
Teachers = Literal["clients", "experts", "nobody"]
CommonImages = Literal["none", "proxy", "synthetic"]
MIN_PROXY = 2  # images: batch norm needs two


@dataclass(frozen=True)
class RoundContext:
    """What a phase knows of the round beside the peer itself."""

    round_index: int
    teachers: TeacherCache
    receiver: int | None = None  # whom a message is for, in a phase that has one for each

    def purpose(self, peer: Peer, *words: str | int) -> tuple[str | int, ...]:
        """Return the words that name a random stream of this peer in this round."""
        return ("peer", peer.acts_as, "round", self.round_index, *words)


def publish_snapshot(peer: Peer, context: RoundContext, *, with_cross_entropy: bool = False) -> Message:
    """Publish the snapshot of a peer, for phases in which the others learn from its model."""
    return peer.snapshot(context.round_index, with_cross_entropy=with_cross_entropy)


@dataclass(frozen=True)
class Learned:
    """What a peer reports of one learning phase: mean losses, and the weight mass it gave each teacher per class."""

    losses: dict[str, float] = field(default_factory=dict)
    trust: dict[int, list[float]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, bytes] = field(default_factory=dict)  # small files for people, by name
    clipped: dict[str, ClippedSteps] = field(default_factory=dict)  # by what steps are for; filled in for the method


@dataclass(frozen=True)
class Phase:
    """Some publish (or nobody does), then some learn from what was published; usually all clients do both.

    Between the two a peer is only its state (model, momentum and what it put into `Peer.memory` or `Peer.variants`):
    what `publish` changes, or either keeps elsewhere on the peer, is gone. They may run in another process.
    """

    kind: str
    learn: Callable[[Peer, Mapping[int, Message], RoundContext], Learned]
    publish: Callable[[Peer, RoundContext], Message | None] | None = None  # None: it has nothing to send
    routes: Callable[[RoundParticipants], Routes] = all_to_all
    is_addressed: bool = False  # publish is asked once for each receiver, which the context names
    has_statistics: bool = True  # what is published says how the model does; if not, nobody need measure it before


def one_peer_per_client(context: RunContext) -> list[PeerSpec]:
    """Return the usual roster: client i is peer i with its own shard and architecture."""
    return [
        PeerSpec(i, clients=(i,), architecture=context.architecture_of(i)) for i in range(context.experiment.clients)
    ]


def _no_preparation(experiment: Experiment) -> int:
    return 0


def _no_refusal(experiment: Experiment) -> str | None:
    return None


@dataclass(frozen=True)
class Method:
    """A name, its phases, and who is on the roster."""

    name: str
    phases: tuple[Phase, ...]
    roster: Callable[[RunContext], list[PeerSpec]] = one_peer_per_client
    rule: Rule | None = None  # how it combines teachers, where it does
    teachers: Teachers = "clients"  # who teaches whom; of methods that exchange models
    common_images: CommonImages = "none"  # images beside the private ones that everybody sees
    payload: Payload = "sent"  # which bytes of a client the tables count
    is_reconstruction: bool = False  # nobody has published its code: the tables say so
    is_private: bool = False  # whatever reaches the others of a record went through the noise of private training
    needs_gradients: bool = False  # its models take steps along a gradient: none that is fitted in one call takes part
    settings: Mapping[str, Any] = field(default_factory=dict)  # its own, all of them but the unsaid
    unsaid: frozenset[str] = frozenset()  # settings that are not written down: see Before
    preparation: Callable[[Experiment], int] = _no_preparation  # rounds before those that are selected and reported
    refusal: Callable[[Experiment], str | None] = _no_refusal  # why it cannot run under these settings, if it cannot

    def __post_init__(self) -> None:
        kinds = [phase.kind for phase in self.phases]
        if not kinds or len(set(kinds)) != len(kinds):
            raise ConfigError(
                f"method {self.name!r} needs at least one phase, each of another kind, got {', '.join(kinds) or 'none'}"
            )


@dataclass(frozen=True)
class Before:
    """Says of a method's setting what runs did that came before it: its default, which then stays as it is for good.

    At this value it is not written down, so that runs of before and of now are the same ones, by their hash and name.
    """

    value: object


class MethodSpec(BaseModel):
    """A method with settings: its fields are the settings, `phases` builds on them.

    A method of your own is a subclass; name it by its import path, `--method package.module:Class`. What it does not
    say of itself is refused: settings of a rule and attacks by one without a `teaching_rule`, private training by one
    that is not `is_private`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    teachers: ClassVar[Teachers] = "clients"
    common_images: ClassVar[CommonImages] = "none"
    payload: ClassVar[Payload] = "sent"
    is_reconstruction: ClassVar[bool] = False
    is_private: ClassVar[bool] = False  # a promise: see Method
    needs_gradients: ClassVar[bool] = False

    def phases(self) -> Sequence[Phase]:
        """Return what everybody does in a round, in order."""
        raise NotImplementedError(f"{type(self).__name__} must say its phases")

    def roster(self, context: RunContext) -> list[PeerSpec]:
        """Return who takes part: one member per client unless the method says otherwise."""
        return one_peer_per_client(context)

    def teaching_rule(self) -> Rule | None:
        """Return the rule by which a student combines all that reach it; None: it learns in another way.

        The run's settings of a rule (`filter`, `evidence`, ...) and the inspector go by it.
        """
        return None

    def build(self, name: str) -> Method:
        """Return the method with these settings."""
        unsaid = self._as_before()
        return Method(
            name,
            tuple(self.phases()),
            roster=self.roster,
            rule=self.teaching_rule(),
            teachers=self.teachers,
            common_images=self.common_images,
            payload=self.payload,
            is_reconstruction=self.is_reconstruction,
            is_private=self.is_private,
            needs_gradients=self.needs_gradients,
            settings=self.model_dump(mode="json", exclude=set(unsaid)),
            unsaid=unsaid,
        )

    def _as_before(self) -> frozenset[str]:
        """Return the settings that say what was done before there were such."""
        fields = type(self).model_fields.items()
        later = {name: one.value for name, field in fields for one in field.metadata if isinstance(one, Before)}
        return frozenset(name for name, value in later.items() if getattr(self, name) == value)
