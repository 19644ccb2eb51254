"""Names of Kubernetes objects, made from run names. Pure: the same run has the same names everywhere and always."""

from __future__ import annotations

import hashlib
import re

LONGEST_NAME = 40
"""What kinds derive from a name must fit into 63 characters: a JobSet's pod is `<name>-node-0-<index>-<suffix>`."""


def object_name(run_name: str) -> str:
    """A DNS label (RFC 1035: it starts with a letter) for a run.

    A name that is one already stays as it is. Any other is made one and gets a hash of the original, so that
    `my.run` and `my_run` do not meet in one object.
    """
    label = re.sub(r"[^a-z0-9-]+", "-", run_name.lower()).strip("-")
    label = label if label[:1].isalpha() else f"r-{label}".strip("-")
    if label == run_name and len(label) <= LONGEST_NAME:
        return label
    digest = hashlib.sha256(run_name.encode()).hexdigest()[:6]
    return f"{label[: LONGEST_NAME - 7].rstrip('-')}-{digest}"


def prepare_name(name: str) -> str:
    """The preparation Job of a run's object name."""
    return f"{name}-prepare"


def submission_name(name: str) -> str:
    """The Secret that submit makes for a run's pods, by its object name."""
    return f"{name}-submission"
