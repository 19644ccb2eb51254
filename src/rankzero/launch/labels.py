"""What a run's objects are called, and the labels and annotations that they carry. Pure."""

from __future__ import annotations

import hashlib
import posixpath
import re
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
"""Annotation: the run directory as the pods see it; none where the pods choose it."""
NODES = "rankzero.dev/num-nodes"
"""Annotation: how many pods train."""
NPROC = "rankzero.dev/nproc-per-node"
"""Annotation: processes in each of them."""
MAX_RESTARTS = "rankzero.dev/max-restarts"
"""Annotation of the object that trains, where its controller is given another number: how often pods may fail."""
OUTCOME = "rankzero.dev/outcome"
"""Annotation that a parked StatefulSet gets: the termination message of its run."""
SPEC_HASH = "rankzero.dev/spec-hash"
"""Annotation of the object that trains: hash of all that was rendered with it."""
OWN_HASH = "rankzero.dev/own-hash"
"""Annotation of the preparation: hash of that Job alone, without the kind of object that trains after it."""
SUBMITTED_BY = "rankzero.dev/submitted-by"
"""Annotation of the object that trains: who submitted it, and from which machine."""
USED_BY = "used-by.rankzero.dev/"
"""Annotation of a claim, with the object name of a run behind it: the run mounts it, and its results may be on it."""
CLAIMS_NOTED = "rankzero.dev/claims-noted"
"""Annotation of a run's ConfigMap: on each claim that it uses that is noted, where there is anything to note."""
MANAGED_BY = "app.kubernetes.io/managed-by"
QUEUE = "kueue.x-k8s.io/queue-name"
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"

NODE_ROLE = "node"
PREPARE_ROLE = "prepare"
SERVE_ROLE = "serve"
"""Of containers that serve a result. Their pods are none of the run's, and have no such label."""


def selector(run: str) -> str:
    """Label selector of everything that belongs to a run."""
    return f"{RUN}={run}"


def role_of(pod: Mapping[str, Any]) -> str:
    """`node` or `prepare`."""
    return str((pod["metadata"].get("labels") or {}).get(ROLE, NODE_ROLE))


LONGEST_NAME = 40
"""What kinds derive from a name must fit into 63 characters: a JobSet's pod is `<name>-node-0-<index>-<suffix>`."""


_DIGITS = 6
"""Of a hash in a name."""


def object_name(run_name: str) -> str:
    """A DNS label (RFC 1035: it starts with a letter) for a run.

    A name that is one already stays as it is. Any other is made one and gets a hash of the original, so that
    `my.run` and `my_run` do not meet in one object.
    """
    label = re.sub(r"[^a-z0-9-]+", "-", run_name.lower()).strip("-")
    label = label if label[:1].isalpha() else f"r-{label}".strip("-")
    if label == run_name and len(label) <= LONGEST_NAME:
        return label
    digest = hashlib.sha256(run_name.encode()).hexdigest()[:_DIGITS]
    return f"{label[: LONGEST_NAME - 7].rstrip('-')}-{digest}"


def prepare_name(name: str) -> str:
    """The preparation Job of a run's object name."""
    return f"{name}-prepare"


def job_name(name: str, state: str) -> str:
    """What the job is called that Slurm has of a run, or of its preparation, by its object name and by the directory
    that has what is known of it: runs of one name with other outputs have nothing to do with each other."""
    return f"rankzero-{name}-{hashlib.sha256(posixpath.normpath(state).encode()).hexdigest()[:_DIGITS]}"


def is_job_name(job: str, name: str) -> bool:
    """Whether a job is called so, whichever path its directory was given by. Earlier versions wrote no such end."""
    return re.fullmatch(rf"{re.escape(f'rankzero-{name}')}(-[0-9a-f]{{{_DIGITS}}})?", job) is not None


def submission_name(name: str) -> str:
    """The Secret that submit makes for a run's pods, by its object name."""
    return f"{name}-submission"
