"""Coordinator: what node 0 knows of all nodes, and what it tells them. Pure: events in, messages out; no sockets.

A start has a number, its generation. Nodes gather until all are there (elastic: enough), start together, and end
together, or some are lost and the rest gathers again, waiting in place for the replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankzero.errors import NEVER_RETRIED, ExitCode
from rankzero.launch.node.channel import Message

ELASTIC_SECONDS = 30.0
"""How long those that are there wait for the rest where fewer are enough."""
SETTLE_SECONDS = 5.0
"""When all have stopped and saved: how long to wait for one to leave before all leave."""
PEER_LOST_SECONDS = 60.0
"""How long a node's word that a peer is lost stands before it is taken for its own failure."""


@dataclass(frozen=True, slots=True)
class Order:
    """A message for one node."""

    node: int
    message: Message


@dataclass(slots=True)
class Coordinator:
    """State of one run. Every method takes the time in seconds on any clock that never goes back."""

    num_nodes: int
    least: int
    """Nodes that are enough to start; num_nodes where the run is not elastic."""
    present: dict[int, float] = field(default_factory=dict)
    """Nodes that are connected, and since when."""
    generation: int = 0
    running: tuple[int, ...] = ()
    """Nodes of the start that is under way; empty while gathering."""
    ended: dict[int, int] = field(default_factory=dict)
    """Exit codes of nodes of this start that have ended."""
    blamed: dict[int, float] = field(default_factory=dict)
    """Nodes that say they lost a peer, and when."""
    settled_at: float | None = None

    def joined(self, node: int, now: float) -> list[Order]:
        """A node is there. While others train without it, they start again: with it, or because it was replaced."""
        orders: list[Order] = []
        if node in self.running:
            orders = self._gather(f"node {node} was started again", but=node)
        elif self.running:
            orders = self._gather(f"node {node} has come", gentle=True)
        self.present[node] = now
        return orders + self.tick(now)

    def lost(self, node: int, now: float) -> list[Order]:
        """A node is gone. Where it had done its work nothing is lost."""
        self.present.pop(node, None)
        code = self.ended.get(node)
        if node in self.running and code != ExitCode.DONE:
            stopped = code == ExitCode.STOPPED  # then the others are saving too, or have
            return self._gather(f"node {node} {'was stopped' if stopped else 'is gone'}", gentle=stopped) + self.tick(
                now
            )
        return self.tick(now)

    def node_ended(
        self, node: int, code: int, now: float, *, peer_lost: bool = False, why: Message | None = None
    ) -> list[Order]:
        """The processes of a node are over; `why` is what they said of it."""
        if code in NEVER_RETRIED:  # also of one that failed while the others had begun to gather, and are not back yet
            others = [other for other in range(self.num_nodes) if other != node]
            self.ended[node] = code
            return self._tell(others, {"end": code, "because": f"node {node} failed", **(why or {})})
        if node not in self.running:
            return []
        if peer_lost:
            self.blamed[node] = now
            return []
        self.ended[node] = code
        if code not in (ExitCode.DONE, ExitCode.STOPPED):
            return self._gather(f"node {node} failed with exit code {code}", but=node)
        return self.tick(now)

    def loop_over(self, node: int) -> list[Order]:
        """The loop of a node's ranks is over, and what they were saving perhaps not: the others wait for it."""
        return [Order(other, {"over": node}) for other in self.running if other != node and node in self.running]

    def tick(self, now: float) -> list[Order]:
        """What the passing of time brings."""
        if not self.running:
            return self._start(now)
        codes = [self.ended.get(node) for node in self.running]
        if all(code == ExitCode.DONE for code in codes):
            return self._end(ExitCode.DONE)
        if all(code is not None for code in codes):  # stopped; the node that was told to leaves first
            self.settled_at = self.settled_at or now
            if now - self.settled_at > SETTLE_SECONDS:
                return self._end(ExitCode.STOPPED)
        late = [node for node, since in self.blamed.items() if now - since > PEER_LOST_SECONDS]
        if late:
            return self.node_ended(late[0], int(ExitCode.INTERNAL), now)
        return []

    def missing(self) -> list[int]:
        """Nodes that are waited for."""
        return [node for node in range(self.num_nodes) if node not in self.present]

    def _start(self, now: float) -> list[Order]:
        enough = len(self.present) >= self.num_nodes
        if not enough and len(self.present) >= self.least and 0 in self.present:
            enough = now - max(self.present.values()) > ELASTIC_SECONDS
        if not enough:
            return []
        self.generation += 1
        self.running = tuple(sorted(self.present))
        self.ended, self.blamed, self.settled_at = {}, {}, None
        return self._tell(self.running, {"start": self.generation, "nodes": list(self.running)})

    def _gather(self, because: str, *, gentle: bool = False, but: int | None = None) -> list[Order]:
        nodes = [node for node in self.running if node in self.present and node != but]
        self.running = ()
        if but is not None:
            self.present.pop(but, None)
        for node in nodes:
            self.present.pop(node, None)  # back when it says that its processes are gone
        return self._tell(nodes, {"again": because, "gentle": gentle})

    def _end(self, code: int) -> list[Order]:
        nodes, self.running = self.running, ()
        return self._tell([node for node in nodes if node in self.present], {"end": int(code), "because": ""})

    @staticmethod
    def _tell(nodes: Sequence[int], message: Message) -> list[Order]:
        return [Order(node, message) for node in nodes]
