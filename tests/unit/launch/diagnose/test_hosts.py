"""What of a pod's wishes a host meets."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.launch.diagnose.hosts import cordoned, hosts_of, outside, passing, takes, untolerated
from rankzero.launch.pods import parse_pod


def term(*expressions: Any, fields: Any = ()) -> dict[str, Any]:
    return {"matchExpressions": list(expressions), "matchFields": list(fields)}


def holds(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("terms", "meets"),
    [
        ([], True),
        ([term(holds("zone", "In", "a", "b"))], True),
        ([term(holds("zone", "NotIn", "a"))], False),
        ([term(holds("rack", "NotIn", "7"))], True),
        ([term(holds("gen", "Gt", "3"), holds("gen", "Lt", "5"))], True),
        ([term(holds("rack", "Gt", "3"))], False),
        ([term(holds("zone", "Exists"), holds("rack", "DoesNotExist"))], True),
        ([term(holds("rack", "Exists")), term(holds("zone", "In", "a"))], True),
        ([term()], False),
        ([term(fields=[holds("metadata.name", "In", "n")])], True),
        ([term(fields=[holds("metadata.name", "In", "other")])], False),
    ],
)
def test_required_node_affinity(terms: list[Any], meets: bool) -> None:
    host = hosts_of([{"metadata": {"name": "n", "labels": {"zone": "a", "gen": "4"}}}])[0]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = parse_pod({"spec": {"affinity": {"nodeAffinity": required}}})
    assert outside(host, pod) is not meets


@pytest.mark.parametrize(
    ("taint", "tolerates", "passes", "stays"),
    [
        ("DeletionCandidateOfClusterAutoscaler:PreferNoSchedule", {}, False, False),
        ("team:PreferNoSchedule", {}, False, False),
        ("team:NoSchedule", {}, False, True),
        ("team:NoSchedule", {"key": "team"}, False, False),
        ("team:NoExecute", {"key": "team", "effect": "NoSchedule"}, False, True),
        ("example.com/agent-not-ready:NoExecute", {}, True, False),
        ("example.com/startup:NoSchedule", {"key": "example.com/startup"}, False, False),
        ("node.kubernetes.io/not-ready:NoExecute", {"key": "team"}, True, False),
        ("node.kubernetes.io/memory-pressure:NoSchedule", {"key": ""}, False, False),
    ],
)
def test_taints_that_keep_a_pod_off(taint: str, tolerates: dict[str, str], passes: bool, stays: bool) -> None:
    key, _, effect = taint.partition(":")
    host = hosts_of([{"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "effect": effect}]}}])[0]
    tolerations = [{"operator": "Exists", **tolerates}] if tolerates else []
    pod = parse_pod({"spec": {"tolerations": tolerations}})
    assert (passing(host, pod), untolerated(host, pod)) == ([taint] * passes, [taint] * stays)
    assert takes(host, pod) is not passes


def test_a_cordon_keeps_off_whoever_does_not_tolerate_it() -> None:
    host = hosts_of([{"metadata": {"name": "n"}, "spec": {"unschedulable": True}}])[0]
    everything = parse_pod({"spec": {"tolerations": [{"operator": "Exists"}]}})
    assert cordoned(host, parse_pod({})) and not cordoned(host, everything) and takes(host, everything)
