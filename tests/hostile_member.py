"""What a hostile member has: a genuine key, the agreement, messages that look well, and eyes for all the others."""

from __future__ import annotations

import copy
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from crad.federation.message import Manifest, Message, Statistics, pack
from crad.models import Architecture, build_model
from crad.network.agreement import read_agreement
from crad.network.envelope import seal
from crad.network.identity import load_identity
from crad.site.permission import input_shape

KIND = "snapshot"
LOOK_S = 0.02
HUGE = 1e30  # finite; its square is not


class Own:
    """One of them, in its own process."""

    def __init__(self, folder: Path, number: int, honest: tuple[int, ...]) -> None:
        self.folder, self.number, self.honest = folder, number, honest
        self.agreement = read_agreement(folder / "federation.toml")
        self.identity = load_identity(folder / f"clinic-{number}" / "keys")
        self.last = self.agreement.rounds
        self.turn = range(1, self.last + 1)  # the rounds in which it does what it does
        self.home = folder / "hostile" / f"clinic-{number}"
        self._building = threading.Lock()

    def start(self, behaviour: Callable[[Own], None]) -> None:
        """Begin, in a thread that ends with the process."""
        threading.Thread(target=behaviour, args=(self,), daemon=True).start()

    def in_turn(self, turn: range) -> Own:
        """The same one, for these rounds alone."""
        one = copy.copy(self)
        one.turn = turn
        return one

    def wait_for_turn(self) -> None:
        """Wait until the first of the honest ones is in the first of our rounds."""
        while self.finished() < self.turn[0] - 1:
            time.sleep(LOOK_S)

    def note_turn(self, round_index: int) -> None:
        """Leave a sign that something was done in this round."""
        (self.home / f"turn-{round_index}").touch()

    def is_over(self) -> bool:
        """Whether all honest ones are past our rounds."""
        return self.finished_by_all() >= self.turn[-1]

    def is_ready(self) -> None:
        """Say that the others may come."""
        (self.home / "ready").touch()

    def message(self, round_index: int, variant: int = 0, *, is_huge: bool = False) -> Message:
        """A snapshot that looks well, of a model that never learned; a variant has other weights."""
        return pack(
            self._weights(variant, is_huge),
            kind=KIND,
            peer=self.number,
            round_index=round_index,
            architecture=self.agreement.members[self.number].architecture,
            statistics=Statistics(counts=(20.0,) * self.num_classes, accuracies=(0.3,) * self.num_classes),
        )

    def envelope(self, message: Message, *, kind: str = KIND) -> bytes:
        """A message's manifest, signed with the genuine key."""
        return seal(message.manifest, kind=kind, identity=self.identity, agreement=self.agreement)

    def manifest(self, round_index: int, **changes: object) -> Message:
        """A message whose manifest says something else."""
        message = self.message(round_index)
        table = Manifest.model_validate_json(message.manifest).model_copy(update=changes)
        return Message(table.model_dump_json(exclude_none=True).encode(), message.body)

    def finished(self) -> int:
        """How many rounds the fastest of the honest ones has finished."""
        return max(self.finished_by(number) for number in self.honest)

    def finished_by_all(self) -> int:
        """How many rounds the slowest of the honest ones has finished."""
        return min(self.finished_by(number) for number in self.honest)

    def finished_by(self, number: int) -> int:
        try:
            return (self.state(number) / "rounds.jsonl").read_text().count("\n")
        except FileNotFoundError:
            return 0

    def has_received(self, number: int, message: Message) -> bool:
        """Whether a message of ours lies in an honest member's inbox."""
        manifest = Manifest.model_validate_json(message.manifest)
        folder = self.state(number) / "exchange" / "in" / f"round-{manifest.round_index:05d}"
        return any(folder.glob(f"*-{manifest.sha256[:16]}.safetensors"))

    def state(self, number: int) -> Path:
        return self.folder / f"clinic-{number}" / "state" / self.agreement.hash[:12]

    def rounds(self) -> Iterator[int]:
        """Every round of ours, when it has begun for the first of the honest ones."""
        for round_index in self.turn:
            while self.finished() < round_index - 1:
                time.sleep(LOOK_S)
            yield round_index

    @property
    def num_classes(self) -> int:
        return len(self.agreement.classes)

    def _weights(self, variant: int, is_huge: bool) -> dict[str, Tensor]:
        with self._building:  # two models built at once would draw from one stream, and one message become two
            return self._built(variant, is_huge)

    @functools.cache  # noqa: B019  # one object, as long as its process
    def _built(self, variant: int, is_huge: bool) -> dict[str, Tensor]:
        architecture = Architecture.parse(self.agreement.members[self.number].architecture)
        state = build_model(architecture, **vars(input_shape(self.agreement)), seed=variant).state_dict()
        if not is_huge:
            return state
        return {name: torch.full_like(one, HUGE) if one.is_floating_point() else one for name, one in state.items()}
