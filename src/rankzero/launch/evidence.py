"""Evidence: what a backend saw of one run at one moment, as its API said it. Plain data; judged by status and diagnose.

Every backend answers in the shapes of the Kubernetes API, so that one judge serves all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rankzero.launch.labels import Manifest

ABOUT_TO_START = timedelta(minutes=1)
"""Where a submit starts all itself: for how long after something was made or has ended it may be about to do so."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that the API refused while a run was submitted or looked at."""

    verb: str
    """What was tried: `create jobs.batch`, `list nodes`."""
    status: int
    """HTTP status."""
    reason: str
    """The API's machine-readable reason: Forbidden, Invalid, AlreadyExists …"""
    message: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a run. Whatever could not be read is absent, and named in `refused`."""

    run: str
    now: datetime
    """When it was collected, in UTC; ages are counted from it."""
    objects: tuple[Manifest, ...] = ()
    """Everything that carries the run's label except pods: Job, JobSet, TrainJob, claims, ConfigMap (without data) …"""
    pods: tuple[Manifest, ...] = ()
    events: tuple[Manifest, ...] = ()
    """core/v1 or events.k8s.io/v1 Events about any of the above."""
    nodes: tuple[Manifest, ...] | None = None
    """The cluster's nodes; None where this was not looked at or not permitted."""
    workloads: tuple[Manifest, ...] = ()
    """Kueue Workloads of the run."""
    storage_classes: tuple[str, ...] | None = None
    logs: Mapping[str, str] = field(default_factory=dict)
    """Last lines by pod name; of the container that trains, or of its last instance where it has been restarted."""
    refused: tuple[Refusal, ...] = ()
    context: str = ""
    """Of the kubeconfig that it was collected by, where it is known."""
