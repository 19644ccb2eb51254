"""What cluster.yaml says of a cluster, and containers of one machine do without. Pure.

A cluster.yaml of pods is played here as it is, so this is no error; what would change what runs is refused (pod.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from rankzero.launch.backends.docker.pod import REFUSED_FIELDS, REFUSED_OF_CONTAINER
from rankzero.launch.untyped_json import at, maps
from rankzero.spec.cluster_spec import ClusterSpec, ResourcesSpec, VolumeSpec

_OF_CLUSTERS = (
    *("context", "image_pull_policy", "image_pull_secrets", "node_selector", "tolerations", "spread", "queue"),
    *("priority_class", "scheduler", "service_account", "network_policy"),
)
_PLAYED = {"containers", "volumes", "securityContext", "hostname", "terminationGracePeriodSeconds", "restartPolicy"}
_PLAYED_OF_CONTAINER = {
    *("name", "image", "command", "args", "env", "resources", "securityContext", "volumeMounts", "workingDir"),
}
_SECURITY = {"runAsUser", "runAsGroup", "fsGroup", "allowPrivilegeEscalation", "capabilities"}


def left_out(cluster: ClusterSpec) -> list[str]:
    """Fields that say something and have no effect."""
    default, volume = ClusterSpec(), VolumeSpec.model_construct()
    found = [name for name in _OF_CLUSTERS if getattr(cluster, name) != getattr(default, name)]
    if cluster.max_restarts not in (0, default.max_restarts):  # 0 is what it comes to
        found.append("max_restarts")
    if cluster.resources.cpu != ResourcesSpec().cpu:
        found.append("resources.cpu")
    for name, one in cluster.storage.items():
        if one.storage_class != volume.storage_class:
            found.append(f"storage.{name}.class")
        if one.claim is not None and one.access not in (volume.access, "ReadOnlyMany"):
            found.append(f"storage.{name}.access")
    return found + list(dict.fromkeys(_of_patch(cluster.pod_patch)))


def _of_patch(patch: Mapping[str, Any]) -> Iterator[str]:
    yield from _beyond(patch, _PLAYED | set(REFUSED_FIELDS), "pod_patch")
    yield from _beyond(at(patch, "securityContext"), _SECURITY, "pod_patch.securityContext")
    for one in maps(patch, "containers"):
        yield from _beyond(one, _PLAYED_OF_CONTAINER | set(REFUSED_OF_CONTAINER), "pod_patch.containers")
        yield from _beyond(at(one, "securityContext"), _SECURITY, "pod_patch.containers.securityContext")


def _beyond(said: Mapping[str, Any], played: Set[str], where: str) -> Iterator[str]:
    return (f"{where}.{key}" for key in said if key not in played)
