"""diagnose: from what was seen of a run to what is wrong and what to do. Pure: no clock, no I/O; one module per family.

A rule reads the joined evidence and yields findings; which of several comes first is decided here alone, by what
causes what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from rankzero.launch.diagnose import (
    api,
    config,
    disruption,
    exits,
    images,
    limits,
    memory,
    network,
    progress,
    queue,
    sandbox,
    scheduling,
    signs,
    slurm,
    storage,
)
from rankzero.launch.diagnose.finding import Finding, clean, redact
from rankzero.launch.evidence import Evidence
from rankzero.launch.joined import JoinedEvidence
from rankzero.launch.refusals import Asked

__all__ = ["SYMPTOMS", "Finding", "diagnose", "diagnose_joined", "redact"]

Rule = Callable[[JoinedEvidence], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    api.find,
    slurm.find,
    queue.find,
    config.find,
    storage.find,
    images.find,
    sandbox.find,
    scheduling.find,
    memory.find,
    signs.find,
    disruption.find,
    exits.find,
    network.find,
    progress.find,
    limits.find,
)

_LATE = ("nccl-timeout", "nccl-error", "connection-lost", "rendezvous-timeout", "crash", "crash-loop", "peer-lost")
"""What happens to the peers of a pod that something else happened to."""
_LAST = ("pod-pending", "no-pods", "node-silent", "stalled", "stopped", "slurm-completing")
"""What follows from nearly anything, or says little; reached limits too."""
SYMPTOMS = frozenset(
    {
        *("connection-lost", "peer-lost", "crash", "crash-loop", "internal-error", "service-unavailable"),
        *("pod-pending", "no-pods", "node-silent", "stalled", "limit-failed", "limit-restarts", "limit-policy"),
        *("unschedulable", "scale-up-failed", "queue-waiting", "image-pull", "container-config", "pod-sandbox"),
        *("pods-refused", "refused", "evicted", "disrupted", "node-refused", "slurm-not-started"),
    }
)
"""Kinds of findings that say what happened, in the words of who saw it, and where to look: the cause is left open, so
whatever names one comes first."""
_ECHOES = ("peer-lost", "pod-pending", "no-pods", "crash-loop", "limit-policy", "limit-failed", "queue-waiting")
"""Left out beside anything that says more."""


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """What is wrong, the most certain and most causal first. Nothing for a run that does as it should."""
    return diagnose_joined(JoinedEvidence(evidence))


def diagnose_joined(joined: JoinedEvidence) -> tuple[Finding, ...]:
    """The same, from evidence that is joined already."""
    if joined.finished == "succeeded":
        return ()
    found: dict[tuple[str, str], Finding] = {}
    for rule in RULES:
        for finding in rule(joined):
            found.setdefault((finding.code, finding.cause), clean(_for_its_cluster(finding, joined)))
    ordered = sorted(found.values(), key=_order)  # stable: within a place, the order of RULES stays
    telling = any(finding.severity != "info" and finding.code not in _ECHOES for finding in ordered)
    return tuple(finding for finding in ordered if not (telling and finding.code in _ECHOES))


def _for_its_cluster(finding: Finding, joined: JoinedEvidence) -> Finding:
    """Its commands for the cluster that it is of, whatever kubectl is set to: they may delete."""
    kubectl = Asked("", context=joined.evidence.context).kubectl
    return replace(finding, fix=finding.fix.replace("`kubectl ", f"`{kubectl} "))


def _order(finding: Finding) -> tuple[bool, int]:
    last = finding.code in _LAST or finding.code.startswith("limit-")
    return finding.severity == "info", 2 if last else 1 if finding.code in _LATE or finding.code in SYMPTOMS else 0
