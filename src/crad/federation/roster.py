"""Who is on the roster, how each one does, and where its state rests between two pieces of work."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crad.federation.context import RunContext
from crad.federation.peer import PeerSpec
from crad.federation.peer_evaluation import Evaluation, evaluation_to_json

STATES = "states"  # the folder of the resting states
LOGITS = "logits"  # and of what models say on all test images, for the committee


@dataclass(frozen=True)
class PeerSlot:
    """One member as the loop sees it: no model, only where its state lies."""

    member: PeerSpec
    evaluation: Evaluation | None = None  # None until it has been measured for the first time
    state: Path | None = None  # None: it has not learned yet, its first weights follow from the seed
    index: int = field(init=False)  # its number on the roster

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", self.member.index)

    @property
    def measured(self) -> Evaluation:
        """Return its evaluation, which everybody has once the rounds have begun."""
        assert self.evaluation is not None, "measured at the beginning"
        return self.evaluation


class Roster:
    """All members of one run. A state is a file that is never changed, only replaced by another file."""

    def __init__(
        self, context: RunContext, members: Sequence[PeerSpec], folder: Path, *, here: Collection[int] | None = None
    ) -> None:
        """Place everybody; `here`: whose work is done by this loop, in a simulation everybody's."""
        self.context = context
        self.folder = folder
        self.states = folder / STATES  # of the resting states
        self.logits = folder / LOGITS  # of what models say on all test images; there while a committee is measured
        self.here = frozenset(member.index for member in members) if here is None else frozenset(here)
        self._slots = {member.index: PeerSlot(member) for member in members}
        self.states.mkdir(parents=True, exist_ok=True)

    def __iter__(self) -> Iterator[PeerSlot]:
        return iter(self._slots.values())

    def __len__(self) -> int:
        return len(self._slots)

    def own(self) -> list[PeerSlot]:
        """Return the slots whose work is done here."""
        return [slot for slot in self if slot.index in self.here]

    def __getitem__(self, index: int) -> PeerSlot:
        return self._slots[index]

    def to_json(self) -> list[dict[str, Any]]:
        """Return what a checkpoint says of the members whose work is done here: how each does, where its state lies."""
        return [
            {
                "index": slot.index,
                "architecture": slot.member.architecture.id,
                "standing": evaluation_to_json(slot.measured),
                "state": None if slot.state is None else slot.state.name,
            }
            for slot in self.own()
        ]

    def update(self, index: int, *, evaluation: Evaluation, state: Path | None = None) -> None:
        """Note that a member was measured, or has learned and has a new state."""
        slot = self._slots[index]
        self._slots[index] = replace(slot, evaluation=evaluation, state=slot.state if state is None else state)

    def put_back(self, index: int, *, evaluation: Evaluation, state: Path | None) -> None:
        """Let a member stand as it stood after another round, also where it had not learned by then."""
        self._slots[index] = replace(self._slots[index], evaluation=evaluation, state=state)

    def new_state(self, index: int, *, round_index: int, phase: int) -> Path:
        """Return where the state goes that a member will have after a phase of a round."""
        return self.states / f"peer-{index:04d}-round-{round_index:05d}-phase-{phase}.safetensors"

    def logits_of(self, slot: PeerSlot) -> Path:
        """Return where what a member's present model says on all test images is kept."""
        name = f"peer-{slot.index:04d}-first.safetensors" if slot.state is None else slot.state.name
        return self.logits / name

    def forget_logits(self, *, keep: Collection[Path] = ()) -> None:
        """Remove what models said on the test images, but for these files."""
        if not keep:
            shutil.rmtree(self.logits, ignore_errors=True)
        for file in self.logits.glob("*"):
            if file not in keep:
                file.unlink(missing_ok=True)

    def messages_of(self, round_index: int) -> Path:
        """Return the folder of the messages that are published in a round."""
        return self.folder / f"messages-{round_index:05d}"

    def forget_messages(self, before: int | None = None) -> None:
        """Remove the messages of the rounds before this one, or all."""
        for folder in self.folder.glob("messages-*"):
            if before is None or int(folder.name.removeprefix("messages-")) < before:
                shutil.rmtree(folder, ignore_errors=True)

    def forget_states(self, keep: Collection[Path] = ()) -> None:
        """Remove the states that neither the roster nor the caller needs any more."""
        needed = {slot.state for slot in self} | set(keep)
        for file in self.states.iterdir():
            if file not in needed:
                file.unlink(missing_ok=True)
