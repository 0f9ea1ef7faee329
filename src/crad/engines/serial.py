"""One client after the other in this process: the reference that every other engine must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from crad.federation.peer import Peer

T = TypeVar("T")


class SerialEngine:
    """Runs the work for each peer in turn."""

    def each(self, work: Callable[[Peer], T], peers: Sequence[Peer]) -> Iterator[T]:
        """Results in the order of the peers, each as soon as it is there."""
        return (work(peer) for peer in peers)
