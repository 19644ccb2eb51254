"""What a status says, as plain data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rankzero.launch.diagnose.finding import Finding

Phase = Literal[
    "Queued",
    "Pending",
    "Preparing",
    "Starting",
    "Running",
    "Stopping",
    "Stopped",
    "Succeeded",
    "Failed",
    "Gone",
    "Unknown",
]
"""Queued: its queue has not admitted it. Pending: no pod runs yet. Preparing: model and data are fetched.
Starting: pods come up, meet and load.
Stopped: it has ended without being finished; submitting it again continues it.
Gone: neither what trains nor a pod of it is left, so nobody knows how it ended. Unknown: there is no such run."""

HEALTHY = ("Running", "Completed")


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node of a run: its newest pod."""

    node: int
    pod: str
    """Empty: it has none."""
    state: str
    """Running, Completed, or the word that says best what it is instead: ImagePullBackOff, Evicted, Exit 65 …"""
    restarts: int
    host: str
    """The cluster's node."""
    age_seconds: float | None

    @property
    def is_healthy(self) -> bool:
        """Whether there is nothing to say about it."""
        return self.state in HEALTHY


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run at one moment."""

    run: str
    """Its object name."""
    name: str
    """Its name as the spec has it."""
    kind: str
    phase: Phase
    verdict: str
    """One sentence."""
    num_nodes: int
    nodes: tuple[NodeState, ...]
    step: int | None
    total_steps: int | None
    loss: float | None
    tokens_per_second: int | None
    eta_seconds: float | None
    restarts: int
    age_seconds: float | None
    """Since it was submitted."""
    findings: tuple[Finding, ...]
    run_dir: str
    goodput: str
    """Where the time of all starts went, in one line; empty while nothing says so."""
    exit_code: int | None
    """How it ended; None while it has not."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """What the result's evaluation measured."""
    scores_unread: str = ""
    """Why its nodes could not read that."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.phase in ("Stopped", "Succeeded", "Failed", "Gone")

    @property
    def running(self) -> int:
        """How many nodes run."""
        return sum(node.state == "Running" for node in self.nodes)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; a loss that is not a number is null, as JSON has none."""
        return {
            "run": self.run,
            "name": self.name,
            "kind": self.kind,
            "phase": self.phase,
            "verdict": self.verdict,
            "num_nodes": self.num_nodes,
            "running": self.running,
            "step": self.step,
            "total_steps": self.total_steps,
            "loss": self.loss if self.loss is not None and abs(self.loss) < float("inf") else None,
            "tokens_per_second": self.tokens_per_second,
            "eta_seconds": self.eta_seconds,
            "restarts": self.restarts,
            "age_seconds": self.age_seconds,
            "run_dir": self.run_dir,
            "goodput": self.goodput,
            "exit_code": self.exit_code,
            "nodes": [asdict(node) for node in self.nodes],
            "findings": [finding.to_json() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in a list."""

    run: str
    kind: str
    phase: Phase
    running: int
    num_nodes: int
    restarts: int
    age_seconds: float | None
    verdict: str

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)
