"""What of a pod's wishes a host meets."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.launch.diagnose.hosts import hosts_of, outside
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
