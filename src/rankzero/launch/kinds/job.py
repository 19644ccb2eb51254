"""Indexed Job: what every cluster has. A replaced pod's peers wait for it in place (launch/node), so one is enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.launch.kinds.kind import Kind, PodSpecs, by_conditions, by_mark
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import Plan
from rankzero.launch.render.pod import pod_template
from rankzero.launch.render.shared import failure_rules, headless_service, top_metadata
from rankzero.launch.resource import JOB
from rankzero.launch.untyped_json import at, whole

INDEX = "batch.kubernetes.io/job-completion-index"
"""Label or annotation of an Indexed Job's pods."""


def objects(plan: Plan) -> list[Manifest]:
    """A headless Service and the Job."""
    return [
        headless_service(plan, {"batch.kubernetes.io/job-name": plan.name}),
        {
            "apiVersion": JOB.api_version,
            "kind": JOB.kind,
            "metadata": top_metadata(plan),
            "spec": _spec(plan),
        },
    ]


def _spec(plan: Plan) -> dict[str, Any]:
    cluster = plan.cluster
    template = pod_template(plan, master=f"{plan.name}-0.{plan.name}")
    template["spec"]["subdomain"] = plan.name
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": cluster.num_nodes,
        "parallelism": cluster.num_nodes,
        "backoffLimit": cluster.max_restarts,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": failure_rules("node", stopped="Ignore")},
    }
    if cluster.timeout_seconds is not None:
        spec["activeDeadlineSeconds"] = cluster.timeout_seconds
    if cluster.ttl_seconds_after_finished is not None:
        spec["ttlSecondsAfterFinished"] = cluster.ttl_seconds_after_finished
    return {**spec, "template": template}


def pods_of_job(spec: Mapping[str, Any]) -> PodSpecs:
    """Of the spec of a Job."""
    pod = at(spec, "template", "spec")
    if pod:
        yield pod, whole(spec, "parallelism") or 1


KIND = Kind(
    resource=JOB,
    objects=objects,
    pod_specs=lambda manifest: pods_of_job(at(manifest, "spec")),
    node_index=by_mark(INDEX),
    end=by_conditions("Complete"),
    restarts_allowed=("spec", "backoffLimit"),
    time_limit=("spec", "activeDeadlineSeconds"),
)
