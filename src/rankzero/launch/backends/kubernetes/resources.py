"""The kinds of objects that a run is made of: where the API keeps them, how they stop, when they have ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankzero.launch import labels
from rankzero.launch.labels import Manifest


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
CONFIG_MAP = Resource("", "v1", "configmaps", "ConfigMap")
CLAIM = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SERVICE = Resource("", "v1", "services", "Service")
SECRET = Resource("", "v1", "secrets", "Secret")
EVENT = Resource("", "v1", "events", "Event")
NODE = Resource("", "v1", "nodes", "Node", namespaced=False)
SERVICE_ACCOUNT = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ROLE = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDING = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
NETWORK_POLICY = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
STORAGE_CLASS = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
PRIORITY_CLASS = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
RESOURCE_QUOTA = Resource("", "v1", "resourcequotas", "ResourceQuota")
LIMIT_RANGE = Resource("", "v1", "limitranges", "LimitRange")
JOB = Resource("batch", "v1", "jobs", "Job")
STATEFUL_SET = Resource("apps", "v1", "statefulsets", "StatefulSet")
JOB_SET = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
TRAIN_JOB = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
TRAINING_RUNTIME = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
PYTORCH_JOB = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
KUEUE = "kueue.x-k8s.io"

TRAINING = {
    "trainjob": TRAIN_JOB,
    "jobset": JOB_SET,
    "pytorchjob": PYTORCH_JOB,
    "statefulset": STATEFUL_SET,
    "job": JOB,
}
"""The object that trains, by ClusterSpec.kind; owners before what they own."""
CORE = (CONFIG_MAP, SERVICE, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, NETWORK_POLICY)
"""What every cluster serves and a run may have besides."""
_BY_KIND = {one.kind: one for one in (*TRAINING.values(), TRAINING_RUNTIME, *CORE, POD, CLAIM, SECRET)}

_DONE = {
    "Job": {"Complete": "complete", "Failed": "failed"},
    "JobSet": {"Completed": "complete", "Failed": "failed"},
    "TrainJob": {"Complete": "complete", "Failed": "failed"},
    "PyTorchJob": {"Succeeded": "complete", "Failed": "failed"},
}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """Where an object belongs. Raises KeyError for a kind that no run has."""
    return _BY_KIND[str(manifest["kind"])]


def name_of(manifest: Mapping[str, Any]) -> str:
    """`Job/my-run`: how messages speak of an object."""
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def annotation(manifest: Mapping[str, Any], name: str) -> str | None:
    """An annotation of an object."""
    value = (manifest["metadata"].get("annotations") or {}).get(name)
    return None if value is None else str(value)


def label(manifest: Mapping[str, Any], name: str) -> str | None:
    """A label of an object."""
    value = (manifest["metadata"].get("labels") or {}).get(name)
    return None if value is None else str(value)


def is_owned(manifest: Mapping[str, Any]) -> bool:
    """Whether another object made it, and takes it away."""
    return any(owner.get("controller") for owner in manifest["metadata"].get("ownerReferences") or ())


def is_preparation(manifest: Mapping[str, Any]) -> bool:
    """Whether it is the Job that prepares."""
    return manifest["kind"] == JOB.kind and label(manifest, labels.ROLE) == labels.PREPARE_ROLE


def is_training(manifest: Mapping[str, Any]) -> bool:
    """Whether it is the object that trains."""
    kinds = {one.kind for one in TRAINING.values()}
    return manifest["kind"] in kinds and not is_preparation(manifest) and not is_owned(manifest)


def ended(manifest: Mapping[str, Any]) -> str | None:
    """`complete` or `failed` once nothing of it will run again; None until then."""
    if manifest["kind"] == STATEFUL_SET.kind:
        return "complete" if annotation(manifest, labels.OUTCOME) is not None else None
    words = _DONE.get(str(manifest["kind"]), {})
    for condition in (manifest.get("status") or {}).get("conditions") or ():
        if condition.get("type") in words and condition.get("status") == "True":
            return words[condition["type"]]
    return None


def is_suspended(manifest: Mapping[str, Any]) -> bool:
    """Whether it is told to have no pods."""
    spec = manifest.get("spec") or {}
    if manifest["kind"] == STATEFUL_SET.kind:
        return spec.get("replicas") == 0
    if manifest["kind"] == PYTORCH_JOB.kind:
        return bool((spec.get("runPolicy") or {}).get("suspend"))
    return bool(spec.get("suspend"))


def suspension(manifest: Mapping[str, Any], *, suspend: bool) -> Manifest:
    """The merge patch that stops an object's pods, or starts them again; `manifest` is as it was rendered for that."""
    if manifest["kind"] == STATEFUL_SET.kind:
        return {"spec": {"replicas": 0 if suspend else manifest["spec"].get("replicas", 1)}}
    if manifest["kind"] == PYTORCH_JOB.kind:
        return {"spec": {"runPolicy": {"suspend": suspend}}}
    return {"spec": {"suspend": suspend}}


def grace_seconds(value: object) -> int:
    """The longest grace period of any pod template inside an object; Kubernetes' default where none is written."""
    found = [30]
    if isinstance(value, Mapping):
        own = value.get("terminationGracePeriodSeconds")
        found += [own] if isinstance(own, int) else []
        found += [grace_seconds(inner) for inner in value.values()]
    elif isinstance(value, list):
        found += [grace_seconds(inner) for inner in value]
    return max(found)


def claims_of(value: object) -> set[str]:
    """Names of the claims that pods, or the pod templates inside an object, mount."""
    if isinstance(value, list):
        return set().union(*map(claims_of, value))
    if not isinstance(value, Mapping):
        return set()
    found = set().union(*map(claims_of, value.values()))
    claim = value.get("persistentVolumeClaim")
    if isinstance(claim, Mapping) and isinstance(claim.get("claimName"), str):
        found.add(claim["claimName"])
    return found
