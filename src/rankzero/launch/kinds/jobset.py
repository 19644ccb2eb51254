"""JobSet: all pods restart together, decided by the controller. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from rankzero.launch.kinds.job import INDEX, pods_of_job
from rankzero.launch.kinds.kind import Kind, Newer, PodSpecs, by_conditions, by_mark
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


PATTERNS = "onJobFailureMessagePatterns"
"""Since JobSet 0.10 and Trainer 2.1."""
CHARGED = "stopped and evicted pods count against max_restarts"


def without_patterns(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A JobSet's spec where the rule that failed a Job cannot be told: the one for what is never retried is left.

    Whatever else fails a Job then does so by its backoffLimit, and is charged.
    """
    found = copy.deepcopy(dict(spec))
    rules = [rule for rule in found["failurePolicy"]["rules"] if rule["action"] == "FailJobSet"]
    for rule in rules:
        rule.pop(PATTERNS, None)
    found["failurePolicy"]["rules"] = rules
    for replicated in found["replicatedJobs"]:
        policy = replicated["template"]["spec"]["podFailurePolicy"]
        policy["rules"] = policy["rules"][:1]
    return found


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
    newer=Newer(
        JOB_SET, PATTERNS, lambda manifest: {**manifest, "spec": without_patterns(at(manifest, "spec"))}, CHARGED
    ),
    restarts_made=("status", "restarts"),
    restarts_allowed=("spec", "failurePolicy", "maxRestarts"),
)
