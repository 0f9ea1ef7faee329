"""A federation laid open: its loop, its roster, and every member at work, for tests that look inside."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from crad.config import Experiment
from crad.engines.serial import SerialEngine
from crad.federation.context import build_run_context
from crad.federation.exchange import MemoryExchange
from crad.federation.message import encode
from crad.federation.method import Method
from crad.federation.peer import Peer
from crad.federation.roster import Roster
from crad.federation.rounds import RoundRunner
from crad.federation.tasks import load_tensors
from crad.methods import resolve_method


class Federation:
    """An experiment's loop with everything that it runs on within reach, measured and ready for its first round."""

    def __init__(self, experiment: Experiment, method: Method | None = None, engine: type[SerialEngine] = SerialEngine):
        self.context = build_run_context(experiment)
        self.method = method or resolve_method(experiment.method, experiment.method_settings)
        folder = Path(tempfile.mkdtemp(prefix="crad-test-"))
        weakref.finalize(self, shutil.rmtree, folder)
        self.roster = Roster(self.context, self.method.roster(self.context), folder)
        self.engine = engine(self.context, self.method)
        self.rounds = RoundRunner(self.method, self.roster, exchange=MemoryExchange(), engine=self.engine)
        self.rounds._measure(lambda step: None)
        self.running = self.rounds.run()

    def next_round(self):
        return next(self.running)

    def peers(self) -> list[Peer]:
        """Every member as it stands, at work."""
        return [self.peer(place.index) for place in self.roster]

    def peer(self, index: int) -> Peer:
        place = self.roster[index]
        peer = Peer(self.context, place.member)
        peer.evaluation = place.measured
        if place.state is not None:
            peer.load_state(load_tensors(place.state), place.measured)
        return peer

    def put(self, peer: Peer) -> None:
        """Let a member go on from a state that a test has made."""
        path = self.roster.states / f"made-{peer.index}.safetensors"
        path.write_bytes(encode(peer.state()))
        self.roster.update(peer.index, evaluation=peer.evaluation, state=path)
