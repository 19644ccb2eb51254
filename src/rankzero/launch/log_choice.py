"""Which pods and lines of a run a LogQuery asks for. Pure; the same for every backend."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankzero.launch.backend import LogLine, LogQuery
from rankzero.launch.labels import NODE_ROLE

_RANK = re.compile(r"\[(?P<local>local )?rank (?P<rank>\d+)\]")
"""How the node command begins the lines of processes other than the first."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. A rank is a process of the node that it counts to."""

    node: int | None
    rank: int | None = None
    local_rank: int | None = None

    @classmethod
    def of(cls, query: LogQuery, nproc_per_node: int) -> Wanted:
        """Of a run with this many processes in a pod."""
        if query.rank is None:
            return cls(query.node)
        node, local_rank = divmod(query.rank, nproc_per_node)
        # another node than the rank's has none of its lines
        return cls(node if query.node in (None, node) else -1, query.rank, local_rank)

    def pod(self, role: str, node: int) -> bool:
        """Whether any of a pod's lines are; the preparation speaks for no node."""
        return self.node is None or (role == NODE_ROLE and node == self.node)

    def line(self, line: LogLine) -> bool:
        """Whether this one is; a line that names no rank is that of its node's first process."""
        match = _RANK.match(line.text) if self.rank is not None else None
        if match is None:
            return not self.local_rank
        return int(match["rank"]) == (self.local_rank if match["local"] else self.rank)
