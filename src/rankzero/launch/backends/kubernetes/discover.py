"""What a cluster can run: the kinds that it serves, and which flavour of the TrainJob API. Reads only."""

from __future__ import annotations

from rankzero.launch.backend import Served
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.resources import (
    KUEUE,
    TRAINING,
)
from rankzero.launch.kinds.trainjob import TRAIN_JOB
from rankzero.launch.labels import Manifest
from rankzero.launch.resource import Resource

NEWEST_TRAINER = "2.3"
_VERSION_NOTE = "/api/v1/namespaces/kubeflow-system/configmaps/kubeflow-trainer-public"


class Discovery:
    """Asks once and remembers."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._groups: dict[str, list[str]] | None = None
        self._plurals: dict[str, set[str]] = {}

    def served(self) -> Served:
        """Kinds that a run can become here."""
        kinds = frozenset(kind for kind, resource in TRAINING.items() if self.serves(resource))
        return Served(kinds, self._trainer_version() if self.serves(TRAIN_JOB) else None)

    def serves(self, resource: Resource) -> bool:
        """Whether there is this very version of a kind."""
        if resource.group == "":
            return True
        if resource.version not in self._versions(resource.group):
            return False
        path = f"/apis/{resource.api_version}"
        if path not in self._plurals:
            self._plurals[path] = {str(one["name"]) for one in self._api.get(path)["resources"]}
        return resource.plural in self._plurals[path]

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
            self._groups = {}
            for one in self._api.get("/apis")["groups"]:
                preferred = str((one.get("preferredVersion") or {}).get("version", ""))
                versions = [str(version["version"]) for version in one["versions"]]
                self._groups[str(one["name"])] = sorted(versions, key=lambda version: version != preferred)
        return self._groups.get(group, [])

    def _trainer_version(self) -> str:
        """By the fields that the served TrainJob has; each minor version changed them."""
        try:
            schema = self._api.get(f"/openapi/v3/apis/{TRAIN_JOB.api_version}")
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            self._api.tell(
                f"the TrainJob API's schema cannot be read ({error.refusal.message}); taken as {NEWEST_TRAINER}"
            )
            return NEWEST_TRAINER
        fields = _spec_fields(schema)
        if "runtimePatches" in fields:
            return self._noted_version() or NEWEST_TRAINER
        if "podTemplateOverrides" in fields:
            return "2.1"
        if "podSpecOverrides" in fields:
            return "2.0"
        self._api.tell(f"the TrainJob API is of no known version; taken as {NEWEST_TRAINER}")
        return NEWEST_TRAINER

    def _noted_version(self) -> str | None:
        """2.2 and 2.3 have the same fields; since 2.2 the controller leaves its version in a ConfigMap."""
        try:
            data = self._api.get(_VERSION_NOTE).get("data") or {}
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return None
        version = str(data.get("kubeflow_trainer_version", "")).lstrip("v")
        return next((known for known in ("2.2", "2.3") if version.startswith(f"{known}.")), None)


def _spec_fields(schema: Manifest) -> set[str]:
    for one in ((schema.get("components") or {}).get("schemas") or {}).values():
        kinds = {kind.get("kind") for kind in one.get("x-kubernetes-group-version-kind") or ()}
        if TRAIN_JOB.kind in kinds:
            spec = (one.get("properties") or {}).get("spec") or {}
            return set(spec.get("properties") or {})
    return set()
