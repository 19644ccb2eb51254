"""Resource: where the API keeps the objects of one kind. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """Where the API keeps the objects of one kind."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def title(self) -> str:
        """`jobs.batch`, as the API's own messages have it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """What objects have as apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str | None = None, part: str | None = None) -> str:
        """Path of the collection, of one object, or of a part of it such as its log."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "") + (f"/{part}" if part else "")


POD = Resource("", "v1", "pods", "Pod")
JOB = Resource("batch", "v1", "jobs", "Job")
"""What prepares a run of any kind, and a kind of its own."""
POD_GROUP = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
"""By which Volcano places a run's pods all together or not at all."""
