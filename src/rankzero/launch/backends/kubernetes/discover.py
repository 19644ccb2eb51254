"""What a cluster can run: the kinds that it serves, and in which version. Reads only."""

from __future__ import annotations

import json

from rankzero.launch.backends.kubernetes.api import Api, part_of
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.resources import (
    KUEUE,
    TRAINING,
)
from rankzero.launch.resource import Resource

_KARPENTER = "karpenter.sh"


class Discovery:
    """Asks once and remembers."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._groups: dict[str, list[str]] | None = None
        self._plurals: dict[str, set[str]] = {}

    def training(self) -> dict[str, Resource]:
        """The objects that a run can become here, by ClusterSpec.kind; owners before what they own."""
        return {kind: resource for kind, resource in TRAINING.items() if self.serves(resource)}

    def serves(self, resource: Resource) -> bool:
        """Whether there is this very version of a kind."""
        if resource.group == "":
            return True
        if resource.version not in self._versions(resource.group):
            return False
        path = f"/apis/{resource.api_version}"
        if path not in self._plurals:
            self._plurals[path] = {str(one["name"]) for one in part_of(self._api.get(path), "resources", f"get {path}")}
        return resource.plural in self._plurals[path]

    def knows(self, resource: Resource, field: str) -> bool:
        """Whether the schema that is served has a field of this name; False where the schema cannot be read."""
        try:
            return f'"{field}"' in json.dumps(self._api.get(f"/openapi/v3/apis/{resource.api_version}"))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return False

    def has_karpenter(self) -> bool:
        """Whether Karpenter makes nodes here, in whatever version."""
        return bool(self._versions(_KARPENTER))

    def workloads(self) -> Resource | None:
        """Kueue's Workload in the version that the cluster prefers; None without Kueue."""
        versions = self._versions(KUEUE)
        return Resource(KUEUE, versions[0], "workloads", "Workload") if versions else None

    def queues(self) -> tuple[Resource, Resource] | None:
        """Kueue's LocalQueue and WorkloadPriorityClass; None without Kueue."""
        versions = self._versions(KUEUE)
        if not versions:
            return None
        return (
            Resource(KUEUE, versions[0], "localqueues", "LocalQueue"),
            Resource(KUEUE, versions[0], "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False),
        )

    def _versions(self, group: str) -> list[str]:
        """Versions of a group, the preferred one first."""
        if self._groups is None:
            found: dict[str, list[str]] = {}
            for one in part_of(self._api.get("/apis"), "groups", "get /apis"):
                preferred = str((one.get("preferredVersion") or {}).get("version", ""))
                versions = [str(version["version"]) for version in one["versions"]]
                found[str(one["name"])] = sorted(versions, key=lambda version: version != preferred)
            self._groups = found
        return self._groups.get(group, [])
