"""What pods take of nodes and quotas, by Kubernetes' own rule."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.launch.backends.kubernetes.needs import amounts_of


def one(cpu: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}, "limits": {"memory": "1"}}, **more}


def sidecar(cpu: str) -> dict[str, Any]:
    return one(cpu, restartPolicy="Always")


@pytest.mark.parametrize(
    ("first", "cpu", "memory"),
    [
        ([], 5, 2),
        ([one("4"), one("3")], 5, 2),
        ([one("4"), one("9")], 9, 2),
        ([sidecar("1")], 6, 3),
        ([sidecar("1"), one("9"), sidecar("2")], 10, 4),
        ([one("7"), sidecar("1"), sidecar("1")], 7, 4),
    ],
)
@pytest.mark.parametrize("overhead", [0, 0.25])
def test_what_a_pod_takes_at_most(first: list[Any], cpu: int, memory: int, overhead: float) -> None:
    pod: dict[str, Any] = {"initContainers": first, "containers": [one("2"), one("3")]}
    if overhead:
        pod["overhead"] = {"cpu": "250m"}
    assert amounts_of(pod, "requests") == {"cpu": cpu + overhead, "memory": memory}
    assert amounts_of(pod, "limits") == {"memory": memory}
