"""The kinds of objects that a run is made of: where the API keeps them, how they stop, when they have ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.launch import kinds, labels
from rankzero.launch.labels import Manifest
from rankzero.launch.resource import JOB, POD, POD_GROUP, Resource
from rankzero.launch.untyped_json import at, words

CONFIG_MAP = Resource("", "v1", "configmaps", "ConfigMap")
CLAIM = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUME = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
SERVICE = Resource("", "v1", "services", "Service")
SECRET = Resource("", "v1", "secrets", "Secret")
DEPLOYMENT = Resource("apps", "v1", "deployments", "Deployment")
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
KUEUE = "kueue.x-k8s.io"

TRAINING = {name: kind.resource for name, kind in kinds.controlled().items()}
"""The object that trains, by ClusterSpec.kind; owners before what they own."""
TEMPLATES = kinds.templates()
"""Objects that only describe the pods of one that trains."""
CORE = (CONFIG_MAP, SERVICE, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, NETWORK_POLICY)
"""What every cluster serves and a run may have besides."""
ADDED = (POD_GROUP,)
"""What a run may have where somebody has installed it."""
_BY_KIND = {one.kind: one for one in (*TRAINING.values(), *TEMPLATES, *CORE, *ADDED, POD, CLAIM, SECRET, DEPLOYMENT)}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """Where an object belongs. Raises KeyError for a kind that is made of nothing here."""
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
    trains = {one.kind for one in TRAINING.values()}
    return manifest["kind"] in trains and not is_preparation(manifest) and not is_owned(manifest)


def is_template(manifest: Mapping[str, Any]) -> bool:
    """Whether it only describes the pods of the object that trains."""
    return manifest["kind"] in {one.kind for one in TEMPLATES}


def ended(manifest: Mapping[str, Any]) -> kinds.End | None:
    """`complete` or `failed` once nothing of it will run again; None until then."""
    kind = kinds.kind_of(manifest)
    return None if kind is None else kind.end(manifest)


def is_suspended(manifest: Mapping[str, Any]) -> bool:
    """Whether it is told to have no pods."""
    kind = kinds.kind_of(manifest)
    return kind is not None and kind.switch.is_off(manifest)


def is_queued_without_pods(manifest: Mapping[str, Any]) -> bool:
    """Whether Kueue, where it has a say, lets it have no pods until there is room."""
    kind = kinds.kind_of(manifest)
    return kind is None or kind.queued_without_pods


def suspension(manifest: Mapping[str, Any], *, suspend: bool) -> Manifest:
    """The merge patch that stops an object's pods, or starts them again; `manifest` is as it was rendered for that.

    Raises KeyError for an object that trains nothing.
    """
    kind = kinds.kind_of(manifest)
    if kind is None:
        raise KeyError(manifest["kind"])
    return kind.switch.patch(manifest, suspend=suspend)


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


def labels_of_pods(value: object, spec: Mapping[str, Any]) -> dict[str, str]:
    """The labels that the template of a pod spec, inside an object, gives its pods."""
    if isinstance(value, Mapping) and value.get("spec") is spec:
        return words(at(value, "metadata", "labels"))
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next((found for one in inner if (found := labels_of_pods(one, spec))), {})


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
