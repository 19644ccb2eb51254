"""The preparation Job: model and data into the cache, tokenised, before any GPU is asked for. Pure."""

from __future__ import annotations

import copy

from rankzero.launch import labels
from rankzero.launch.labels import Manifest, prepare_name
from rankzero.launch.node.settings import PREPARE_RESTARTS
from rankzero.launch.plan import Plan
from rankzero.launch.render.container import container
from rankzero.launch.render.content import content_hash
from rankzero.launch.render.pod import pod_metadata, pod_spec
from rankzero.launch.render.shared import DISRUPTED, NEVER_RETRIED_CODES, metadata, top_metadata
from rankzero.launch.resource import JOB

CONTAINER = "prepare"


def preparation_job(plan: Plan) -> Manifest:
    """A Job of one pod that has the run's volumes and secrets, and no GPU."""
    only = container(plan, CONTAINER, role=labels.PREPARE_ROLE)
    rules = [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": NEVER_RETRIED_CODES},
        },
        {"action": "Ignore", "onPodConditions": DISRUPTED},
    ]
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {
            **metadata(plan, prepare_name(plan.name)),
            "labels": {**top_metadata(plan)["labels"], labels.ROLE: labels.PREPARE_ROLE},
        },
        "spec": {
            "backoffLimit": PREPARE_RESTARTS,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": {
                "metadata": pod_metadata(plan, labels.PREPARE_ROLE),
                "spec": {"restartPolicy": "Never", **pod_spec(plan, only, role=labels.PREPARE_ROLE)},
            },
        },
    }


def own_hash(job: Manifest) -> str:
    """Tells one preparation from another; what kind of object trains after it makes none."""
    own = copy.deepcopy(job)
    for metadata_ in (own["metadata"], own["spec"]["template"]["metadata"]):
        metadata_["labels"].pop(labels.KIND)
    return content_hash([own])
