"""JobSet: all pods restart together, decided by the controller. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.launch.kinds.job import INDEX, pods_of_job
from rankzero.launch.kinds.kind import Kind, PodSpecs, by_conditions, by_mark
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import Plan
from rankzero.launch.render.pod import pod_template
from rankzero.launch.render.shared import failure_rules, run_annotations, run_labels, top_metadata
from rankzero.launch.resource import Resource
from rankzero.launch.untyped_json import at, maps

JOB_SET = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
GROUP = "node"
"""Name of the replicated Job; pods are `<run>-node-0-<index>`."""


def objects(plan: Plan) -> list[Manifest]:
    """The JobSet; it makes its own headless Service."""
    spec = jobset_spec(plan)
    if plan.cluster.ttl_seconds_after_finished is not None:
        spec["ttlSecondsAfterFinished"] = plan.cluster.ttl_seconds_after_finished
    return [{"apiVersion": JOB_SET.api_version, "kind": JOB_SET.kind, "metadata": top_metadata(plan), "spec": spec}]


def jobset_spec(plan: Plan, job_labels: dict[str, str] | None = None) -> dict[str, Any]:
    """The JobSet's spec; a TrainingRuntime has the same, with labels on its Job.

    Within a Job nothing is retried: any failure is the JobSet's, which restarts all pods. Which rule failed the Job is
    only in the message that its controller writes, so the order of failure_rules is told apart by that.
    """
    cluster = plan.cluster
    job: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": cluster.num_nodes,
        "parallelism": cluster.num_nodes,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": failure_rules("node", stopped="FailJob")},
    }
    if cluster.timeout_seconds is not None:
        job["activeDeadlineSeconds"] = cluster.timeout_seconds
    job["template"] = pod_template(plan, master=f"{plan.name}-{GROUP}-0-0.{plan.name}")
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "failurePolicy": {
            "maxRestarts": cluster.max_restarts,
            "restartStrategy": "BlockingRecreate",
            "rules": _rules(),
        },
        "replicatedJobs": [
            {
                "name": GROUP,
                "replicas": 1,
                "template": {
                    "metadata": {
                        "labels": {**run_labels(plan), **(job_labels or {})},
                        "annotations": run_annotations(plan),
                    },
                    "spec": job,
                },
            }
        ],
    }


def _rules() -> list[dict[str, Any]]:
    reason = {"onJobFailureReasons": ["PodFailurePolicy"]}
    return [
        {"name": "outOfTime", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
        {
            "name": "neverRetried",
            "action": "FailJobSet",
            **reason,
            "onJobFailureMessagePatterns": [".*rule at index 0.*"],
        },
        {
            "name": "stoppedOrDisrupted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            **reason,
            "onJobFailureMessagePatterns": [".*rule at index [12].*"],
        },
    ]


def pods_of_jobset(spec: Mapping[str, Any]) -> PodSpecs:
    """Of the spec of a JobSet."""
    for replicated in maps(spec, "replicatedJobs"):
        yield from pods_of_job(at(replicated, "template", "spec"))


KIND = Kind(
    resource=JOB_SET,
    objects=objects,
    pod_specs=lambda manifest: pods_of_jobset(at(manifest, "spec")),
    node_index=by_mark(INDEX),
    end=by_conditions("Completed"),
    needs="JobSet (https://jobset.sigs.k8s.io)",
    restarts_made=("status", "restarts"),
    restarts_allowed=("spec", "failurePolicy", "maxRestarts"),
)
