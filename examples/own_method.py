"""A method of your own: everybody publishes, but a client learns only from the k peers that say they do best.

    python examples/own_method.py

or from the command line, in this folder:  crad run --preset demo --method own_method:BestPeers --method-settings k=3
"""

from collections.abc import Mapping

from pydantic import PositiveInt

import crad
from crad.aggregation import RULES
from crad.federation.message import SNAPSHOT, Message
from crad.federation.method import Learned, MethodSpec, Phase, RoundContext
from crad.federation.peer import Peer
from crad.methods.distillation import decode_all, distil


class BestPeers(MethodSpec):
    """The fields are the settings, the phases what everybody does in a round."""

    k: PositiveInt = 3

    def phases(self) -> list[Phase]:
        return [Phase(SNAPSHOT, publish=lambda peer, context: peer.snapshot(context.round_index), learn=self._learn)]

    def _learn(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        snapshots, _ = decode_all(messages, context)
        best = sorted(snapshots, key=lambda one: sum(one.statistics.accuracies), reverse=True)[: self.k]
        return distil(peer, {one.peer: messages[one.peer] for one in best}, context, rule=RULES["uniform"])


if __name__ == "__main__":
    for method in ("uniform", "examples.own_method:BestPeers"):
        result = crad.run(crad.Experiment(preset="demo", method=method, rounds=3))
        print(f"{method:30} global accuracy {result.summary['global_accuracy']:.2f} %")
