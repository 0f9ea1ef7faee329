"""A committee of experts: everybody trains alone and is exchanged at the end, and nobody distils.

Not in the paper; see docs/methods/committee.md. The weights are those of `local`, bit for bit. What a member does with
the models that it has at the end, predict with all of them (`crad.prediction.committee`), is not part of training.
Exchanged: every active client's snapshot, to every other active one, in the last round and every `exchange_every`
rounds before, where that is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from crad.federation.message import SNAPSHOT, Message
from crad.federation.method import Learned, MethodSpec, Phase, RoundContext, Teachers, publish_snapshot
from crad.federation.peer import Peer
from crad.federation.topology import RoundParticipants, Routes, all_to_all
from crad.methods.alone import ALONE
from crad.methods.distillation import decode_all, without_overflowing


class CommitteeMethod(MethodSpec):
    """How often models are exchanged before the last round; members are combined where they predict."""

    teachers: ClassVar[Teachers] = "nobody"
    is_private: ClassVar[bool] = True

    exchange_every: Annotated[int, Field(ge=0)] = 0  # rounds; 0: once, at the end

    def phases(self) -> Sequence[Phase]:
        """Train alone; then, in some rounds, publish what has come of it and check what the others publish."""
        return [ALONE, Phase(SNAPSHOT, publish=publish_snapshot, learn=receive, routes=self._routes)]

    def _routes(self, participants: RoundParticipants) -> Routes:
        planned, now = participants.context.experiment.rounds, participants.round_index
        is_due = now == planned or (self.exchange_every > 0 and now % self.exchange_every == 0)
        return all_to_all(participants) if is_due else {}


def receive(peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
    """Check what the others published, as one who learns from it does; the model stays as it is."""
    snapshots, refused = decode_all(messages, context)
    members = without_overflowing(peer, snapshots, context, refused)
    notes = {"committee": sorted([peer.index, *(one.peer for one in members)])}
    return Learned(notes={**notes, **({"refused": refused} if refused else {})})
