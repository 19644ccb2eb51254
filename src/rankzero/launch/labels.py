"""Labels and annotations that a run's objects carry. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Manifest = dict[str, Any]
"""One Kubernetes object as plain JSON, in or out."""

RUN = "rankzero.dev/run"
"""Label: the run's object name. Everything of a run is found by it."""
ROLE = "rankzero.dev/role"
"""Label of pods and their templates: `node` trains, `prepare` fetches models and tokenises."""
KIND = "rankzero.dev/kind"
"""Label of the object that holds the pods, and of all else of the run: job, jobset, trainjob, …"""
RUN_NAME = "rankzero.dev/run-name"
"""Annotation: the run's name as the spec has it."""
RUN_DIR = "rankzero.dev/run-dir"
"""Annotation: the run directory as the pods see it."""
NODES = "rankzero.dev/num-nodes"
"""Annotation: how many pods train."""
NPROC = "rankzero.dev/nproc-per-node"
"""Annotation: processes in each of them."""
OUTCOME = "rankzero.dev/outcome"
"""Annotation that a parked StatefulSet gets: the termination message of its run."""
SPEC_HASH = "rankzero.dev/spec-hash"
"""Annotation of the object that trains: hash of all that was rendered with it."""
SUBMITTED_BY = "rankzero.dev/submitted-by"
"""Annotation of the object that trains: who submitted it, and from which machine."""
MANAGED_BY = "app.kubernetes.io/managed-by"
QUEUE = "kueue.x-k8s.io/queue-name"
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"

NODE_ROLE = "node"
PREPARE_ROLE = "prepare"


def selector(run: str) -> str:
    """Label selector of everything that belongs to a run."""
    return f"{RUN}={run}"


def role_of(pod: Mapping[str, Any]) -> str:
    """`node` or `prepare`."""
    return str((pod["metadata"].get("labels") or {}).get(ROLE, NODE_ROLE))
